//! Errors of process groups, and the failure that ends a group.

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

/// Hint for a process that has reached its limit of open files.
pub(crate) const DESCRIPTOR_HINT: &str =
    "raise the worker's limit of open files with `ulimit -n`; over TCP it needs one for each rank";

/// Bytes of an unexpected value that a message shows at most.
const MAX_SHOWN_BYTES: usize = 100;

/// A failed call of a process group.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A rank was lost, or two ranks disagreed, and the group has ended. All later
    /// calls fail with the same failure.
    #[error("{}`{operation}` cannot finish: {}", Details(self), failure.display_in(members))]
    Failed {
        /// The call in which this rank noticed it.
        operation: Operation,
        /// The failure, in ranks of the group.
        failure: GroupFailure,
        /// Maps ranks of the group to ranks of the job.
        members: Members,
    },
    /// The ranks cannot become a group: their versions, backends or hosts do not match.
    #[error("the ranks cannot form a group")]
    Conflict(#[from] Conflict),
    /// A backend that this build does not support.
    #[error("{}this program is built without the backend `{backend}`", Details(self))]
    NoBackend {
        /// The requested backend.
        backend: Backend,
    },
    /// The call names a rank outside the group.
    #[error("`{operation}` names rank {root}, but the group has {world_size} ranks")]
    NoSuchRank {
        /// The failed call.
        operation: Operation,
        /// The rank that it names.
        root: Rank,
        /// Number of ranks of the group.
        world_size: WorldSize,
    },
    /// A rank sends to itself or receives from itself. No message was sent.
    #[error("{}`{operation}` names rank {rank}, which is this rank", Details(self))]
    ToItself {
        /// The failed call.
        operation: Operation,
        /// The calling rank.
        rank: Rank,
    },
    /// The length of a buffer or a list is wrong. Nothing was sent.
    #[error("`{operation}` needs {expected} {unit}, but the call passes {actual}")]
    WrongLength {
        /// The failed call.
        operation: Operation,
        /// The counted unit, such as `elements`.
        unit: &'static str,
        /// The required length.
        expected: usize,
        /// The given length.
        actual: usize,
    },
    /// Host memory was given to a device group, or device memory to a host group. Nothing was sent.
    #[error(
        "{}`{operation}` gets {actual}, but this group accepts only {} (backend `{backend}`)",
        Details(self), .actual.opposite()
    )]
    WrongMemory {
        /// The failed call.
        operation: Operation,
        /// The backend of the group.
        backend: Backend,
        /// The kind of the given memory.
        actual: MemoryKind,
    },
    /// NCCL's library was not found or cannot be used.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    NcclMissing(#[from] NcclMissing),
    /// NCCL failed while it connected the ranks.
    #[cfg(feature = "nccl")]
    #[error("NCCL cannot connect the ranks")]
    Nccl(#[from] NcclError),
    /// No usable CUDA device.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    Cuda(#[from] CudaMissing),
    /// The store failed while the ranks looked for each other.
    #[error("the ranks cannot find each other through the store")]
    Store(#[from] StoreError),
    /// The system refuses a listener, or `poll` fails.
    #[error("{}this rank cannot open a socket for the other ranks", Details(self))]
    Socket(#[from] io::Error),
    /// The limit of open files is below the number of connections.
    #[error(
        "{}a TCP group of {world_size} ranks needs one connection for each rank, but this process may open {limit} files",
        Details(self)
    )]
    FewDescriptors {
        /// Number of ranks of the group.
        world_size: WorldSize,
        /// The soft limit: `ulimit -n`.
        limit: u64,
    },
    /// The host cannot be identified, since this process may open no more files.
    #[error("{}this rank cannot identify its host", Details(self))]
    Host(#[source] io::Error),
    /// The process was forked after the parent had joined the group.
    #[error("{}this process is a fork of rank {rank} and cannot use the groups of its parent", Details(self))]
    Forked {
        /// The parent, as a rank of the group.
        rank: Rank,
    },
    /// The ranks are on one host and cannot share memory.
    #[error("the ranks of this host cannot share memory")]
    SharedMemory(#[from] SegmentError),
    /// The system refuses a thread for an [`AsyncGroup`](super::AsyncGroup).
    #[error("the group cannot start a thread for its calls")]
    Thread(#[source] io::Error),
    /// A call panicked in the thread of its [`AsyncGroup`](super::AsyncGroup), and the group has ended.
    #[error("a call of the asynchronous group panicked")]
    Panicked,
    /// The store holds a value for this group that no rank of it wrote.
    #[error("{}the store key `{key}` holds `{value}`, which is not an entry of this group", Details(self))]
    StrangeEntry {
        /// Key within the group.
        key: String,
        /// The value, cut to 100 bytes.
        value: String,
    },
}

impl GroupError {
    /// The lost rank, numbered within the group.
    #[must_use]
    pub fn lost_rank(&self) -> Option<Rank> {
        match self {
            Self::Failed { failure: GroupFailure::Lost { rank, .. }, .. } => Some(*rank),
            _ => None,
        }
    }

    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::WrongMemory { actual: MemoryKind::Device, .. } => {
                Some("join the group with the backend `nccl`, or copy the data to the host first")
            }
            Self::WrongMemory { actual: MemoryKind::Host, .. } => {
                Some("call `run_on_device`, or join a second group for host memory with `tcp` or `shm`")
            }
            Self::Socket(cause) | Self::Host(cause) if is_own_shortage(cause) => Some(DESCRIPTOR_HINT),
            Self::FewDescriptors { .. } => Some(DESCRIPTOR_HINT),
            Self::Store(error) => error.hint(),
            Self::Conflict(conflict) => Some(conflict.hint()),
            Self::NoBackend { .. } => Some("choose the backend `auto` or `tcp`"),
            Self::ToItself { .. } => Some("name another rank"),
            Self::StrangeEntry { .. } => Some("check that no other program writes to the store"),
            Self::SharedMemory(error) => error.hint(),
            Self::Forked { .. } => Some(
                "join a group with another name in the child process, or start the child as a separate program",
            ),
            Self::Failed { operation: Operation::Join, failure, .. } if failure.is_connection_refused() => {
                Some(
                    "check that this rank still runs; if its machine is a clone of this one (the same \
                 /proc/sys/kernel/random/boot_id), set RANKRUN_BACKEND=tcp",
                )
            }
            #[cfg(feature = "nccl")]
            Self::NcclMissing(missing) => Some(missing.hint()),
            #[cfg(feature = "nccl")]
            Self::Nccl(error) => error.hint(),
            #[cfg(feature = "nccl")]
            Self::Cuda(missing) => Some(missing.hint()),
            _ => None,
        }
    }

    /// The lost rank, numbered within the job.
    #[must_use]
    pub fn lost_global_rank(&self) -> Option<Rank> {
        match self {
            Self::Failed { failure: GroupFailure::Lost { rank, .. }, members, .. } => {
                Some(members.global_rank(*rank))
            }
            _ => None,
        }
    }

    /// The error for a store value under `key` that no rank wrote.
    pub(crate) fn unexpected_entry(key: &str, value: &[u8]) -> Self {
        let shown = &value[..value.len().min(MAX_SHOWN_BYTES)];
        Self::StrangeEntry { key: key.to_owned(), value: String::from_utf8_lossy(shown).into_owned() }
    }
}

impl Diagnostic for GroupError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

/// Where memory lies: on the host or on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of this process.
    Host,
    /// Memory of an accelerator.
    Device,
}

