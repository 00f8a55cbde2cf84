//! The rankrun launcher.

pub mod agent;
pub mod exit_code;
pub mod placement;
pub mod process;
pub mod logs;
pub mod reporter;
pub mod cli;
pub mod facts;
pub mod spec;
pub mod store;

/// Stub.
#[must_use]
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
