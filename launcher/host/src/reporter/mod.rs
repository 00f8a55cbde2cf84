//! All output to users, and the error file for the parent process. The modules below word messages, reports and
//! events, without input or output. The terminal has one writer: [`console`](crate::console).
#![expect(clippy::disallowed_methods, reason = "the report of an end has its time")]

pub(crate) mod causes;
mod device;
pub(crate) mod early;
pub(crate) mod events;
pub(crate) mod exception;
pub(crate) mod file_limit;
pub(crate) mod job_event_text;
pub(crate) mod job_report;
pub(crate) mod leftovers;
pub mod local_time;
pub(crate) mod log_space;
pub(crate) mod memory;
pub(crate) mod nodes;
pub(crate) mod parent_file;
pub mod program;
pub(crate) mod rank_table;
pub(crate) mod recurrence;
pub mod stacks;
pub(crate) mod summary;
pub(crate) mod torch_log;
pub(crate) mod torch_report;
mod trace;
pub mod user_log;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use rankrun_contract::report::ErrorReport;
use tracing::Level;

use crate::blocking::BlockingCall;
use crate::console::{Console, OutputKind, write_while_ready};
use crate::error::LaunchError;
use crate::reporter::trace::TraceFormat;
use rankrun_core::exit_code::LAUNCHER_FAILED;
use rankrun_core::plain::plain;
use rankrun_core::posix::ProcessScanError;
use rankrun_core::posix::{Exit, Pid, signal_name};
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::Verbosity;

