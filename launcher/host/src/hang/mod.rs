//! Collects what the workers of a generation show of their progress, and judges it, on a thread of its own.
//!
//! [`channels`] has the FIFOs and socket paths that workers find in their environment, `recorder_client` asks
//! PyTorch's flight recorder, `trainer_server` answers Hugging Face's Trainer, and `progress_watch` is the thread. The verdict is `rankrun_core::hang`'s, what follows
//! from it the state's.

pub mod board;
pub mod channels;
pub mod file_timer;
pub(crate) mod progress_watch;
mod ras_client;
mod recorder_client;
pub(crate) mod trainer_server;
mod watched_worker;
