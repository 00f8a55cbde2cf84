//! How a worker ends: a panic or an error becomes the error file that the launcher reads, and exit status 1.

#![expect(clippy::disallowed_methods, reason = "a shell: the environment names the file and the rank")]

use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use rankrun_contract::env::{ERROR_FILE, RANK};
use rankrun_contract::rank::Rank;
use rankrun_contract::report::{self, ErrorReport};

use crate::checkpoint::CheckpointError;
use crate::clock;
use crate::context::WorkerContext;
use crate::ddp::DdpError;
use crate::process_group::{GroupError, parting};
use crate::trace;

/// The first failure of this process: later ones are mostly its consequences.
static REPORTED: OnceLock<()> = OnceLock::new();

/// The first rank whose loss a group of this process noticed.
static LOST: OnceLock<Rank> = OnceLock::new();

/// Keeps for the error file that a group lost this rank: a program may wrap the error as it likes, or panic
/// over it, and still the launcher finds the root cause.
pub(crate) fn note_loss(rank: Rank) {
    // The first one counts: later ones are mostly its consequences.
    LOST.get_or_init(|| rank);
}

/// Runs a worker's program and turns its end into an exit status: 0, or 1 after an error or a panic, which is
/// written to standard error and to the error file.
///
/// The connections of groups that the program dropped stay open until it has ended well, or until the process
/// is gone: other ranks fail of this one's failure only after it has been reported.
pub fn run<E: Into<Box<dyn Error>>>(program: impl FnOnce(&WorkerContext) -> Result<(), E>) -> ExitCode {
    install_panic_hook();
    parting::begin();
    // Nothing of the program is looked at after a panic.
    let ended = catch_unwind(AssertUnwindSafe(|| match WorkerContext::from_env() {
        Ok(context) => trace::worker(&context).in_scope(|| program(&context).map_err(Into::into)),
        Err(error) => Err(error.into()),
    }));
    match ended {
        Ok(Ok(())) => {
            parting::finish();
            ExitCode::SUCCESS
        }
        Ok(Err(error)) => {
            report_error(error.as_ref());
            ExitCode::FAILURE
        }
        // The hook has said it.
        Err(_) => ExitCode::FAILURE,
    }
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
    if let Some(hint) = hint(error) {
        text.push_str(&format!("\nhint: {hint}"));
    }
    say(&text);
    write_file(&message, &text);
}

/// What the first error of ours among it and its causes advises.
fn hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let of_one = |error: &(dyn Error + 'static)| {
        let of_group = error.downcast_ref::<GroupError>().and_then(GroupError::hint);
        let of_ddp = || error.downcast_ref::<DdpError>().and_then(DdpError::hint);
        let of_checkpoint = || error.downcast_ref::<CheckpointError>().and_then(CheckpointError::hint);
        of_group.or_else(of_ddp).or_else(of_checkpoint)
    };
    std::iter::successors(Some(error), |&error| error.source()).find_map(of_one)
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let message = format!("panic: {}", info.payload_as_str().unwrap_or("a value that is no text"));
    let place = info.location().map(|place| format!("\nat {place}"));
    let text = message.clone() + &place.unwrap_or_default();
    // The reader of the file cannot ask for the backtrace afterwards; on the terminal RUST_BACKTRACE decides.
    let backtrace = Backtrace::force_capture();
    let full = format!("{text}\n{backtrace}");
    let is_wanted = Backtrace::capture().status() == BacktraceStatus::Captured;
    say(if is_wanted { &full } else { &text });
    write_file(&message, &full);
}

/// One write, with the rank in front, so that lines of several ranks neither mix nor lose their origin.
fn say(text: &str) {
    let rank = std::env::var_os(RANK).map(|rank| format!("rank {}: ", rank.to_string_lossy()));
    let text = format!("{}{}\n", rank.unwrap_or_default(), text.trim_end().replace('\n', "\n  "));
    // There is nobody left to tell if standard error is closed.
    drop(std::io::stderr().write_all(text.as_bytes()));
}

fn write_file(message: &str, call_stack: &str) {
    let path = std::env::var_os(ERROR_FILE).filter(|path: &OsString| !path.is_empty());
    let (Some(path), Ok(())) = (path, REPORTED.set(())) else { return };
    let report = ErrorReport {
        message: message.to_owned(),
        callstack: Some(call_stack.to_owned()),
        unix_seconds: Some(clock::unix_seconds()),
        lost_rank: LOST.get().copied(),
    };
    if let Err(error) = std::fs::write(&path, report::render(&report)) {
        say(&format!("error: cannot write the error file `{}`: {error}", Path::new(&path).display()));
    }
}