/// How long the final report waits for a reader that has stopped reading.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers a question, such as `--help`.
#[must_use]
pub fn print(text: &[u8]) -> ExitCode {
    let mut stdout = io::stdout();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        // A reader that closes early, such as `head`, is not a failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_error(&format!("error: cannot write the answer\n  caused by: {error}\n"));
            ExitCode::from(LAUNCHER_FAILED)
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

/// Writes a message of the launcher where there is no console: for a worker started by hand, and before other hosts are
/// reached.
pub fn print_message(text: &str) {
    print_error(&format!("rankrun: {text}\n"));
}

/// Says why no worker is started here; the launcher has not failed.
#[must_use]
pub fn report_excluded_node(name: &str) -> ExitCode {
    let name = plain(name);
    print_error(&format!("rankrun: this node takes no part: `--exclude-node` names `{name}`\n"));
    ExitCode::SUCCESS
}

/// Announces a long wait before the launch, and the awaited answer.
pub fn print_probe_wait(probed: &str, limit: Duration) {
    print_error(&format!("rankrun: waiting up to {} s for {probed}\n", limit.as_secs_f64()));
}

/// Reports that a command such as `devices`, `gc` or `shim` has failed.
#[must_use]
pub fn report_error(error: &dyn std::error::Error, hint: Option<&str>) -> ExitCode {
    print_error(&error_text(error, hint));
    ExitCode::from(LAUNCHER_FAILED)
}

/// Sends the launcher's own log to the console, down to `verbosity`: warnings like all other messages, with times and
/// levels only at a higher verbosity. Under the name torchrun the log has torchrun's form, with the `pid` of the
/// process that the user started.
pub fn trace_to(console: Console, (cli_flavor, verbosity): (CliFlavor, Verbosity), pid: Pid) {
    let level = match verbosity {
        Verbosity::Error => Level::ERROR,
        Verbosity::Warn => Level::WARN,
        Verbosity::Info => Level::INFO,
        Verbosity::Debug => Level::DEBUG,
    };
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_target(false);
    // Only a test that launches twice in one process has set one before.
    let _ = match cli_flavor {
        CliFlavor::Rankrun if verbosity > Verbosity::Warn => {
            tracing::subscriber::set_global_default(subscriber.with_writer(console).finish())
        }
        CliFlavor::Rankrun | CliFlavor::Torchrun => {
            let form =
                if cli_flavor == CliFlavor::Torchrun { TraceFormat::Torch(pid) } else { TraceFormat::Own };
            let subscriber = subscriber.event_format(form).with_writer(console);
            tracing::subscriber::set_global_default(subscriber.finish())
        }
    };
}

/// Refuses a command line with this text. An invalid setting is recorded in `parent_file`; a usage error is not.
pub fn report_refused_command_line(
    text: &str,
    setting_error: Option<&dyn std::error::Error>,
    parent_file: Option<&Path>,
) {
    print_error(text);
    if let Some(error) = setting_error {
        write_parent_file(parent_file, &parent_file::of_error("SettingError", error, SystemTime::now()));
    }
}

/// The launcher could not split into guard and agent, or the guard cannot do its work.
#[must_use]
pub fn report_launch_error(error: &LaunchError, parent_file: Option<&Path>) -> ExitCode {
    print_error(&error_text(error, error.hint().as_deref()));
    write_parent_file(parent_file, &parent_file::of_error("LaunchError", error, SystemTime::now()));
    ExitCode::from(LAUNCHER_FAILED)
}

/// The agent has not answered this signal, and was continued.
pub fn report_unanswered_signal(signal: i32) {
    print_error(&format!(
        "rankrun: the launcher's agent does not answer {}: it is continued if it was stopped; another signal kills the \
         job\n",
        signal_name(signal)
    ));
}

/// The agent died without a report, or was killed since it did not answer a signal; `left` survived.
pub fn report_agent_lost(
    (exit, killed_for): (Exit, Option<i32>),
    leftovers: Result<&[Pid], &ProcessScanError>,
    parent_file: Option<&Path>,
) {
    let fact = match killed_for {
        Some(signal) => format!(
            "the launcher's agent did not answer {}; it was killed, and the job with it",
            signal_name(signal)
        ),
        None => format!("the launcher's agent ended by itself ({exit}); the job was killed"),
    };
    let mut text = format!("error: {fact}\n");
    match leftovers {
        Ok([]) => {}
        Ok(leftovers) => {
            let pids: Vec<String> = leftovers.iter().map(ToString::to_string).collect();
            text.push_str(&format!("  still there, probably stuck in the kernel: pid {}\n", pids.join(", ")));
        }
        Err(error) => text.push_str(&format!("  some may be still there: {error}: {}\n", error.0)),
    }
    if killed_for.is_none() && matches!(exit, Exit::Signal { number: libc::SIGKILL, .. }) {
        text.push_str("\nhint: if no user killed it, the kernel ran out of memory: see `dmesg`\n");
    }
    print_error(&text);
    write_parent_file(parent_file, &parent_file::of_text(&fact, SystemTime::now()));
}

/// The text of an error of the launcher, with its cause and its hint.
#[must_use]
pub fn error_text(error: &dyn std::error::Error, hint: Option<&str>) -> String {
    let caused_by = |source| format!("  caused by: {}\n", file_limit::cause_in_words(source));
    let cause = error.source().map(caused_by).unwrap_or_default();
    let hint = file_limit::hint_of(error, hint).map(|hint| format!("\nhint: {hint}\n")).unwrap_or_default();
    format!("error: {error}\n{cause}{hint}")
}

/// Records the error in the parent's error file, if the parent asked for one. Its file system may not answer.
fn write_parent_file(parent_file: Option<&Path>, report: &ErrorReport) {
    let Some(path) = parent_file.map(Path::to_owned) else { return };
    let (file, report) = (path.display().to_string(), report.clone());
    let call = BlockingCall::start("parent-file", move |_| parent_file::record(&path, &report));
    match call.ok().and_then(|call| call.wait(FINAL_FLUSH_TIMEOUT)) {
        Some(Ok(())) => {}
        Some(Err(error)) => print_error(&format!("warning: {error}\n")),
        None => {
            print_error(&format!("warning: the file system of the error file `{file}` does not answer\n"))
        }
    }
}

/// Writes outside of the agent, where there is no console. The time limit covers a reader that has stopped reading, and
/// a file whose file system does not answer.
fn print_error(text: &str) {
    let stderr = io::stderr();
    let kind = OutputKind::of(stderr.as_fd());
    let write = move |text: &str| {
        write_while_ready(io::stderr().as_fd(), kind, text.as_bytes(), FINAL_FLUSH_TIMEOUT);
    };
    if kind != OutputKind::File {
        write(text);
        return;
    }
    let copy = text.to_owned();
    match BlockingCall::start("message", move |_| write(&copy)) {
        // Without an answer the message is left out.
        Ok(call) => drop(call.wait(FINAL_FLUSH_TIMEOUT)),
        Err(_) => write(text),
    }
}
