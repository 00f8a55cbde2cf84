//! The decisions of the agent: the state of a job on this node, and what follows from an event. Inputs come from the
//! loop of the agent in the crate `rankrun-host`, which carries out the resulting actions. This room starts no process,
//! opens no socket and reads no clock: each function takes the time as an argument.

pub mod device_report;
pub(crate) mod dstate;
pub mod failure;
pub mod leftovers;
pub mod message;
pub mod phase;
pub mod policy;
pub mod reassign;
pub mod recurrence;
pub mod rules;
pub mod signal_scope;
pub mod state;
