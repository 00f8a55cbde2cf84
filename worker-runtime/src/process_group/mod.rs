//! Collective operations among the ranks of a job.
//!
//! Ranks meet in the store, where each says what it wants and where it is, and choose what carries their calls. Parts of a group
//! become [groups of their own](Group::split), which know the group that they come from no more.
//!
//! Every rank makes the same calls in the same order, messages between two ranks included. Different calls in one step are an
//! error on every rank that names both calls and both ranks; a rank whose call needed nothing from the others, such as the root of
//! a broadcast, hears of it in a later one. Values are reduced in rank order, so the result has the same bits on every rank and in
//! every run.
//!
//! A call ends with its result, or with an error: at once when a rank dies, and when the group's timeout has
//! passed at the latest. Every rank then names the same lost rank, also those that noticed only because
//! another one gave up; all later calls fail in the same way.
//!
//! A rank [leaves](Group::leave) in good order: a call that needs it then fails at once on the others.
//! A group that is only dropped is left when the program under [`run`](crate::run) returns success or joins
//! its next group, and until then others that need this rank wait for it, up to the group's timeout; without
//! `run` it is left at once. A rank that ends its process without leaving, or whose program fails or panics,
//! counts as lost, as soon as its process is gone.

mod buffer;
mod collective;
mod cpu;
mod device;
mod element;
mod error;
mod fork;
mod group;
mod host;
mod layout;
mod meet;
mod members;
mod memory;
mod message;
mod mixed;
#[cfg(feature = "nccl")]
pub mod nccl;
pub(crate) mod parting;
mod plan;
mod poll;
mod queue;
mod reduce;
mod shm;
mod split;
mod tcp;
mod transport;
mod unidentified;
mod verdict;

use std::fmt::{self, Debug};
use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

pub use buffer::{Buffer, Memory};
pub use collective::{Collective, HostCollective, Length};
pub use device::{DeviceCollective, DeviceMemory, Stream};
pub use element::{DataType, Element, Reduction, bf16, f16};
pub use error::{Ending, GroupError, LossCause, MemoryKind};
pub use group::Group;
pub use members::Members;
pub use memory::MemoryGroup;
pub use message::{Call, Operation};
pub use plan::{Conflict, Wish};
pub use queue::{Queue, Work};
pub use shm::SegmentError;

/// How a group is made.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// Its name: ranks meet under the same one.
    pub name: String,
    /// How long joining, and each call, may take. It must be longer than ranks may be apart from each other.
    pub timeout: Duration,
    /// What carries its calls, on all ranks alike; `None` leaves it to the environment variable `RANKRUN_BACKEND`, and where
    /// there is none to [`Wish::Auto`].
    pub backend: Option<Wish>,
}

impl Default for GroupOptions {
    /// The name `default`, and torch's half an hour.
    fn default() -> Self {
        Self { name: "default".to_owned(), timeout: Duration::from_secs(30 * 60), backend: None }
    }
}

/// What carries the calls of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Memory of this process: ranks that are threads, or a group of one rank.
    Memory,
    /// Memory that the ranks of one host share.
    Shm,
    /// TCP connections.
    Tcp,
    /// Shared memory within each host, TCP between hosts.
    Mixed,
    /// NCCL.
    Nccl,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Mixed => "mixed",
            Self::Nccl => "nccl",
        })
    }
}

/// What a backend of a [`Group`] does: one call at a time, on memory of one element type.
///
/// It ends each call with its result, or within the group's timeout with an error that names the operation and the rank that
/// is missing; after an ending every further call fails with the same one.
pub trait ProcessGroup: Debug + Send {
    /// This rank.
    fn rank(&self) -> Rank;

    /// How many ranks there are.
    fn world_size(&self) -> WorldSize;

    /// What carries the calls.
    fn backend(&self) -> Backend;

    /// Performs a call on memory of this process: whole elements of `data_type`, aligned for it.
    ///
    /// # Errors
    /// The group has ended, a length does not fit, or there is no such rank.
    fn run(&mut self, data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError>;

    /// Puts a call on a stream of a device; it is done when the stream has come to it. The memory holds whole elements of
    /// `data_type`.
    ///
    /// # Safety
    /// All memory of `work` is memory of the group's device, is written by nobody and, where the call writes it, read by nobody
    /// until the call is done. `stream` is a stream of the device's current context, and stays until
    /// [`wait`](Self::wait) has returned for it or the group is left or dropped.
    ///
    /// # Errors
    /// As [`run`](Self::run); this group carries host memory only.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn run_on_device(
        &mut self,
        data_type: DataType,
        work: DeviceCollective<'_>,
        stream: Stream,
    ) -> Result<(), GroupError> {
        let _ = (data_type, stream);
        let (operation, backend) = (work.operation(), self.backend());
        Err(GroupError::WrongMemory { operation, backend, given: MemoryKind::Device })
    }

    /// Waits until all is done that was put on `stream`; at once where nothing ever is.
    ///
    /// # Safety
    /// `stream` is a stream of the device's current context.
    ///
    /// # Errors
    /// How the group ended, if it did.
    #[expect(unsafe_code, reason = "the caller vouches for the stream")]
    unsafe fn wait(&mut self, stream: Stream) -> Result<(), GroupError> {
        let _ = stream;
        Ok(())
    }

    /// Makes sub-groups: ranks that say the same color become a group of their own, in which they are ordered by key, and by rank
    /// where keys are equal. A rank without a color takes part and gets no group. It is `MPI_Comm_split` and `ncclCommSplit`.
    ///
    /// # Errors
    /// The group has ended, or the sub-group does not come about, which does not end this one.
    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError>;

    /// Zeroed memory that this backend carries with the fewest copies.
    fn allocate(&mut self, bytes: usize) -> Memory {
        Memory::on_heap(bytes)
    }

    /// Leaves in good order: the other ranks hear at once that this one is done with the group. No call follows.
    fn leave(&mut self);
}
