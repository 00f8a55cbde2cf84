//! Evidence of the worker group on failures: exits, error files, last output lines. `failure` judges it,
//! `failure_context` reports it, and the rendezvous carries it to the other nodes.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rankrun_contract::rank::{LocalRank, NodeCount, Rank};
use rankrun_contract::report::ErrorFile;
use rankrun_contract::report::cut::{cut_text, is_cut_text};

use super::WorkerGroup;
use crate::agent::failure_context::{self, FailureContext};
use crate::process::child::WorkerExit;
use crate::reporter::exception::{exception_in_output, exception_of_report};
use crate::reporter::log_space;
use crate::reporter::memory::end_in_words;
use crate::system::short_hostname;
use rankrun_core::agent::failure::Failure;
use rankrun_core::agent::recurrence::RaisedException;
use rankrun_core::agent::state::start::UnansweredDeadline;
use rankrun_core::hang::sentence::failure_sentence;
use rankrun_core::hang::verdict::Verdict;
use rankrun_core::job_event::activity::LastOutput;
use rankrun_core::job_event::{ErrorFileInfo, FailureKind, LostPeer, WorkerEnd, lost_peer_phrase};
use rankrun_core::placement::WorkerId;
use rankrun_core::rendezvous::{FailureNote, NodeName, WorkerFailure};
use rankrun_core::stacks::WorkerStacks;

/// How long a failed worker's last lines are awaited if its output is held up.
const OUTPUT_WAIT: Duration = Duration::from_millis(50);

/// A longer message (in bytes) is cut for the other nodes.
const MAX_NOTE_TEXT: usize = 1600;

/// The last line of a message, or both ends of a long message.
fn shorten_message(message: &str) -> Option<String> {
    let last = message.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    let is_long = is_cut_text(message) || last.len() > MAX_NOTE_TEXT;
    Some(if is_long { cut_text(message.trim(), MAX_NOTE_TEXT).into_owned() } else { last.to_owned() })
}

