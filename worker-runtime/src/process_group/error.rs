//! Why a process group did not do what it was asked.

use std::fmt;
use std::io;
use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

use super::Backend;
use super::members::Members;
use super::message::{Call, Operation};
#[cfg(feature = "nccl")]
use super::nccl::{NcclError, NcclMissing};
use super::plan::Conflict;
use super::shm::SegmentError;
#[cfg(feature = "nccl")]
use crate::cuda::CudaMissing;
use crate::diagnostic::{Details, Diagnostic};
use crate::socket::is_own_shortage;
use crate::store::StoreError;

/// What helps a process that may open no more files.
pub(crate) const DESCRIPTORS: &str =
    "give the worker more descriptors: `ulimit -n`; over TCP it needs one for each rank";

/// Most bytes of a strange value that a message shows.
const MAX_SHOWN: usize = 100;

/// A failed call of a process group.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The group came to its end; so do all later calls, with the same error.
    #[error("{}`{operation}` cannot finish: {}", Details(self), ending.among(members))]
    Ended {
        /// The call in which this rank noticed.
        operation: Operation,
        /// How. Its ranks are those of the group.
        ending: Ending,
        /// Who these are in the job.
        members: Members,
    },
    /// Ranks that cannot become a group: they are of different versions, or want different things.
    #[error("the ranks cannot become a group")]
    Conflict(#[from] Conflict),
    /// A backend that this program does not have.
    #[error("this program has no backend `{backend}` for process groups; ask for `auto` or `tcp`")]
    NoBackend {
        /// It.
        backend: Backend,
    },
    /// A rank that is not in the group.
    #[error("`{operation}` names rank {root}, but the group has {world_size} ranks")]
    NoSuchRank {
        /// The call.
        operation: Operation,
        /// The rank.
        root: Rank,
        /// The size of the group.
        world_size: WorldSize,
    },
    /// A message of a rank to itself. Nothing was sent.
    #[error("`{operation}` names rank {rank}, which is this rank itself: a message has two ends")]
    ToItself {
        /// The call.
        operation: Operation,
        /// This rank.
        rank: Rank,
    },
    /// A buffer or a list whose length does not fit the others. Nothing was sent.
    #[error("`{operation}` takes {expected} {what} here, not {given}")]
    WrongLength {
        /// The call.
        operation: Operation,
        /// What is counted.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        given: usize,
    },
    /// Memory of a kind that this backend does not carry. Nothing was sent.
    #[error(
        "{}`{operation}` was given {given}, but this group carries {} only ({backend})",
        Details(self), .given.other()
    )]
    WrongMemory {
        /// The call.
        operation: Operation,
        /// What carries the group's calls.
        backend: Backend,
        /// What it was given.
        given: MemoryKind,
    },
    /// There is no NCCL.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    NcclMissing(#[from] NcclMissing),
    /// NCCL failed while the group was made.
    #[cfg(feature = "nccl")]
    #[error("NCCL cannot connect the ranks")]
    Nccl(#[from] NcclError),
    /// There is no CUDA device for the group.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    Cuda(#[from] CudaMissing),
    /// The store, through which the ranks find each other, failed.
    #[error("the ranks cannot find each other through the store")]
    Store(#[from] StoreError),
    /// No listener for the other ranks, or no way to wait for them.
    #[error("{}no socket for the other ranks", Details(self))]
    Socket(#[from] io::Error),
    /// This process may open so few files that it cannot be connected with every other rank.
    #[error(
        "{}a group of {world_size} ranks over TCP takes a connection to each of them, and this process may open {limit} files",
        Details(self)
    )]
    FewDescriptors {
        /// The size of the group.
        world_size: WorldSize,
        /// `ulimit -n`.
        limit: u64,
    },
    /// This process cannot find out on which host it is, of which it may open no more files.
    #[error("{}this rank cannot find out on which host it is", Details(self))]
    Host(#[source] io::Error),
    /// This process was forked from the one that joined the group.
    #[error("{}this process was forked from rank {rank}, and is no rank of its groups", Details(self))]
    Forked {
        /// The parent, as a rank of the group.
        rank: Rank,
    },
    /// The ranks are on one host and cannot share memory.
    #[error("no shared memory for the ranks of this host")]
    SharedMemory(#[from] SegmentError),
    /// No thread for a [`Queue`](super::Queue).
    #[error("no thread for the calls of the group")]
    Thread(#[source] io::Error),
    /// A call panicked in the thread of its [`Queue`](super::Queue), and the group ended with it.
    #[error("a call of the group's queue panicked")]
    Panicked,
    /// What the store holds for this group was not written by a rank of it.
    #[error("the store holds `{value}` as `{key}`, which no rank wrote")]
    StrangeEntry {
        /// The key within the group.
        key: String,
        /// The value, or how it begins.
        value: String,
    },
}

impl GroupError {
    /// The rank that was lost, if that is what happened, as a rank of the group.
    #[must_use]
    pub fn lost_rank(&self) -> Option<Rank> {
        match self {
            Self::Ended { ending: Ending::Lost { rank, .. }, .. } => Some(*rank),
            _ => None,
        }
    }

    /// What to do about it, where something is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::WrongMemory { given: MemoryKind::Device, .. } => {
                Some("make the group with NCCL, or copy the data to the host first")
            }
            Self::WrongMemory { given: MemoryKind::Host, .. } => {
                Some("call `run_on_device`, or make a second group for host memory, with `tcp` or `shm`")
            }
            Self::Socket(cause) | Self::Host(cause) if is_own_shortage(cause) => Some(DESCRIPTORS),
            Self::FewDescriptors { .. } => Some(DESCRIPTORS),
            Self::Store(error) => error.hint(),
            Self::SharedMemory(error) => error.hint(),
            Self::Forked { .. } => {
                Some("join a group of another name in the child, or start it as a program of its own")
            }
            Self::Ended { operation: Operation::Join, ending, .. } if ending.is_refusal() => Some(
                "it is gone, or on another machine that was cloned with this one (the same \
                 /proc/sys/kernel/random/boot_id): then ask for `tcp`",
            ),
            #[cfg(feature = "nccl")]
            Self::NcclMissing(missing) => Some(missing.hint()),
            #[cfg(feature = "nccl")]
            Self::Nccl(error) => error.hint(),
            #[cfg(feature = "nccl")]
            Self::Cuda(missing) => Some(missing.hint()),
            _ => None,
        }
    }

    /// As [`lost_rank`](Self::lost_rank), as a rank of the job.
    #[must_use]
    pub fn lost_rank_of_job(&self) -> Option<Rank> {
        match self {
            Self::Ended { ending: Ending::Lost { rank, .. }, members, .. } => Some(members.in_job(*rank)),
            _ => None,
        }
    }

    /// What lies in the store under `key` and is of no rank.
    pub(crate) fn strange_entry(key: &str, value: &[u8]) -> Self {
        let shown = &value[..value.len().min(MAX_SHOWN)];
        Self::StrangeEntry { key: key.to_owned(), value: String::from_utf8_lossy(shown).into_owned() }
    }
}

