//! The rankrun launcher.

pub mod exit_code;
pub mod spec;
pub mod store;
