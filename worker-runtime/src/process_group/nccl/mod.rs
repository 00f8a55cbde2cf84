//! Collectives on NVIDIA's GPUs.

mod apart;
mod calls;
mod communicator;
mod explain;
mod find;
mod group;
mod join;
mod log;
mod numbers;
mod ops;
mod others;
mod peers;
mod symbols;
mod watch;

pub use calls::{Nccl, NcclCode, NcclError, NcclId, NcclMissing, NcclVersion};
pub use communicator::Communicator;
pub use group::NcclGroup;
pub use ops::Calls;
