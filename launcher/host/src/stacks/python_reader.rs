//! Reads the Python stacks of a process from its memory, by the crate `py-spy`, in a child: this program itself, started
//! with [`PYTHON_READER_ARGUMENT`]. The memory changes while it is read, so the crate may fail, hang or crash on it.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use rankrun_core::exit_code::USAGE;
use rankrun_core::stacks::PythonThread;
use serde::{Deserialize, Serialize};

use crate::process::probe::become_probe;

/// Stands first on the command line of the child, glued to the process id. In no help: for the launcher itself alone.
pub(super) const PYTHON_READER_ARGUMENT: &str = "--rankrun-python-stacks=";

/// What the child writes on its output, as JSON; the error in the words of the crate.
pub(super) type PythonAnswer = Result<PythonStacks, String>;

/// The stacks of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PythonStacks {
    /// The main thread last.
    pub(super) threads: Vec<PythonThread>,
    /// It has more threads or more calls.
    pub(super) is_cut: bool,
}

/// How an answer with stacks begins.
pub(super) const FOUND: &[u8] = b"{\"Ok\":";

/// The process id, if this word makes the process such a child; the first on its command line.
#[must_use]
pub fn parse_python_reader_argument(argument: &OsStr) -> Option<&[u8]> {
    argument.as_bytes().strip_prefix(PYTHON_READER_ARGUMENT.as_bytes())
}

/// The main function of the child: reads, writes the answer to standard output, and ends.
#[must_use]
pub fn run_python_reader(pid: &[u8]) -> ExitCode {
    let Some(pid) = str::from_utf8(pid).ok().and_then(|pid| pid.parse().ok()) else {
        return ExitCode::from(USAGE);
    };
    become_probe(c"rankrun-py-spy");
    let answer = serde_json::to_vec(&read_python_stacks(pid)).unwrap_or_default();
    let mut stdout = io::stdout();
    match stdout.write_all(&answer).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(feature = "py-spy")]
fn read_python_stacks(pid: i32) -> PythonAnswer {
    use std::thread::sleep;
    use std::time::Duration;

    use py_spy::config::LockingStrategy;
    use py_spy::{Config, PythonSpy};
    use rankrun_core::stacks::ptrace::is_denial_text;

    /// A list that changes while it is read is whole a moment later.
    const TRIES: usize = 4;
    const PAUSE: Duration = Duration::from_millis(20);

    // The worker is never stopped.
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let mut tries = 0;
    loop {
        tries += 1;
        let read = PythonSpy::new(pid, &config).and_then(|mut process| process.get_stack_traces());
        let problem = match read {
            Ok(traces) if !traces.is_empty() => return Ok(python_stacks(traces, pid)),
            Ok(_) => "Python has no thread".to_owned(),
            Err(error) => format!("{error:#}").lines().next().unwrap_or_default().to_owned(),
        };
        if tries == TRIES || is_denial_text(&problem) {
            return Err(problem);
        }
        sleep(PAUSE);
    }
}

/// The main thread last, as in a dump of `faulthandler`.
#[cfg(feature = "py-spy")]
fn python_stacks(mut traces: Vec<py_spy::StackTrace>, pid: i32) -> PythonStacks {
    use rankrun_core::stacks::Frame;

    /// As many as a dump of `faulthandler` has.
    const MAX_THREADS: usize = 100;
    const MAX_FRAMES: usize = 100;

    let is_cut = traces.len() > MAX_THREADS || traces.iter().any(|trace| trace.frames.len() > MAX_FRAMES);
    let is_main = |trace: &py_spy::StackTrace| trace.os_thread_id == u64::try_from(pid).ok();
    traces.sort_by_key(is_main);
    traces.drain(..traces.len().saturating_sub(MAX_THREADS));
    let frame = |frame: py_spy::Frame| Frame {
        function: frame.name,
        file: frame.filename,
        line: u32::try_from(frame.line).unwrap_or_default(),
    };
    let thread = |trace: py_spy::StackTrace| PythonThread {
        id: format!("{:x}", trace.thread_id),
        name: trace.thread_name,
        is_current: false,
        frames: trace.frames.into_iter().take(MAX_FRAMES).map(frame).collect(),
    };
    PythonStacks { threads: traces.into_iter().map(thread).collect(), is_cut }
}

#[cfg(not(feature = "py-spy"))]
fn read_python_stacks(_pid: i32) -> PythonAnswer {
    Err("this launcher was built without it".to_owned())
}
