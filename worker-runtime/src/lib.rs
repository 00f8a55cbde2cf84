//! The worker runtime of rankrun, for training programs in Rust.
//!
//! ```no_run
//! use rankrun_worker::{GroupError, GroupOptions, ReduceOp, WorkerContext};
//!
//! fn train(context: &WorkerContext) -> Result<(), GroupError> {
//!     let mut group = context.process_group(&GroupOptions::default())?;
//!     let mut gradients = [0.5f32; 1000];
//!     group.all_reduce(&mut gradients, ReduceOp::Mean)
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     rankrun_worker::run(|context| train(context))
//! }
//! ```
//!
//! [`Ddp`] trains a model with one process for each device, [`DataParallel`] with several devices in one process.
//!
//! Everything blocks, without an async runtime. Threads are started only by an [`AsyncGroup`], by
//! [`DataParallel`] while it computes, and by groups on GPUs. Without a launcher a program runs as a world of
//! one; [`ThreadGroup`] makes a world of threads, for tests.
#![warn(missing_docs)]

mod backtrace;
pub mod checkpoint;
mod clock;
pub mod context;
#[cfg(any(feature = "cuda", feature = "nccl"))]
pub mod cuda;
pub mod data_parallel;
pub mod ddp;
pub mod diagnostic;
pub mod elastic;
mod heartbeat;
#[cfg(any(feature = "cuda", feature = "nccl"))]
mod library;
pub mod process_group;
mod program_note;
mod progress_page;
mod regular_file;
pub mod report;
pub mod sampler;
mod socket;
pub mod store;
pub mod trace;

pub use context::WorkerContext;
pub use data_parallel::DataParallel;
pub use ddp::{Ddp, DdpOptions};
pub use diagnostic::ExitError;
pub use elastic::{ElasticRun, run_elastic};
pub use process_group::{
    AsyncGroup, Group, GroupError, GroupOptions, ProcessGroup, ReduceOp, ThreadGroup, Work,
};
pub use rankrun_contract::device::Device;
pub use rankrun_contract::rank::{Rank, WorldSize};
pub use report::run;
pub use store::{StoreError, TcpStore};
