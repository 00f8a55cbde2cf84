//! The rankrun launcher.

pub mod agent;
pub mod exit_code;
pub mod placement;
pub mod process;
pub mod spec;
