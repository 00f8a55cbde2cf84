//! Errors of saving and loading.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rankrun_contract::rank::Rank;

use super::compare::Difference;
use super::state::StateError;
use crate::diagnostic::{Details, Diagnostic};
use crate::process_group::GroupError;

/// A checkpoint that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedCheckpoint {
    /// Path of its file.
    pub path: PathBuf,
    /// Why it cannot be used.
    pub reason: String,
}

impl fmt::Display for SkippedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path.display(), self.reason)
    }
}

/// A failed [`save`](super::Checkpoint::save) or load. All ranks fail together.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A call of the group failed: a rank is lost.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The folder cannot be made, read or written.
    #[error("{}the checkpoint folder `{}` cannot be used", Details(self), path.display())]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written. Earlier checkpoints are unchanged.
    #[error("{}cannot write `{}` for the checkpoint of step {step}", Details(self), path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The step of the checkpoint.
        step: u64,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A checkpoint that was verified a moment ago cannot be read.
    #[error("cannot read the checkpoint `{}`", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The checkpoint belongs to another model.
    #[error("{}the checkpoint `{}` is of another model: {difference}", Details(self), path.display())]
    OtherModel {
        /// Path of the checkpoint.
        path: PathBuf,
        /// The first difference.
        difference: Difference,
    },
    /// There are checkpoints, and all are damaged or unreadable.
    #[error("{}no checkpoint in `{}` can be used{}", Details(self), folder.display(), list_refused(refused))]
    NoneUsable {
        /// Path of the folder.
        folder: PathBuf,
        /// All of them, newest first.
        refused: Vec<SkippedCheckpoint>,
    },
    /// The state cannot be saved.
    #[error(transparent)]
    State(#[from] StateError),
    /// The step exceeds the largest one that can be found again. Nothing was written.
    #[error("step {step} is too large: the largest step of a checkpoint is {}", i64::MAX)]
    NoSuchStep {
        /// The given step.
        step: u64,
    },
    /// The ranks save different steps. Nothing was written.
    #[error("rank {rank} saves step {step} where rank 0 saves step {rank_0_step}")]
    StepsDiffer {
        /// The first rank that differs.
        rank: Rank,
        /// Step of that rank.
        step: u64,
        /// Step of rank 0.
        rank_0_step: u64,
    },
    /// The sharded tensors of two ranks have different names, types or row shapes.
    #[error("the sharded tensors of rank {rank} differ from rank 0 in their names, types or row shapes")]
    ShardsDiffer {
        /// The first rank that differs.
        rank: Rank,
    },
    /// Another rank failed.
    #[error("on rank {rank}: {reason}")]
    OnRank {
        /// The rank with the error.
        rank: Rank,
        /// Its error message.
        reason: String,
    },
    /// A rank sent bytes that this version cannot decode.
    #[error("{}rank {rank} sends bytes that are not a checkpoint message", Details(self))]
    Strange {
        /// The rank that sent them.
        rank: Rank,
    },
}

impl CheckpointError {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Group(error) => error.hint(),
            Self::Write { source, .. } if is_disk_full(source) => {
                Some("free disk space, or keep fewer checkpoints; the existing checkpoints are intact")
            }
            Self::Folder { .. } | Self::Write { .. } => {
                Some("choose a folder that this user may write and that still exists after a restart")
            }
            Self::OtherModel { .. } => {
                Some("train the model of the checkpoint, or save this model in another folder")
            }
            Self::Strange { .. } => Some("build all ranks with the same version of rankrun"),
            Self::NoneUsable { .. } => Some("remove these files to start from the beginning"),
            _ => None,
        }
    }
}

impl Diagnostic for CheckpointError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn list_refused(refused: &[SkippedCheckpoint]) -> String {
    refused.iter().map(|refused| format!("\n{refused}")).collect()
}
