//! How a worker ends: a panic or an error becomes the error file that the launcher reads, and an exit status that is not 0.

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
use crate::process_group::parting;
use crate::{backtrace, clock, diagnostic, regular_file, trace};

/// The first failure of this process: later ones are mostly its consequences.
static REPORTED: OnceLock<()> = OnceLock::new();

/// The first rank whose loss a group of this process noticed.
static LOST: OnceLock<Rank> = OnceLock::new();

/// Whether the program runs in [`run`], which tells people what happens.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// Keeps for the error file that a group lost this rank: a program may wrap the error as it likes, or panic
/// over it, and still the launcher finds the root cause.
pub(crate) fn note_loss(rank: Rank) {
    // The first one counts: later ones are mostly its consequences.
    LOST.get_or_init(|| rank);
}

/// Runs a worker's program and turns its end into an exit status: 0 after a success, 1 after a panic, and after an error its
/// own code ([`ExitError`](crate::ExitError), [`Diagnostic::exit_code`](crate::diagnostic::Diagnostic::exit_code)), or 1 where
/// it has none. Errors and panics are written to standard error and to the error file.
///
/// The connections of groups that the program dropped stay open until it has ended well, or until the process
/// is gone: other ranks fail of this one's failure only after it has been reported.
pub fn run<E: Into<Box<dyn Error>>>(program: impl FnOnce(&WorkerContext) -> Result<(), E>) -> ExitCode {
    install_panic_hook();
    parting::begin();
    IS_RUNNING.store(true, Ordering::Relaxed);
    // Nothing of the program is looked at after a panic.
    let ended = catch_unwind(AssertUnwindSafe(|| match WorkerContext::from_env() {
        Ok(context) => trace::worker(&context)
            .in_scope(|| __rust_begin_short_backtrace(program, &context).map_err(Into::into)),
        Err(error) => Err(error.into()),
    }));
    match ended {
        Ok(Ok(())) => {
            parting::finish();
            ExitCode::SUCCESS
        }
        Ok(Err(error)) => {
            report_error(error.as_ref());
            exit_code(error.as_ref())
        }
        // The hook has said it.
        Err(_) => ExitCode::FAILURE,
    }
}

/// The name is a mark in backtraces, as that of the standard library: frames before this call are not the program's.
#[inline(never)]
fn __rust_begin_short_backtrace<T>(program: impl FnOnce(&WorkerContext) -> T, context: &WorkerContext) -> T {
    let result = program(context);
    // Without it the compiler may replace this frame by that of the program.
    std::hint::black_box(());
    result
}

/// The exit code that the error or one of its causes asks for. An error is never a success.
fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    diagnostic::exit_code(error).filter(|&code| code != 0).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Makes a panic write the error file, in any thread; its message goes to standard error with the rank in
/// front of it.
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
    say(&text);
    write_file(&message, &text);
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let message = format!("panic: {}", info.payload_as_str().unwrap_or("a value that is no text"));
    let place = info.location().map(|place| format!("\nat {place}"));
    let text = message.clone() + &place.unwrap_or_default();
    // The reader of the file cannot ask for the backtrace afterwards; on the terminal RUST_BACKTRACE decides.
    let full = format!("{text}\n{}", program_backtrace());
    let is_wanted = Backtrace::capture().status() == BacktraceStatus::Captured;
    // The launcher shows the file: the same frames on standard error would be a second copy.
    let is_shown = write_file(&message, &full) && !may_restart();
    say(if is_wanted && !is_shown { &full } else { &text });
}

/// Whether the launcher has a restart left. It shows the error file of a failure only where that ends the job.
fn may_restart() -> bool {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    number(RESTART_COUNT).unwrap_or(0) < number(MAX_RESTARTS).unwrap_or(0)
}

/// The frames of the program up to this call; with `RUST_BACKTRACE=full` all frames.
fn program_backtrace() -> String {
    let whole = Backtrace::force_capture().to_string();
    let is_full = std::env::var_os("RUST_BACKTRACE").is_some_and(|wanted| wanted == "full");
    if is_full { whole } else { backtrace::of_program(&whole) }
}

/// Says on standard error what a person should know of a program in [`run`]. Elsewhere a library stays silent.
pub(crate) fn warn(text: &str) {
    if IS_RUNNING.load(Ordering::Relaxed) {
        say(&format!("warning: {text}"));
    }
}

/// One write, with the rank in front, so that lines of several ranks neither mix nor lose their origin.
fn say(text: &str) {
    let rank = std::env::var_os(RANK).map(|rank| format!("rank {}: ", rank.to_string_lossy()));
    let text = format!("{}{}\n", rank.unwrap_or_default(), text.trim_end().replace('\n', "\n  "));
    // There is nobody left to tell if standard error is closed.
    drop(std::io::stderr().write_all(text.as_bytes()));
}

/// Whether the error file has it now: there is one, and this is the first failure.
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
    let written = replace(path, &report::render(&report));
    if let Err(error) = &written {
        say(&format!("error: cannot write the error file `{}`: {error}", path.display()));
    }
    written.is_ok()
}

/// Nothing waits for the reader of a FIFO: the rank has to end.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut file = regular_file::open(path, OpenOptions::new().write(true).create(true).truncate(true))?;
    file.write_all(text.as_bytes())
}
