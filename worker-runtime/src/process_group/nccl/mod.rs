//! The backend on NVIDIA GPUs. It loads NCCL's library at run time.

mod call_log;
mod call_numbers;
mod communicator;
mod detached;
mod explain;
mod find;
mod group;
mod join;
mod library;
mod ops;
mod other_ranks;
mod peers;
mod symbols;
mod watch;

pub use communicator::Communicator;
pub use group::NcclGroup;
pub use library::{Nccl, NcclCode, NcclError, NcclId, NcclMissing, NcclVersion};
pub use ops::NcclCalls;
