//! Everything told to people. The terminal has one writer: [`console`].

pub mod console;
pub mod happening;
mod row;
pub mod screen;
pub mod summary;
pub mod voice;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use nix::unistd::Pid;

use tracing::Level;

use crate::cli::{CliError, Verbosity};
use crate::error::LaunchError;
use crate::exit_code::LAUNCHER_FAILED;
use crate::process::{Exit, signal_name};
use crate::reporter::console::{Console, write_while_ready};
use crate::shim::ShimError;

/// How long a reader that has stopped reading holds up our last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

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

/// Refuses a command line; `way_out` is said of what we cannot do and torchrun can.
#[must_use]
pub fn refuse(error: &CliError, way_out: Option<&str>) -> ExitCode {
    let way_out = way_out.filter(|_| error.is_not_supported()).map(|line| format!("{line}\n"));
    complain(&(error.render() + &way_out.unwrap_or_default()));
    ExitCode::from(error.exit_code())
}

/// The shim cannot be changed or read.
#[must_use]
pub fn refuse_shim(error: &ShimError) -> ExitCode {
    let mut text = format!("error: {error}\n");
    if let Some(source) = std::error::Error::source(error) {
        text.push_str(&format!("  caused by: {source}\n"));
    }
    if let Some(hint) = error.hint() {
        text.push_str(&format!("\nhint: {hint}\n"));
    }
    complain(&text);
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

/// The agent died without a word, or was killed because it did not answer a signal; `left` could not be ended.
pub fn agent_lost(exit: Exit, killed_for: Option<i32>, left: &[Pid]) {
    let mut text = match killed_for {
        Some(signal) => format!(
            "error: the launcher's agent did not answer {}; it was killed, and the job with it\n",
            signal_name(signal)
        ),
        None => format!("error: the launcher's agent ended by itself ({exit}); the job was killed\n"),
    };
    if !left.is_empty() {
        let pids: Vec<String> = left.iter().map(ToString::to_string).collect();
        text.push_str(&format!("  still there, probably stuck in the kernel: pid {}\n", pids.join(", ")));
    }
    if killed_for.is_none() && matches!(exit, Exit::Signal { number: libc::SIGKILL, .. }) {
        text.push_str("\nhint: if nobody killed it, the kernel ran out of memory: see `dmesg`\n");
    }
    complain(&text);
}

/// From outside the agent, where there is no console. Never waits for long: somebody may have stopped reading.
fn complain(text: &str) {
    let stderr = io::stderr();
    let _ = write_while_ready(stderr.as_fd(), text.as_bytes(), LAST_WORDS);
}
