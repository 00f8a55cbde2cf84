//! The children that look into one worker which has written no Python stack: `eu-stack` for its native calls, which stops
//! it for some milliseconds, and the reader of Python stacks, which does not.
#![expect(clippy::disallowed_methods, reason = "the tools have the launcher's environment")]

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rankrun_contract::env::KEEP;
use rankrun_core::posix::{Exit, Pid};
use rankrun_core::stacks::eu_stack::{MAX_FRAMES, parse_native_threads};
use rankrun_core::stacks::ptrace::is_denial_text;
use rankrun_core::stacks::{StackSource, WorkerStacks};
use rankrun_core::worker_command::WorkerCommand;

use super::ptrace_facts::ptrace_facts;
use super::python_reader::{FOUND, PYTHON_READER_ARGUMENT, PythonAnswer};
use super::tool_run::{ToolEnd, ToolOutput, ToolRun};
use crate::process::descendants::scan_descendants_of;
use crate::process::probe::own_command;
use crate::process::proc::ProcessStat;
use crate::process::raw_signal::SignalTarget;

/// It would ask servers for the debugging information of each library.
const ASKS_SERVERS: &str = "DEBUGINFOD_URLS";
/// Its messages are compared with the kernel's words.
const LOCALE: &str = "LC_ALL";

/// The programs that look into workers.
#[derive(Debug, Clone)]
pub(super) struct StackTools {
    /// `None` if it is not installed.
    eu_stack: Option<CString>,
    /// As [`own_command`] makes it, for a process id.
    python_reader: fn(Pid, Vec<CString>) -> io::Result<WorkerCommand>,
    environment: Vec<CString>,
}

impl StackTools {
    /// Those of this machine.
    pub(super) fn find() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::with(find_program("eu-stack", &path), |pid, environment| {
            own_command(&format!("{PYTHON_READER_ARGUMENT}{pid}"), environment)
        })
    }

    /// These ones.
    pub(super) fn with(
        eu_stack: Option<PathBuf>,
        python_reader: fn(Pid, Vec<CString>) -> io::Result<WorkerCommand>,
    ) -> Self {
        let changed = [(LOCALE, "C"), (KEEP, "1")];
        let kept = std::env::vars_os()
            .filter(|(name, _)| name != ASKS_SERVERS && changed.iter().all(|(changed, _)| name != changed));
        // A worker that ends meanwhile has not left the tool behind: it is not waited for.
        let variables = kept.chain(changed.map(|(name, value)| (name.into(), value.into())));
        let variable = |(name, value): (OsString, OsString)| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        };
        let eu_stack = eu_stack.and_then(|path| CString::new(path.into_os_string().into_vec()).ok());
        Self { eu_stack, python_reader, environment: variables.filter_map(variable).collect() }
    }

    fn start_native(&self, pid: Pid) -> Result<ToolRun, String> {
        let path = self.eu_stack.clone().ok_or("eu-stack (elfutils) is not installed")?;
        let words = ["-m", "-s", "-n", &MAX_FRAMES.to_string(), "-p", &pid.to_string()];
        let words = words.into_iter().filter_map(|word| CString::new(word).ok());
        let argv = [path.clone()].into_iter().chain(words).collect();
        let envp = self.environment.clone();
        let command = WorkerCommand { path, argv, envp, cpus: None, names_tracer: false };
        ToolRun::start(&command).map_err(|error| format!("eu-stack cannot be started: {error}"))
    }

    fn start_python(&self, pid: Pid) -> Result<ToolRun, String> {
        let command = (self.python_reader)(pid, self.environment.clone());
        command
            .and_then(|command| ToolRun::start(&command))
            .map_err(|error| format!("it cannot be started: {error}"))
    }
}

fn find_program(name: &str, path: &OsStr) -> Option<PathBuf> {
    let file = |folder: &[u8]| Path::new(OsStr::from_bytes(folder)).join(name);
    let folders = path.as_bytes().split(|byte| *byte == b':').filter(|folder| folder.starts_with(b"/"));
    folders.map(file).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.is_file())
        && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// The process of a worker that is worth a look: below a wrapper the first Python, if there is one.
pub(super) fn program_process(worker: Pid) -> Pid {
    if is_python(worker) {
        return worker;
    }
    let below = scan_descendants_of(worker).unwrap_or_default();
    below.into_iter().find(|pid| is_python(*pid)).unwrap_or(worker)
}

/// Whether the process runs the interpreter, by the name of its file or its own name. A program that embeds Python does
/// not count.
fn is_python(pid: Pid) -> bool {
    let is_interpreter = |name: &[u8]| name.starts_with(b"python") || name.starts_with(b"pypy");
    let file = fs::read_link(format!("/proc/{pid}/exe"));
    file.is_ok_and(|file| file.file_name().is_some_and(|name| is_interpreter(name.as_bytes())))
        || fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| is_interpreter(&name))
}

