//! What failures of the same cause have in common.

use rankrun_contract::rank::Rank;

use super::FailureKind;
use crate::posix::Exit;
use crate::spec::restart::FailureCause;
use crate::stacks::Frame;

/// The exception that ended a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaisedException {
    /// Such as `ValueError`.
    pub kind: String,
    /// The innermost call.
    pub frame: Option<Frame>,
}

/// What failures of the same cause have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureSignature {
    /// An error that all ranks meet is seen first now on one rank, then on another: the rank does not count.
    Exception(RaisedException),
    /// The worker of this rank ended by itself.
    Exit {
        /// The rank.
        rank: Rank,
        /// How it ended.
        exit: Exit,
        /// What the exit does not show.
        cause: Option<FailureCause>,
    },
    /// The launcher ended the worker of this rank.
    Stopped {
        /// The rank.
        rank: Rank,
        /// Why.
        kind: FailureKind,
        /// What `kind` does not show.
        cause: Option<FailureCause>,
    },
}
