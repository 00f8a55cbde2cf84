//! Errors of shared memory among the ranks of a host.

use std::io;

use rankrun_contract::rank::{Rank, WorldSize};

use crate::diagnostic::{Details, Diagnostic};
use crate::process_group::error::DESCRIPTOR_HINT;
use crate::socket::is_own_shortage;

const MEMFD_CREATE: &str = "memfd_create";
const MEMFD_HINT: &str = "permit the system call `memfd_create` (seccomp), or choose the backend `auto` or `tcp`, which does not need it";

/// The ranks of one host cannot share memory.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The group exceeds the layout of the segment.
    #[error(
        "{}a group of {world_size} ranks does not fit into shared memory, which takes {limit}",
        Details(self)
    )]
    TooManyRanks {
        /// Number of ranks of the group.
        world_size: WorldSize,
        /// Largest number of ranks.
        limit: u32,
    },
    /// The kernel refuses the memory or its mapping.
    #[error(
        "{}{bytes} bytes of shared memory cannot be allocated (limits: `ulimit -v`, `ulimit -f`, the memory of the container)",
        Details(self)
    )]
    Memory {
        /// The requested bytes.
        bytes: usize,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// The kernel refuses `memfd_create` to this process.
    #[error("{}the kernel refuses `memfd_create`, which shared memory needs", Details(self))]
    NoFile(#[source] io::Error),
    /// Rank 0 failed to make the segment.
    #[error("{}rank 0 cannot create the shared memory: {reason}", Details(self))]
    NotMade {
        /// The error of rank 0.
        reason: String,
    },
    /// The system refuses the socket that passes the segment to other ranks.
    #[error("{}this rank cannot open a socket to pass shared memory", Details(self))]
    Socket(#[from] io::Error),
    /// The ranks are built with different versions of rankrun.
    #[error(
        "{}rank {rank} uses version {version} of the shared memory layout, this rank version {own_version}",
        Details(self)
    )]
    OtherVersion {
        /// The rank with the other version.
        rank: Rank,
        /// Its layout version.
        version: u32,
        /// The layout version of this rank.
        own_version: u32,
    },
    /// The other rank runs as another user, and users do not share memory.
    #[error("{}rank {rank} runs as another user (or in another user namespace)", Details(self))]
    OtherUser {
        /// The rank of the other user.
        rank: Rank,
    },
    /// Rank 0 passed a file that is not the segment of a group.
    #[error(
        "rank 0 passed a file that is not the shared memory of a group: it is too small, or it can shrink"
    )]
    Strange,
}

impl SegmentError {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Socket(cause) if is_own_shortage(cause) => Some(DESCRIPTOR_HINT),
            Self::NoFile(_) => Some(MEMFD_HINT),
            Self::NotMade { reason } if reason.contains(MEMFD_CREATE) => Some(MEMFD_HINT),
            Self::TooManyRanks { .. } => Some("use the backend `tcp` for larger groups"),
            Self::Memory { .. } => Some("raise the limit, or use the backend `tcp`"),
            Self::OtherVersion { .. } => Some("build all ranks with the same version of rankrun"),
            Self::OtherUser { .. } => Some("use the backend `tcp`"),
            Self::NotMade { .. } | Self::Socket(_) | Self::Strange => None,
        }
    }
}

impl Diagnostic for SegmentError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}
