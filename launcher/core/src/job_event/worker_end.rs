//! How a worker ended, with the evidence for the reason.

use std::time::{Duration, SystemTime};

use rankrun_contract::rank::{LocalRank, Rank};

use crate::job_event::memory::OomEvidence;
use crate::job_event::memory::PeakMemory;
use crate::posix::{Exit, Pid, Signal};
use crate::rendezvous::PeerLoss;

/// The exit of one worker, with its evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerEnd {
    /// The local rank of the worker.
    pub local_rank: LocalRank,
    /// The pid that the worker had.
    pub pid: Pid,
    /// The exit code or the signal that ended it.
    pub exit: Exit,
    /// The time at which the launcher saw the exit.
    pub at: SystemTime,
    /// What its error file says about the failure.
    pub error_file_info: Option<ErrorFileInfo>,
    /// What is known of a SIGKILL that the launcher did not send.
    pub foreign_kill: Option<ForeignKill>,
}

impl WorkerEnd {
    /// The end that is reported of a worker that has not ended yet: by the signal that it gets last.
    #[must_use]
    pub(crate) const fn new_expected(
        local_rank: LocalRank,
        pid: Pid,
        signal: Signal,
        at: SystemTime,
    ) -> Self {
        let exit = Exit::Signal { number: signal as i32, core_dumped: false };
        Self { local_rank, pid, exit, at, error_file_info: None, foreign_kill: None }
    }

    /// True if its own error file reports a lost peer that may be on another node.
    #[must_use]
    pub(crate) fn has_lost_remote_peer(&self) -> bool {
        self.error_file_info.is_some_and(|error_file_info| error_file_info.remote_loss().is_some())
    }
}

/// A worker's death by a SIGKILL that the launcher did not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignKill {
    /// Whether the kernel's OOM killer sent it.
    pub oom: OomEvidence,
    /// Peak memory of the worker, or of a process that it waited for.
    pub peak: Option<PeakMemory>,
}

/// How the worker that was the cause failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// It exited with a code other than 0, or by a signal.
    Ended,
    /// It had written its error file, and our stop ended it before its own exit.
    EndedByStop,
    /// It had not joined the store within this time and was stopped for that.
    NotJoined {
        /// The start limit that the user set.
        limit: Duration,
    },
    /// The workers made no progress and were stopped for that.
    Hang,
    /// It was uninterruptible (state `D`) for too long and was stopped for that.
    Uninterruptible {
        /// The time for which it was uninterruptible.
        blocked_for: Duration,
    },
}

/// What a failed worker's error file says about the order of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorFileInfo {
    /// The time at which the worker wrote the file.
    pub written: SystemTime,
    /// The lost peer that made the worker fail, where the file reports one.
    pub lost_peer: Option<LostPeer>,
}

/// A peer that a worker has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostPeer {
    /// A worker of this node, by local rank.
    Here(LocalRank),
    /// A worker of another node, by rank.
    Elsewhere(Rank),
    /// The error file does not name the peer.
    Unnamed,
}

impl ErrorFileInfo {
    /// The lost peer, where it may be on another node.
    #[must_use]
    pub fn remote_loss(&self) -> Option<PeerLoss> {
        match self.lost_peer? {
            LostPeer::Here(_) => None,
            LostPeer::Elsewhere(rank) => Some(PeerLoss::Rank(rank)),
            LostPeer::Unnamed => Some(PeerLoss::Unnamed),
        }
    }
}

/// Messages about a lost peer of gloo (the first two) and NCCL.
const LOST_PEER_PHRASES: [&str; 5] = [
    "Connection closed by peer",
    "gloo/transport/",
    "remote process exiting prematurely",
    "remote process exited or there was a network error",
    "ncclRemoteError",
];

/// The phrase by which a library reports a lost peer, if the text contains one.
#[must_use]
pub fn lost_peer_phrase(text: &str) -> Option<&'static str> {
    LOST_PEER_PHRASES.into_iter().find(|phrase| text.contains(phrase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gloo_and_nccl_messages_are_recognized_as_lost_peer() {
        for text in [
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [198.18.0.12]:24077",
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:31000: Connection reset by peer",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        ] {
            assert!(lost_peer_phrase(text).is_some(), "{text}");
        }
        for text in ["ValueError: the peer closed no connection", "Connection reset by peer"] {
            assert_eq!(lost_peer_phrase(text), None, "a data loader may say so");
        }
    }
}
