//! The decisions of the agent: what follows from an event. The loop and the system calls are in the crate `rankrun-host`.

pub mod device_report;
pub mod dstate;
pub mod failure;
pub mod leftovers;
pub mod message;
pub mod phase;
pub mod policy;
pub mod reassign;
pub mod rules;
pub mod state;
