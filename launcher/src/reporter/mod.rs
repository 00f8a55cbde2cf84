//! Everything told to people. The terminal has one writer: [`console`].

pub mod console;
pub mod happening;
mod row;
pub mod screen;
pub mod summary;
pub mod voice;

use std::io::{self, Write};
use std::process::ExitCode;

use nix::unistd::Pid;

use tracing::Level;

use crate::cli::{CliError, Verbosity};
use crate::error::LaunchError;
use crate::exit_code::LAUNCHER_FAILED;
use crate::process::Exit;
use crate::reporter::console::Console;

/// Answers a question, such as `--help`.
#[must_use]
pub fn print(text: &str) -> ExitCode {
    // A reader that has seen enough, such as `head`, is no failure.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Sends the launcher's own log to the console, down to `verbosity`.
pub fn trace_to(console: Console, verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Error => Level::ERROR,
        Verbosity::Warn => Level::WARN,
        Verbosity::Info => Level::INFO,
        Verbosity::Debug => Level::DEBUG,
    };
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_target(false);
    // Only a test that launches twice in one process has set one before.
    let _ = tracing::subscriber::set_global_default(subscriber.with_writer(console).finish());
}

/// Refuses a command line.
#[must_use]
pub fn refuse(error: &CliError) -> ExitCode {
    complain(&error.render());
    ExitCode::from(error.exit_code())
}

/// The launcher could not split into guard and agent, or the guard cannot do its work.
#[must_use]
pub fn failed_to_start(error: &LaunchError) -> ExitCode {
    let mut text = format!("error: {error}\n");
    if let Some(source) = std::error::Error::source(error) {
        text.push_str(&format!("  caused by: {source}\n"));
    }
    complain(&text);
    ExitCode::from(LAUNCHER_FAILED)
}

/// The agent died without a word; `left` could not be ended.
pub fn agent_lost(exit: Exit, left: &[Pid]) {
    let mut text = format!("error: the launcher's agent ended by itself ({exit}); the job was killed\n");
    if !left.is_empty() {
        let pids: Vec<String> = left.iter().map(ToString::to_string).collect();
        text.push_str(&format!("  still there, probably stuck in the kernel: pid {}\n", pids.join(", ")));
    }
    if matches!(exit, Exit::Signal { number: libc::SIGKILL, .. }) {
        text.push_str("\nhint: if nobody killed it, the kernel ran out of memory: see `dmesg`\n");
    }
    complain(&text);
}

/// From the guard, which has no console.
fn complain(text: &str) {
    // Nobody is left to tell when this does not arrive.
    let _ = io::stderr().write_all(text.as_bytes());
}
