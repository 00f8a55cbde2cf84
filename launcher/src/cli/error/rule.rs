//! What is wrong with a rule about restarts.

use std::fmt;

use nix::sys::signal::Signal;

/// What is wrong with a rule about restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleProblem {
    /// No colon with an action behind it.
    NoAction,
    /// An action that does not exist.
    UnknownAction(String),
    /// A condition that does not exist.
    UnknownCondition(String),
    /// A condition that cannot be read.
    BadValue(String),
    /// The same condition twice.
    Twice(&'static str),
    /// Exit code 0.
    Success,
    /// No worker ends by a code and by a signal.
    ExitAndSignal,
    /// No worker ends by this signal.
    EndsNobody(Signal),
    /// No worker has this rank.
    NoSuchRank {
        /// Workers of the job.
        workers: u32,
    },
    /// No node has this rank.
    NoSuchNode {
        /// Nodes of the job.
        nodes: u32,
    },
    /// It restarts, and there is no restart to be had.
    NoRestarts,
    /// Earlier rules fit all that it fits.
    Covered {
        /// The rules, in words.
        by: String,
    },
}

impl fmt::Display for RuleProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAction => f.write_str("which does not say what follows"),
            Self::UnknownAction(word) => write!(f, "in which `{word}` is no action"),
            Self::UnknownCondition(word) => write!(f, "in which `{word}` is no condition"),
            Self::BadValue(text) => write!(f, "in which `{text}` cannot be read"),
            Self::Twice(name) => write!(f, "which names `{name}` twice"),
            Self::Success => f.write_str("which can never match: exit code 0 is no failure"),
            Self::ExitAndSignal => {
                f.write_str("which can never match: who is ended by a signal has no exit code")
            }
            Self::EndsNobody(signal) => {
                write!(f, "which can never match: {signal} ends no process")
            }
            Self::NoSuchRank { workers } => {
                write!(f, "which can never match: the ranks are 0 to {}", workers - 1)
            }
            Self::NoSuchNode { nodes: 1 } => {
                f.write_str("which can never match: a job of one node has node rank 0 only")
            }
            Self::NoSuchNode { nodes } => {
                write!(f, "which can never match: the node ranks are 0 to {}", nodes - 1)
            }
            Self::NoRestarts => f.write_str("but without `--max-restarts` above 0 nothing restarts"),
            Self::Covered { by } => write!(f, "which can never match: {by} before it takes all it would"),
        }
    }
}

impl RuleProblem {
    /// The part of the rule in which it lies, where it is one.
    pub(in crate::cli) fn key(&self) -> Option<&str> {
        match self {
            Self::UnknownAction(_) | Self::NoRestarts => Some("then"),
            Self::BadValue(condition) => condition.split('=').next(),
            Self::Twice(name) => Some(name),
            Self::Success => Some("exit"),
            Self::ExitAndSignal | Self::EndsNobody(_) => Some("signal"),
            Self::NoSuchRank { .. } => Some("rank"),
            Self::NoSuchNode { .. } => Some("node"),
            Self::NoAction | Self::UnknownCondition(_) | Self::Covered { .. } => None,
        }
    }

    pub(super) const fn hint(&self) -> &'static str {
        match self {
            Self::NoAction | Self::UnknownAction(_) => {
                "write `CONDITION:ACTION`; the actions are restart, fail, succeed, requeue and no-requeue"
            }
            Self::UnknownCondition(_) | Self::BadValue(_) => {
                "conditions are `exit=3`, `exit=10-19/42`, `signal=KILL`, `rank=0`, `node=0` and `any`, with `+` between"
            }
            Self::NoRestarts => "give `--max-restarts`, or leave the rule out",
            Self::Twice(_) => "write one rule for each",
            Self::Covered { .. } => "the first rule that fits decides: put the special one first",
            Self::Success
            | Self::ExitAndSignal
            | Self::EndsNobody(_)
            | Self::NoSuchRank { .. }
            | Self::NoSuchNode { .. } => "correct it, or leave it out",
        }
    }
}
