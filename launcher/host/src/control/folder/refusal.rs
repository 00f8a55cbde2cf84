//! Why a folder is not used for control sockets.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::SEARCH_TIMEOUT;

/// A runtime folder that is not used, since another user may have put a socket there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the runtime folder `{}` is not used: {reason}", path.display())]
pub struct FolderRefusal {
    path: PathBuf,
    reason: RefusalReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum RefusalReason {
    #[error("it is not a folder")]
    NotFolder,
    #[error("it belongs to another user (uid {0})")]
    OtherUser(u32),
    #[error("other users may write to it (mode {0:o})")]
    Writable(u32),
}

impl FolderRefusal {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self.reason {
            RefusalReason::NotFolder | RefusalReason::OtherUser(_) => {
                "set XDG_RUNTIME_DIR to a private folder of this user, for jobs and commands"
            }
            RefusalReason::Writable(_) => {
                "`chmod 700` the folder; a job without a socket gets one at its next restart"
            }
        }
    }

    /// True if the folder belongs to this user.
    pub(super) const fn is_own(&self) -> bool {
        matches!(self.reason, RefusalReason::Writable(_))
    }
}

/// Why this folder is not used. One that other users can only read is used.
pub(super) fn refusal_of(path: &Path, found: &Metadata) -> Option<FolderRefusal> {
    let mode = found.permissions().mode() & 0o7777;
    let reason = if !found.is_dir() {
        RefusalReason::NotFolder
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        RefusalReason::OtherUser(found.uid())
    } else if mode & 0o022 != 0 {
        RefusalReason::Writable(mode)
    } else {
        return None;
    };
    Some(FolderRefusal { path: path.to_owned(), reason })
}

/// Why there is no folder for a job.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A place is refused.
    #[error(transparent)]
    Refused(#[from] FolderRefusal),
    /// The kernel refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why the folders of jobs are not found.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The file system of a runtime folder does not answer.
    #[error("the file system of the runtime folder `{path}` does not answer within {} s", SEARCH_TIMEOUT.as_secs())]
    Silent {
        /// The path of the folder.
        path: String,
    },
    /// No thread is left to look for jobs.
    #[error("no thread can be started to look for jobs")]
    Thread(#[source] io::Error),
}

impl SearchError {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Silent { .. } => {
                "`kill` the launcher's pid to stop a job; XDG_RUNTIME_DIR names the folder"
            }
            Self::Thread(_) => "the limit on processes may be reached: `ulimit -u`",
        }
    }
}
