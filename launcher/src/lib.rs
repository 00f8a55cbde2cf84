//! The rankrun launcher.

pub mod exit_code;
pub mod logs;
pub mod reporter;
pub mod spec;
