//! Collective operations among the ranks of a job.
//!
//! Owns groups, their transports (shared memory, TCP, NCCL, threads) and the agreement on failures. It does
//! not start processes and has no launcher code. Ranks find each other through the [store](crate::store). A
//! group can be [split](Group::split) into independent groups.
//!
//! Every rank makes the same calls in the same order, messages between two ranks included. If two ranks make
//! different calls, every rank gets an error that names both calls and both ranks; a rank whose call needed
//! nothing from the others, such as the root of a broadcast, gets it in a later call. Values are reduced in
//! rank order, so that every rank gets the same bits in every run.
//!
//! A call ends with its result or with an error: at once when a rank dies, at the latest after the group's
//! timeout. Every rank then names the same lost rank, and all later calls fail with the same failure.
//!
//! A rank [leaves](Group::leave) in good order: a call that needs it then fails at once on the others. A
//! dropped group is left when the program under [`run`](crate::run) returns success or joins its next group;
//! until then other ranks that need this rank wait up to the group's timeout. Without `run` it is left at
//! once. A rank counts as lost if its process ends without leaving, or if its program fails or panics, as
//! soon as the process is gone.

mod async_group;
mod buffer;
mod collective;
mod cpu;
mod device;
pub(crate) mod dropped_groups;
mod element;
mod error;
mod fork;
mod group;
mod host;
mod layout;
mod members;
mod message;
mod mixed;
#[cfg(feature = "nccl")]
pub mod nccl;
mod plan;
mod poll;
mod reduce;
mod rendezvous;
mod shm;
mod split;
mod tcp;
mod threads;
mod transport;
mod unidentified;
mod verdict;

use std::fmt::{self, Debug};
use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

pub use async_group::{AsyncGroup, Work};
pub use buffer::{Buffer, Memory};
pub use collective::{Collective, HostCollective, Length};
pub use device::{DeviceCollective, DeviceMemory, Stream};
pub use element::{DataType, Element, ReduceOp, bf16, f16};
pub use error::{GroupError, GroupFailure, LossCause, MemoryKind};
pub use group::Group;
pub use members::Members;
pub use message::{Call, Operation};
pub use plan::{BackendChoice, Conflict};
pub use shm::SegmentError;
pub use threads::ThreadGroup;

/// Options for joining a group.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// Name of the group; ranks with the same name join each other.
    pub name: String,
    /// Limit for joining and for each call. It must exceed the time by which ranks may be apart.
    pub timeout: Duration,
    /// The backend, the same on all ranks. `None` reads the environment
    /// variable `RANKRUN_BACKEND`, which defaults to [`BackendChoice::Auto`].
    pub backend: Option<BackendChoice>,
}

impl Default for GroupOptions {
    /// The name `default`, and torch's timeout of 30 minutes.
    fn default() -> Self {
        Self { name: "default".to_owned(), timeout: Duration::from_secs(30 * 60), backend: None }
    }
}

/// The mechanism that carries the calls of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Memory of this process: ranks are threads, or the group has one rank.
    Memory,
    /// Memory shared by the ranks of one host.
    Shm,
    /// One TCP connection for each pair of ranks.
    Tcp,
    /// Shared memory within each host, TCP between hosts.
    Mixed,
    /// NVIDIA's library, for device memory.
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

/// The backend of a [`Group`]: performs one call at a time, on memory of one element type.
///
/// Each call ends with its result, or within the group's timeout with an error that names the operation and
/// the missing rank. After a failure every further call fails with the same one.
pub trait ProcessGroup: Debug + Send {
    /// Rank of this process within the group.
    fn rank(&self) -> Rank;

    /// Number of ranks in the group.
    fn world_size(&self) -> WorldSize;

    /// The mechanism that carries the calls.
    fn backend(&self) -> Backend;

    /// Performs a call on memory of this process, which holds whole, aligned elements of `data_type`.
    ///
    /// # Errors
    /// The group has ended, a length does not fit, or there is no such rank.
    fn run(&mut self, data_type: DataType, collective: HostCollective<'_>) -> Result<(), GroupError>;

    /// Enqueues a call on a stream of a device; it is done when the stream reaches it. The
    /// memory holds whole elements of `data_type`.
    ///
    /// # Safety
    /// All memory of `work` lies on the group's device. Until the call is done, no other code writes it, and
    /// no other code reads memory that the call writes. `stream` belongs to the device's current context and
    /// stays valid until [`synchronize`](Self::synchronize) has returned for it or the group is left or dropped.
    ///
    /// # Errors
    /// As [`run`](Self::run). A group on host memory refuses the call.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn run_on_device(
        &mut self,
        data_type: DataType,
        collective: DeviceCollective<'_>,
        stream: Stream,
    ) -> Result<(), GroupError> {
        let _ = (data_type, stream);
        let (operation, backend) = (collective.operation(), self.backend());
        Err(GroupError::WrongMemory { operation, backend, actual: MemoryKind::Device })
    }

    /// Waits until all work on `stream` is done. A group on host memory returns at once.
    ///
    /// # Safety
    /// `stream` belongs to the device's current context.
    ///
    /// # Errors
    /// The failure that ended the group.
    #[expect(unsafe_code, reason = "the caller vouches for the stream")]
    unsafe fn synchronize(&mut self, stream: Stream) -> Result<(), GroupError> {
        let _ = stream;
        Ok(())
    }

    /// Makes sub-groups, as `MPI_Comm_split` and `ncclCommSplit` do: ranks with the same color become a
    /// group, ordered by key, and by rank where keys are equal. A rank without a color takes part in
    /// the call and gets no group.
    ///
    /// # Errors
    /// The group has ended; or the sub-group cannot be connected, which does not end this group.
    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError>;

    /// Allocates zeroed memory that this backend transfers with the fewest copies.
    fn allocate(&mut self, bytes: usize) -> Memory {
        Memory::on_heap(bytes)
    }

    /// Leaves in good order: the other ranks learn at once that this rank makes no more calls.
    fn leave(&mut self);
}
