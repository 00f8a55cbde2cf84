//! Runs a worker's program and reports its failure: a panic or an error becomes the error file that the
//! launcher reads, a message on standard error, and a non-zero exit status.

#![expect(clippy::disallowed_methods, reason = "a shell: the environment names the file and the rank")]

use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rankrun_contract::env::{ERROR_FILE, MAX_RESTARTS, RANK, RESTART_COUNT};
use rankrun_contract::rank::Rank;
use rankrun_contract::report::{self, ErrorReport};

use crate::context::WorkerContext;
use crate::process_group::dropped_groups;
use crate::{backtrace, clock, diagnostic, regular_file, trace};

/// Set by the first failure of this process: later ones are mostly its consequences.
static REPORTED: OnceLock<()> = OnceLock::new();

/// The first lost rank that a group of this process detected.
static LOST: OnceLock<Rank> = OnceLock::new();

/// Whether the program runs in [`run`], which prints warnings.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// Keeps a lost rank for the error file: a program may wrap the error or panic over it, and the
/// launcher still finds the root cause.
pub(crate) fn set_lost_rank(rank: Rank) {
    // The first one counts: later ones are mostly its consequences.
    LOST.get_or_init(|| rank);
}

/// Runs a worker's program and turns its result into an exit status: 0 after success, 1 after a panic. After
/// an error it is the error's own code ([`ExitError`](crate::ExitError),
/// [`Diagnostic::exit_code`](crate::diagnostic::Diagnostic::exit_code)) or 1. Errors and panics are written
/// to standard error and to the error file.
///
/// The connections of dropped groups stay open until the program has succeeded or the process is gone: other
/// ranks fail only after this failure has been reported.
pub fn run<E: Into<Box<dyn Error>>>(program: impl FnOnce(&WorkerContext) -> Result<(), E>) -> ExitCode {
    install_panic_hook();
    dropped_groups::keep_dropped_groups();
    IS_RUNNING.store(true, Ordering::Relaxed);
    // No state of the program is used after a panic.
    let ended = catch_unwind(AssertUnwindSafe(|| match WorkerContext::from_env() {
        Ok(context) => trace::worker_span(&context)
            .in_scope(|| __rust_begin_short_backtrace(program, &context).map_err(Into::into)),
        Err(error) => Err(error.into()),
    }));
    match ended {
        Ok(Ok(())) => {
            dropped_groups::leave_and_stop_keeping();
            ExitCode::SUCCESS
        }
        Ok(Err(error)) => {
            report_error(error.as_ref());
            exit_code(error.as_ref())
        }
        // The panic hook has reported it.
        Err(_) => ExitCode::FAILURE,
    }
}

/// The name marks a frame in backtraces, as in the standard library: earlier frames are not the program's.
#[inline(never)]
fn __rust_begin_short_backtrace<T>(program: impl FnOnce(&WorkerContext) -> T, context: &WorkerContext) -> T {
    let result = program(context);
    // Otherwise the compiler may merge this frame with that of the program.
    std::hint::black_box(());
    result
}

/// The exit code of an error, never 0.
fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    diagnostic::exit_code(error).filter(|&code| code != 0).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Installs a panic hook that writes the error file, in any thread, and prints the message
/// with the rank to standard error.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(report_panic));
}

/// Writes an error and its causes to standard error and, if it is the first failure, to the error file.
pub fn report_error(error: &(dyn Error + 'static)) {
    let (mut details, mut message) = (String::new(), error.to_string());
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        details.push_str(&format!("\ncaused by: {error}"));
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text.push_str(&details);
    if let Some(hint) = diagnostic::hint(error) {
        text.push_str(&format!("\nhint: {hint}"));
    }
    write_stderr(&text);
    write_file(&message, &text);
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let message = format!("panic: {}", info.payload_as_str().unwrap_or("a value that is not text"));
    let place = info.location().map(|place| format!("\nat {place}"));
    let text = message.clone() + &place.unwrap_or_default();
    // The file must have the backtrace, since it cannot be added later; on the terminal RUST_BACKTRACE
    // decides.
    let full = format!("{text}\n{}", program_backtrace());
    let is_wanted = Backtrace::capture().status() == BacktraceStatus::Captured;
    // The launcher prints the file, and standard error would repeat the frames.
    let is_shown = write_file(&message, &full) && !may_restart();
    write_stderr(if is_wanted && !is_shown { &full } else { &text });
}

/// Whether the launcher has a restart left. It prints the error file only of a failure that ends the job.
fn may_restart() -> bool {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    number(RESTART_COUNT).unwrap_or(0) < number(MAX_RESTARTS).unwrap_or(0)
}

/// The frames of the program up to this call; all frames with `RUST_BACKTRACE=full`.
fn program_backtrace() -> String {
    let whole = Backtrace::force_capture().to_string();
    let is_full = std::env::var_os("RUST_BACKTRACE").is_some_and(|wanted| wanted == "full");
    if is_full { whole } else { backtrace::program_frames(&whole) }
}

/// Prints a warning to standard error, for programs in [`run`] only.
pub(crate) fn warn(text: &str) {
    if IS_RUNNING.load(Ordering::Relaxed) {
        write_stderr(&format!("warning: {text}"));
    }
}

/// Prints text in one write, with the rank in front, so that lines of several ranks do not mix.
fn write_stderr(text: &str) {
    let rank = std::env::var_os(RANK).map(|rank| format!("rank {}: ", rank.to_string_lossy()));
    let text = format!("{}{}\n", rank.unwrap_or_default(), text.trim_end().replace('\n', "\n  "));
    // Without standard error there is no other place for the message.
    drop(std::io::stderr().write_all(text.as_bytes()));
}

/// Writes the error file for the first failure; returns whether it was written.
fn write_file(message: &str, call_stack: &str) -> bool {
    let path = std::env::var_os(ERROR_FILE).filter(|path: &OsString| !path.is_empty());
    let (Some(path), Ok(())) = (path, REPORTED.set(())) else { return false };
    let report = ErrorReport {
        message: message.to_owned(),
        callstack: Some(call_stack.to_owned()),
        unix_seconds: Some(clock::unix_seconds()),
        lost_rank: LOST.get().copied(),
    };
    let path = Path::new(&path);
    if regular_file::is_null(path) {
        return false;
    }
    let written = replace_file(path, &report::render(&report));
    if let Err(error) = &written {
        write_stderr(&format!("error: cannot write the error file `{}`: {error}", path.display()));
    }
    written.is_ok()
}

/// Replaces the content without waiting for the reader of a FIFO: the rank has to end.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let mut file = regular_file::open(path, OpenOptions::new().write(true).create(true).truncate(true))?;
    file.write_all(text.as_bytes())
}
