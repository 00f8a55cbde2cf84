//! Why there is no shared memory for a group.

use std::io;

use rankrun_contract::rank::{Rank, WorldSize};

use crate::diagnostic::{Details, Diagnostic};
use crate::process_group::error::DESCRIPTORS;
use crate::socket::is_own_shortage;

const FILE_CALL: &str = "memfd_create";
const PERMIT_FILES: &str =
    "permit the system call `memfd_create` (seccomp), or ask for `auto` or `tcp`, which do without it";

/// Ranks of one host cannot share memory.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The group is larger than the segment is laid out for.
    #[error(
        "a group of {world_size} ranks does not fit into shared memory, which takes {limit}; \
         the backend `tcp` carries larger ones"
    )]
    TooManyRanks {
        /// The size of the group.
        world_size: WorldSize,
        /// The most ranks of a group.
        limit: u32,
    },
    /// The kernel gives no memory, or does not let it be mapped.
    #[error(
        "no {bytes} bytes of shared memory (limits: `ulimit -v`, `ulimit -f`, the memory of the container); \
         the backend `tcp` needs none"
    )]
    Memory {
        /// How much.
        bytes: usize,
        /// What the kernel says.
        #[source]
        cause: io::Error,
    },
    /// The kernel makes no file in memory for this process.
    #[error("{}the kernel refuses `memfd_create`, without which ranks share no memory", Details(self))]
    NoFile(#[source] io::Error),
    /// Rank 0 could not make it.
    #[error("{}rank 0 could not make it: {why}", Details(self))]
    NotMade {
        /// What rank 0 says.
        why: String,
    },
    /// No socket through which the memory could be passed on.
    #[error("{}no socket for passing shared memory between ranks", Details(self))]
    Socket(#[from] io::Error),
    /// Another version of rankrun.
    #[error(
        "rank {rank} lays shared memory out in version {theirs}, this rank in version {ours}; \
         all ranks must be built with the same rankrun"
    )]
    OtherVersion {
        /// The other rank.
        rank: Rank,
        /// Its version.
        theirs: u32,
        /// This rank's.
        ours: u32,
    },
    /// The other rank runs as another user, who may not share memory with us.
    #[error(
        "rank {rank} runs as another user (or in another user namespace); the backend `tcp` connects them"
    )]
    OtherUser {
        /// The other rank.
        rank: Rank,
    },
    /// Rank 0 passes something that is not the group's memory.
    #[error("rank 0 passes what is not the shared memory of a group: it would be too small, or could shrink")]
    Strange,
}

impl SegmentError {
    /// What to do about it, where something is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Socket(cause) if is_own_shortage(cause) => Some(DESCRIPTORS),
            Self::NoFile(_) => Some(PERMIT_FILES),
            Self::NotMade { why } if why.contains(FILE_CALL) => Some(PERMIT_FILES),
            _ => None,
        }
    }
}

impl Diagnostic for SegmentError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}