impl Diagnostic for GroupError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// In this process.
    Host,
    /// On an accelerator.
    Device,
}

impl MemoryKind {
    fn other(self) -> Self {
        match self {
            Self::Host => Self::Device,
            Self::Device => Self::Host,
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host memory",
            Self::Device => "device memory",
        })
    }
}

/// How a group came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// A rank is gone or silent.
    Lost {
        /// The first rank that was missed. Every rank of the group names the same one.
        rank: Rank,
        /// How it was noticed.
        cause: LossCause,
    },
    /// Two ranks made different calls.
    Mismatch {
        /// The other rank.
        rank: Rank,
        /// What it called; `None` if its bytes are no call of this version.
        theirs: Option<Box<Call>>,
        /// What this rank called.
        ours: Box<Call>,
    },
    /// Two ranks made different calls, as one of them reports.
    Disagreed {
        /// The rank that noticed.
        rank: Rank,
        /// What it called.
        call: Box<Call>,
        /// The rank with which it disagrees.
        other: Rank,
        /// What that one called; `None` if its bytes are no call of this version.
        others: Option<Box<Call>>,
    },
    /// What carries the calls, or the device, failed on a rank.
    Failed {
        /// The rank.
        rank: Rank,
        /// Its words.
        reason: String,
    },
}

/// How the loss of a rank was noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossCause {
    /// Its connections closed although it was not done: it exited, crashed or was killed.
    Closed,
    /// A connection to it failed.
    Failed(io::ErrorKind),
    /// It left the group in good order while others still need it.
    Left,
    /// It took no part within the time.
    Timeout(Duration),
    /// Another rank noticed it first.
    Reported,
}

impl From<io::ErrorKind> for LossCause {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            kind => Self::Failed(kind),
        }
    }
}

impl Ending {
    /// Whether nobody listened where a rank said that it does.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Lost { cause: LossCause::Failed(io::ErrorKind::ConnectionRefused), .. })
    }

    /// How messages tell of it in a group of these members.
    pub fn among<'a>(&'a self, members: &'a Members) -> impl fmt::Display + 'a {
        Told { ending: self, members }
    }
}

struct Told<'a> {
    ending: &'a Ending,
    members: &'a Members,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |rank| self.members.name(rank);
        match self.ending {
            Ending::Lost { rank, cause } => write!(f, "lost {}, {cause}", name(*rank)),
            Ending::Mismatch { rank, theirs: Some(theirs), ours } => {
                write!(f, "{} makes {theirs} where this rank makes {ours}", name(*rank))
            }
            Ending::Mismatch { rank, theirs: None, ours } => {
                write!(f, "{} sends what is no call where this rank makes {ours}", name(*rank))
            }
            Ending::Disagreed { rank, call, other, others: Some(others) } => {
                write!(f, "{} makes {call} where {} makes {others}", name(*rank), name(*other))
            }
            Ending::Disagreed { rank, call, other, others: None } => {
                write!(f, "{} makes {call} where {} sends what is no call", name(*rank), name(*other))
            }
            Ending::Failed { rank, reason } => write!(f, "on {}, {reason}", name(*rank)),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.among(&Members::all()).fmt(f)
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("which exited: its connection closed without a word"),
            Self::Failed(kind) => write!(f, "to which the connection failed ({kind})"),
            Self::Left => f.write_str("which has left the group"),
            Self::Timeout(timeout) => write!(f, "which took no part within {timeout:?}"),
            Self::Reported => f.write_str("as another rank reports"),
        }
    }
}
