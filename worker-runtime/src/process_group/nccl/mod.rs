//! The backend on NVIDIA GPUs. It loads NCCL's library at run time, joins the ranks over the store, and watches the
//! calls, so that one that hangs ends with an error. Device pointers and streams come from the program, which owns them.

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
