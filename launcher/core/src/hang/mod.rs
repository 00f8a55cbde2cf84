//! Whether the workers of a job make progress, from what they show of themselves.
//!
//! A worker shows two things, each optional: heartbeats that its program sends ([`heartbeat`]), and the collectives
//! that PyTorch's flight recorder lists ([`flight_recorder`]) or NCCL counts ([`ras`]). [`evidence`] keeps the last of both per rank and when it
//! changed. [`verdict`] judges all ranks together, and [`sentence`] has the words. [`shared`] is what nodes tell each other. The
//! agent's `hang` collects the evidence. [`trainer_status`] reads reports of Hugging Face's Trainer, which stand for
//! heartbeats. Pure.

pub mod evidence;
pub mod file_timer;
pub mod flight_recorder;
pub mod heartbeat;
pub mod pickle;
mod place;
pub mod ras;
pub mod recorder_dumps;
pub mod recorder_handlers;
pub mod sentence;
pub mod shared;
pub mod trainer_access;
pub mod trainer_request;
pub mod trainer_status;
pub mod verdict;