impl WorkerGroup {
    /// The evidence on a failure of the last generation; call after [`Self::drain`].
    pub(in crate::agent) fn failure_context(&self, failure: &Failure) -> FailureContext<'_> {
        let local_rank = failure.first.local_rank;
        let worker = WorkerId { generation: failure.generation, local_rank };
        FailureContext {
            placements: &self.placements,
            round: self.round.as_ref(),
            started: self.started,
            spec: &self.spec,
            attempt: self.attempt.as_ref(),
            error_files: &self.error_files,
            tail: self.logs.tail(worker),
            file_calls: self.logs.calls(),
            is_output_seen: self.logs.last_outputs(&[worker]) != [LastOutput::Unavailable],
            oom: self.oom_kills(),
            log_disk: self.log_disk(local_rank),
            stacks: self.stacks_of(failure),
            counters: self.counters.as_ref(),
        }
    }

    /// The stacks that were taken before the end of this generation. Workers that joined in time after all stand
    /// elsewhere since then.
    fn stacks_of(&self, failure: &Failure) -> &[WorkerStacks] {
        let is_late = matches!(failure.kind, FailureKind::NotJoined { .. });
        let taken = self.unanswered.as_ref().filter(|taken| {
            let is_of_join = matches!(taken.deadline, Some(UnansweredDeadline::Join(_)));
            taken.generation == failure.generation && (!is_of_join || is_late)
        });
        taken.map_or(&[], |taken| &taken.workers)
    }

    /// Reads a failed worker's error file, which is kept until the next generation.
    pub(in crate::agent) fn error_file_info(&mut self, exit: &WorkerExit) -> Option<ErrorFileInfo> {
        let local_rank = exit.worker.local_rank;
        if exit.exit.is_success() {
            return None;
        }
        self.check_log_disk(local_rank);
        let path = self.attempt.as_ref().map(|attempt| attempt.error_file(local_rank));
        let loaded = path.and_then(|path| {
            let load = {
                let path = path.clone();
                move || failure_context::load_error_file(&path)
            };
            self.logs.calls().run(&path, load).flatten()
        });
        let Some((file, written)) = loaded else {
            return self.lost_peer_from_output(exit.worker);
        };
        let texts = || [Some(&file.report.message), file.report.callstack.as_ref()].into_iter().flatten();
        let text = || texts().any(|text| lost_peer_phrase(text).is_some());
        let lost = file.report.lost_rank.map(|rank| self.lost_peer(rank));
        let lost = lost.or_else(|| text().then_some(LostPeer::Unnamed));
        self.error_files.insert(local_rank, file);
        Some(ErrorFileInfo { written, lost_peer: lost })
    }

    /// The exception that a worker ended with: of its error file, else of its last lines.
    pub(in crate::agent) fn raised_exception(&self, worker: WorkerId) -> Option<RaisedException> {
        let exception = match self.error_files.get(&worker.local_rank) {
            Some(file) => exception_of_report(&file.report),
            None => exception_in_output(&self.logs.tail_after_drain(worker, OUTPUT_WAIT))?,
        };
        Some(RaisedException { kind: exception.kind?, frame: exception.frame })
    }

    /// Finds the loss of a peer in the worker's last lines, if there are other nodes: a script without
    /// torch's `@record` writes no error file.
    fn lost_peer_from_output(&self, worker: WorkerId) -> Option<ErrorFileInfo> {
        self.round.as_ref().filter(|round| round.nodes > NodeCount::ONE)?;
        let lines = self.logs.tail_after_drain(worker, OUTPUT_WAIT);
        let tells = lines.iter().any(|line| lost_peer_phrase(line).is_some());
        tells.then(|| ErrorFileInfo { written: SystemTime::now(), lost_peer: Some(LostPeer::Unnamed) })
    }

    /// The note on a failure for the other nodes.
    pub(in crate::agent) fn failure_note(
        &self,
        end: &WorkerEnd,
        hang: Option<&Verdict>,
    ) -> Option<FailureNote> {
        let round = self.round.as_ref()?;
        let placement = self.placements.get(end.local_rank.index())?;
        let file = self.error_files.get(&end.local_rank);
        let worker = WorkerId { generation: self.generation, local_rank: end.local_rank };
        let last_lines = self.logs.tail_after_drain(worker, OUTPUT_WAIT);
        let of_disk = || log_space::cause_of(&self.log_disk(end.local_rank)?, &last_lines);
        let message = file.and_then(|file| shorten_message(&file.report.message)).or_else(of_disk);
        let is_shared = round.nodes > NodeCount::ONE;
        Some(FailureNote::Worker(WorkerFailure {
            node: self.own_node_name()?,
            rank: placement.rank,
            local_rank: end.local_rank,
            pid: end.pid.as_raw(),
            ended: hang.map_or_else(|| end_in_words(end, placement.rank), failure_sentence),
            message,
            last_lines,
            lost_peer: end
                .error_file_info
                .and_then(|error_file_info| error_file_info.remote_loss())
                .filter(|_| is_shared),
        }))
    }

    /// The name of this node in its round.
    fn own_node_name(&self) -> Option<NodeName> {
        let round = self.round.as_ref()?;
        Some(NodeName {
            rank: Some(round.node_rank),
            host: Some(short_hostname()),
            addr: round.own_name().addr,
        })
    }

    /// The note for the other nodes if the launcher itself has failed in a round.
    pub(in crate::agent) fn launcher_failure_note(&self, why: String) -> Option<FailureNote> {
        Some(FailureNote::LauncherFailed { node: self.own_node_name()?, why })
    }

    /// True if the node is this one. In containers another node may have the same host name.
    pub(in crate::agent) fn is_on_this_node(&self, node: &NodeName) -> bool {
        let own = self.round.as_ref().and_then(|round| round.own_name().addr);
        let is_elsewhere = node.addr.as_ref().zip(own.as_ref()).is_some_and(|(addr, own)| addr != own);
        node.host == Some(short_hostname()) && !is_elsewhere
    }

    fn lost_peer(&self, rank: Rank) -> LostPeer {
        let placement = self.placements.iter().find(|placement| placement.rank == rank);
        placement.map_or(LostPeer::Elsewhere(rank), |placement| LostPeer::Here(placement.local_rank))
    }

    /// The error file of this worker, and its path.
    pub(in crate::agent) fn error_file(&self, local_rank: LocalRank) -> Option<(&ErrorFile, PathBuf)> {
        let path = self.attempt.as_ref()?.error_file(local_rank);
        Some((self.error_files.get(&local_rank)?, path))
    }
}
