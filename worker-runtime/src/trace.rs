//! Spans that say which rank speaks, and at which step.
//!
//! The runtime tells what it does through the crate `tracing`: debug events, and a warning for each checkpoint that it refuses.
//! [`run`](crate::run) and [`run_elastic`](crate::run_elastic) enter the span `worker` for the program, with its rank, so that every
//! line that the program's thread logs carries it. Nothing is printed unless the program installs a subscriber, before `run` enters
//! the span; with the crate `tracing-subscriber` that is one line:
//!
//! ```
//! use rankrun_worker::trace;
//!
//! fn main() -> std::process::ExitCode {
//!     tracing_subscriber::fmt().with_writer(std::io::stderr).init();
//!     rankrun_worker::run(|context| {
//!         for step in 0..2 {
//!             let _span = trace::step(step);
//!             // INFO worker{rank=0 world_size=1 restart=0}:step{step=1}: my_training: loss=0.5
//!             tracing::info!(loss = 0.5);
//!         }
//!         // A thread has no span unless it is given one.
//!         let span = trace::worker(context);
//!         std::thread::spawn(move || span.in_scope(|| tracing::info!("beside the training")));
//!         Ok::<(), std::io::Error>(())
//!     })
//! }
//! ```

use tracing::span::EnteredSpan;
use tracing::{Span, info_span};

use crate::context::WorkerContext;

/// The span of a worker's program: its rank, the size of the world, and how often the workers were started again.
#[must_use]
pub fn worker(context: &WorkerContext) -> Span {
    info_span!(
        "worker",
        rank = context.rank().0,
        world_size = context.world_size().get(),
        restart = context.restart_count().0
    )
}

/// Enters the span of a step, until the guard is dropped.
pub fn step(step: u64) -> EnteredSpan {
    info_span!("step", step).entered()
}