impl MemoryKind {
    fn opposite(self) -> Self {
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

/// Why a group ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupFailure {
    /// A rank is gone, or silent for the group's timeout.
    Lost {
        /// The lost rank. Every rank of the group names the same one.
        rank: Rank,
        /// How the loss was detected.
        cause: LossCause,
    },
    /// Another rank and this one made different calls.
    Mismatch {
        /// The other rank.
        rank: Rank,
        /// Its call; `None` if its bytes are not a call of this version.
        other_call: Option<Box<Call>>,
        /// The call of this rank.
        own_call: Box<Call>,
    },
    /// Two other ranks made different calls, as one of them reports.
    Disagreed {
        /// The rank that reports it.
        rank: Rank,
        /// The call of that rank.
        call: Box<Call>,
        /// The rank with a different call.
        other_rank: Rank,
        /// Its call; `None` if its bytes are not a call of this version.
        other_call: Option<Box<Call>>,
    },
    /// The transport or the device failed on a rank.
    RankFailed {
        /// The rank with the failure.
        rank: Rank,
        /// The error message of that rank.
        reason: String,
    },
}

/// How the loss of a rank was detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossCause {
    /// Its connections closed before it left the group: it exited, crashed or was killed.
    Closed,
    /// The connection to it failed with an IO error.
    ConnectionFailed(io::ErrorKind),
    /// It left the group while another rank still needed it.
    Left,
    /// It made no call within this timeout.
    Timeout(Duration),
    /// Another rank detected the loss and reported it.
    Reported,
}

impl From<io::ErrorKind> for LossCause {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            kind => Self::ConnectionFailed(kind),
        }
    }
}

impl GroupFailure {
    /// Whether the connection was refused: no process listens at the published address.
    fn is_connection_refused(&self) -> bool {
        matches!(
            self,
            Self::Lost { cause: LossCause::ConnectionFailed(io::ErrorKind::ConnectionRefused), .. }
        )
    }

    /// Formats the failure with the rank numbers of these members.
    pub fn display_in<'a>(&'a self, members: &'a Members) -> impl fmt::Display + 'a {
        FailureText { failure: self, members }
    }
}

struct FailureText<'a> {
    failure: &'a GroupFailure,
    members: &'a Members,
}

impl fmt::Display for FailureText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |rank| self.members.display_rank(rank);
        match self.failure {
            GroupFailure::Lost { rank, cause } => write!(f, "lost {}, {cause}", name(*rank)),
            GroupFailure::Mismatch { rank, other_call: Some(other_call), own_call } => {
                write!(f, "{} makes {other_call} where this rank makes {own_call}", name(*rank))
            }
            GroupFailure::Mismatch { rank, other_call: None, own_call } => {
                write!(f, "{} sends bytes that are not a call, where this rank makes {own_call}", name(*rank))
            }
            GroupFailure::Disagreed { rank, call, other_rank: other, other_call: Some(other_call) } => {
                write!(f, "{} makes {call} where {} makes {other_call}", name(*rank), name(*other))
            }
            GroupFailure::Disagreed { rank, call, other_rank: other, other_call: None } => {
                write!(
                    f,
                    "{} makes {call} where {} sends bytes that are not a call",
                    name(*rank),
                    name(*other)
                )
            }
            GroupFailure::RankFailed { rank, reason } => write!(f, "on {}: {reason}", name(*rank)),
        }
    }
}

impl fmt::Display for GroupFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display_in(&Members::all()).fmt(f)
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("which exited: its connection closed without a leave message"),
            Self::ConnectionFailed(kind) => write!(f, "to which the connection failed ({kind})"),
            Self::Left => f.write_str("which has left the group"),
            Self::Timeout(timeout) => write!(f, "which took no part within {timeout:?}"),
            Self::Reported => f.write_str("as another rank reports"),
        }
    }
}
