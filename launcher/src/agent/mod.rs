//! The agent: the launcher proper, and the only owner of the job's state.

pub mod message;
pub mod state;
