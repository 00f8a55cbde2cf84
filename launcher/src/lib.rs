//! The rankrun launcher.

pub mod cli;
pub mod exit_code;
pub mod facts;
pub mod spec;
