//! Tracing spans with the rank and the step.
//!
//! The runtime logs through the crate `tracing`: debug events, and a warning for each checkpoint that it
//! skips. [`run`](crate::run) and [`run_elastic`](crate::run_elastic) enter the span `worker` with the rank,
//! so that every line of the program's thread carries it. Nothing is printed unless the program installs a
//! subscriber before `run`; with the crate `tracing-subscriber` that is one line:
//!
//! ```
//! use rankrun_worker::trace;
//!
//! fn main() -> std::process::ExitCode {
//!     tracing_subscriber::fmt().with_writer(std::io::stderr).init();
//!     rankrun_worker::run(|context| {
//!         for step in 0..2 {
//!             let _span = trace::step_span(step);
//!             // INFO worker{rank=0 world_size=1 restart=0}:step{step=1}: my_training: loss=0.5
//!             tracing::info!(loss = 0.5);
//!         }
//!         // A new thread has no span of its own.
//!         let span = trace::worker_span(context);
//!         std::thread::spawn(move || span.in_scope(|| tracing::info!("beside the training")));
//!         Ok::<(), std::io::Error>(())
//!     })
//! }
//! ```

use tracing::span::EnteredSpan;
use tracing::{Span, info_span};

use crate::context::WorkerContext;

/// The span of a worker's program: rank, world size and number of restarts.
#[must_use]
pub fn worker_span(context: &WorkerContext) -> Span {
    info_span!(
        "worker",
        rank = context.rank().0,
        world_size = context.world_size().get(),
        restart = context.restart_count().0
    )
}

/// Enters the span of a step until the guard is dropped.
pub fn step_span(step: u64) -> EnteredSpan {
    info_span!("step", step).entered()
}