/// The letter of its state; `None` if there is no such process.
fn state_of(pid: Pid) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    ProcessStat::parse(&stat).state().map(str::to_owned)
}

/// The tools that look into one worker.
#[derive(Debug)]
pub(super) struct ToolRuns {
    pid: Pid,
    process: SignalTarget,
    was_stopped: bool,
    native: Result<ToolRun, String>,
    /// `None` for a program that is not Python's.
    python: Option<Result<ToolRun, String>>,
}

impl ToolRuns {
    /// `None` if the process has ended.
    pub(super) fn start(tools: &StackTools, pid: Pid) -> Option<Self> {
        let process = SignalTarget::open(pid);
        let state = state_of(pid).filter(|state| !matches!(state.as_str(), "Z" | "X"))?;
        let python = is_python(pid).then(|| tools.start_python(pid));
        let native = tools.start_native(pid);
        Some(Self { pid, process, was_stopped: state == "T", native, python })
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.runs().flat_map(ToolRun::fds)
    }

    /// Reads what there is; true while one of them runs.
    pub(super) fn advance(&mut self) -> bool {
        self.runs_mut().map(|run| !run.advance()).fold(false, |one, other| one | other)
    }

    /// Whether the reader has found a Python stack.
    pub(super) fn has_python(&self) -> bool {
        matches!(&self.python, Some(Ok(run)) if run.output().starts_with(FOUND))
    }

    /// Kills those that still run.
    pub(super) fn stop(&mut self) {
        self.runs_mut().for_each(ToolRun::stop);
    }

    /// Adds what they have found to the stacks of the worker. [`Self::stop`] was called; waits until then for their ends.
    /// `names_tracer`: the worker was started with `--allow-ptrace`.
    pub(super) fn finish(self, until: Instant, names_tracer: bool, stacks: &mut WorkerStacks) {
        let Self { pid, process, was_stopped, native, python } = self;
        let why_denied = || ptrace_facts(pid).denial(names_tracer).to_string();
        let native = native.and_then(|run| {
            let output = run.finish(until);
            // A tracer that ends by a signal leaves its tracee stopped (ptrace(2), PTRACE_ATTACH).
            let has_detached = matches!(output.end, ToolEnd::Exited(Some(Exit::Code(_))));
            if !has_detached && !was_stopped {
                let _ = process.send(libc::SIGCONT);
            }
            match parse_native_threads(&output.stdout) {
                threads if !threads.is_empty() => Ok(threads),
                _ if is_denial_text(&output.error) => Err(why_denied()),
                _ => Err(format!("eu-stack: {}", output.problem())),
            }
        });
        match native {
            Ok(threads) => {
                for thread in threads {
                    let known = stacks.threads.iter_mut().find(|known| known.id == thread.id);
                    known.into_iter().for_each(|known| known.native.clone_from(&thread.frames));
                }
            }
            Err(why) => stacks.native_absence = Some(why),
        }
        let Some(python) = python.filter(|_| stacks.python.is_empty()) else { return };
        let python = python.and_then(|run| python_stacks(&run.finish(until), why_denied));
        match python {
            Ok(found) => {
                (stacks.python, stacks.is_python_cut) = (found.threads, found.is_cut);
                stacks.python_source = Some(StackSource::PySpy);
                stacks.python_absence = None;
            }
            Err(why) => {
                let handler = stacks.python_absence.take().unwrap_or_default();
                stacks.python_absence = Some(format!("{handler}, and py-spy does not read it: {why}"));
            }
        }
    }

    fn runs(&self) -> impl Iterator<Item = &ToolRun> {
        let python = self.python.as_ref().and_then(|python| python.as_ref().ok());
        self.native.as_ref().ok().into_iter().chain(python)
    }

    fn runs_mut(&mut self) -> impl Iterator<Item = &mut ToolRun> {
        let python = self.python.as_mut().and_then(|python| python.as_mut().ok());
        self.native.as_mut().ok().into_iter().chain(python)
    }
}

fn python_stacks(output: &ToolOutput, why_denied: impl FnOnce() -> String) -> PythonAnswer {
    match serde_json::from_slice::<PythonAnswer>(&output.stdout) {
        Ok(Ok(found)) if !found.threads.is_empty() => Ok(found),
        Ok(Err(text)) if is_denial_text(&text) => Err(why_denied()),
        Ok(Err(text)) => Err(text),
        Ok(Ok(_)) => Err("it has written no stack".to_owned()),
        Err(_) => Err(output.problem()),
    }
}
