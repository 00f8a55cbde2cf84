//! The restart policy: which failures restart the worker group, and the delay before it. Pure; the agent applies it.
//!
//! By default the group restarts at once, after every failure, up to `--max-restarts` times.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::posix::Signal;

use rankrun_contract::rank::{NodeRank, Rank};

/// The restart settings, beside the budget.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RestartPolicy {
    /// `--restart-window`: at most `--max-restarts` in any span of this length, instead of over the
    /// whole job. Time without running workers does not count.
    pub window: Option<Duration>,
    /// `--restart-delay` and the options that refine it: the delay before a restart.
    pub backoff: Option<Backoff>,
    /// `--restart-reset`: after a generation that ran for so long before it failed, earlier restarts do not count.
    pub reset_after: Option<Duration>,
    /// `--restart-rules`: the first that fits a failure decides about it.
    pub rules: Vec<RestartRule>,
    /// `--progress-dir` or `--progress-restarts`: the job is given up when it fails for the same cause without progress.
    pub progress: Option<ProgressLimit>,
    /// `--exclude-node-after`: this node leaves the job when its workers failed first so often.
    pub exclude_node_after: Option<FailureShare>,
}

/// A number of failures among the last restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureShare {
    /// From 1.
    pub failures: u32,
    /// Of so many restarts; not less than `failures`, and [`Self::MAX_RESTARTS`] at most.
    pub restarts: u32,
}

impl FailureShare {
    /// The restarts that are remembered.
    pub const MAX_RESTARTS: u32 = 1000;
}

/// `RestartPolicy` holds no NaN, so `Eq` is sound.
impl Eq for RestartPolicy {}

/// How long to wait before a restart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The delay before the first restart.
    pub delay: Duration,
    /// The factor from one wait to the next; 1 or more.
    pub factor: f64,
    /// The longest delay between two restarts.
    pub cap: Duration,
    /// Up to this share of a wait, from 0 to 1, is left out by chance, so that jobs that failed together do not
    /// start together.
    pub jitter: f64,
}

/// Ends the job after restarts without progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressLimit {
    /// Where new files appear while the job makes progress: its checkpoints. Without it the steps of the heartbeats count.
    pub folder: Option<PathBuf>,
    /// So many restarts in a row may be followed by the same failure without progress.
    pub restarts: u32,
}

/// The action for a certain kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartRule {
    /// The failures that the rule applies to.
    pub when: Conditions,
    /// The action that follows such a failure.
    pub then: RuleAction,
}

/// All of these must hold of the worker that failed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions {
    /// It ended with one of these codes.
    pub exit: Option<ExitCodes>,
    /// The signal that killed the worker.
    pub signal: Option<Signal>,
    /// A cause that neither code nor signal shows.
    pub cause: Option<FailureCause>,
    /// The rank of the failed worker.
    pub rank: Option<Rank>,
    /// The node of the failed worker.
    pub node: Option<NodeRank>,
}

/// A cause of a failure that the launcher finds beside the end of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// `--hang-timeout`: the workers made no progress.
    Hang,
    /// `--hang-timeout`: the ranks called different collectives.
    Desync,
    /// The kernel killed the worker for lack of memory.
    Oom,
}

/// The action that follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// All workers start again, as far as the budget goes.
    Restart,
    /// The job ends as a failure.
    Fail,
    /// The job ends as a success.
    Succeed,
    /// The job has failed, and its scheduler should put it into the queue again.
    Requeue,
    /// The job has failed, and would fail again.
    NoRequeue,
}

/// A set of exit codes, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExitCodes([u64; 4]);

impl ExitCodes {
    /// The set with one more code.
    #[must_use]
    pub const fn with(mut self, code: u8) -> Self {
        self.0[code as usize / 64] |= 1 << (code % 64);
        self
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn contains(&self, code: u8) -> bool {
        self.0[code as usize / 64] & (1 << (code % 64)) != 0
    }
}

impl FromIterator<u8> for ExitCodes {
    fn from_iter<I: IntoIterator<Item = u8>>(codes: I) -> Self {
        codes.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Display for RestartRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conditions { exit, signal, cause, rank, node } = self.when;
        let parts = [
            exit.map(|codes| format!("exit={codes}")),
            signal.map(|signal| format!("signal={}", signal.as_str().trim_start_matches("SIG"))),
            cause.map(|cause| cause.to_string()),
            rank.map(|rank| format!("rank={rank}")),
            node.map(|node| format!("node={node}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        write!(f, "{}:{}", if parts.is_empty() { "any".to_owned() } else { parts.join("+") }, self.then)
    }
}

impl fmt::Display for ExitCodes {
    /// As it is written: `3`, `10-19` and both with `/` between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut codes = (0..=u8::MAX).filter(|code| self.contains(*code)).peekable();
        let mut separator = "";
        while let Some(first) = codes.next() {
            let mut last = first;
            while let Some(next) = codes.next_if(|next| last.checked_add(1) == Some(*next)) {
                last = next;
            }
            match last {
                last if last == first => write!(f, "{separator}{first}")?,
                last => write!(f, "{separator}{first}-{last}")?,
            }
            separator = "/";
        }
        Ok(())
    }
}

impl FailureCause {
    /// All of them, as they are written.
    pub const KEYWORDS: [(&'static str, Self); 3] =
        [("hang", Self::Hang), ("desync", Self::Desync), ("oom", Self::Oom)];
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hang => "hang",
            Self::Desync => "desync",
            Self::Oom => "oom",
        })
    }
}

impl RuleAction {
    /// All of them, as they are written.
    pub const KEYWORDS: [(&'static str, Self); 5] = [
        ("restart", Self::Restart),
        ("fail", Self::Fail),
        ("succeed", Self::Succeed),
        ("requeue", Self::Requeue),
        ("no-requeue", Self::NoRequeue),
    ];
}

impl fmt::Display for RuleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restart => "restart",
            Self::Fail => "fail",
            Self::Succeed => "succeed",
            Self::Requeue => "requeue",
            Self::NoRequeue => "no-requeue",
        })
    }
}
