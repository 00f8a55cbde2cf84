//! Why a training cannot save its state, or go on from a saved one.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rankrun_contract::rank::Rank;

use super::compare::Difference;
use super::state::StateError;
use crate::diagnostic::{Details, Diagnostic};
use crate::process_group::GroupError;

/// A checkpoint that was not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its file.
    pub path: PathBuf,
    /// Why not.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path.display(), self.reason)
    }
}

/// A failed [`save`](super::Checkpoint::save), or one that cannot be loaded. All ranks fail together.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The ranks cannot speak with each other: one is lost.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The folder of the checkpoints cannot be made, read or written.
    #[error("{}cannot keep checkpoints in the folder `{}`", Details(self), path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written. The checkpoints that were there are untouched.
    #[error("{}cannot write `{}` for the checkpoint of step {step}", Details(self), path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The step.
        step: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What was found to be whole a moment ago cannot be read.
    #[error("cannot read the checkpoint `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The checkpoint is of another model.
    #[error("{}the checkpoint `{}` is of another model: {difference}", Details(self), path.display())]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// In what it differs first.
        difference: Difference,
    },
    /// There are checkpoints, and none is whole.
    #[error("{}no checkpoint in `{}` can be used{}", Details(self), folder.display(), listed(refused))]
    NoneUsable {
        /// The folder.
        folder: PathBuf,
        /// Each of them, the newest first.
        refused: Vec<Refused>,
    },
    /// No checkpoint can hold this state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A step so large that its checkpoint would never be found. Nothing was written.
    #[error("there is no step {step}: the last one that a checkpoint can have is {}", i64::MAX)]
    NoSuchStep {
        /// The step.
        step: u64,
    },
    /// The ranks are not at the same step. Nothing was written.
    #[error("rank {rank} saves step {theirs} where rank 0 saves step {ours}")]
    StepsDiffer {
        /// The first rank that differs.
        rank: Rank,
        /// Its step.
        theirs: u64,
        /// That of rank 0.
        ours: u64,
    },
    /// The ranks describe different sharded tensors: names, types and the shapes of rows must be the same.
    #[error("rank {rank} has other sharded tensors than rank 0, by their names, types or shapes of rows")]
    ShardsDiffer {
        /// The first rank that differs.
        rank: Rank,
    },
    /// Another rank failed, so this one does.
    #[error("rank {rank} says: {reason}")]
    OnRank {
        /// The rank.
        rank: Rank,
        /// Its words.
        reason: String,
    },
    /// A rank sent what no rank of this version sends.
    #[error("rank {rank} sends what is no word about a checkpoint")]
    Strange {
        /// The rank.
        rank: Rank,
    },
}

impl CheckpointError {
    /// What to do about it, where something is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Group(error) => error.hint(),
            Self::Write { source, .. } if is_full(source) => Some(
                "make room, or keep fewer checkpoints; those that were there are untouched, and the last one is good",
            ),
            Self::Folder { .. } | Self::Write { .. } => {
                Some("give a folder that this user may write, on a disk that is there after a restart")
            }
            Self::OtherModel { .. } => {
                Some("train the model of the checkpoint, or keep this one's in another folder")
            }
            Self::NoneUsable { .. } => Some("remove these files to begin anew"),
            _ => None,
        }
    }
}

impl Diagnostic for CheckpointError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn listed(refused: &[Refused]) -> String {
    refused.iter().map(|refused| format!("\n{refused}")).collect()
}
