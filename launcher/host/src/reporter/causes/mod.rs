//! The hint of a failure report: the cause that a worker's end, report and last lines point to, the most certain
//! first. Pure.
//!
//! It owns the table `RULES`. A rule reads [`Clues`], asks [`Surroundings`] for further facts of the machine, and
//! returns one sentence. The failure report prints it.

mod exits;
mod network;
mod python;
mod text;
mod torch;

pub(crate) use text::{is_exception, without_rank};

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rankrun_contract::env::Master;

use rankrun_core::plain::plain;
use rankrun_core::posix::Exit;

/// The known facts of the worker that failed first.
#[derive(Debug, Clone)]
pub(crate) struct Clues<'a> {
    /// How the failed worker ended: exit code or signal.
    pub exit: Exit,
    /// The program that the failed worker ran.
    pub program: Program<'a>,
    /// The message of its error file.
    pub message: Option<&'a str>,
    /// The last lines of the worker's output.
    pub tail: &'a [String],
    /// The number of workers on this node.
    pub workers: u32,
    /// The store that the workers rendezvous at.
    pub master: Option<&'a Master>,
    /// Whether the job's nodes are more than one host.
    pub several_hosts: bool,
}

/// The program of a worker, as far as rules distinguish it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Program<'a> {
    /// A Python script or module (`-m`).
    Python {
        /// The Python interpreter that runs it.
        python: &'a Path,
    },
    /// A program that is not run by Python.
    Other {
        /// The path of the program's file.
        path: &'a Path,
    },
}

/// Facts of the machine around the worker, read on demand.
pub(crate) trait Surroundings {
    /// A variable of the launcher's environment; an empty value is a value.
    fn variable(&self, name: &str) -> Option<String>;
    /// A variable, where an empty value counts as none.
    fn non_empty_variable(&self, name: &str) -> Option<String> {
        self.variable(name).filter(|value| !value.is_empty())
    }
    /// The other Python interpreters of this user, and whether they have the module.
    fn other_pythons(&self, module: &str) -> Vec<OtherPython>;
    /// The file or folder by which the working folder has that module.
    fn local_module_file(&self, module: &str) -> Option<String>;
    /// The process that listens on a port.
    fn listener(&self, port: u16) -> Option<Listener>;
    /// The size of `/dev/shm` in bytes.
    fn shared_memory(&self) -> Option<u64>;
    /// The reason that the kernel does not execute this file or folder whatever its permissions are.
    fn never_executable(&self, path: &Path) -> Option<NeverExecutable>;
    /// Whether the first line of a script ends in CRLF.
    fn has_carriage_return(&self, script: &Path) -> bool;
}

/// Why `chmod +x` does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeverExecutable {
    /// It is a folder.
    Folder,
    /// Its file system is mounted with `noexec`.
    Mount,
}

/// A Python interpreter that the worker did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherPython {
    /// The path of the interpreter's executable.
    pub path: PathBuf,
    /// Whether the module is among its installed packages.
    pub has_module: bool,
}

/// A process that listens on the port in question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listener {
    /// The process id of the listener.
    pub pid: i32,
    /// The listener's command name in `/proc`.
    pub name: String,
}

/// So many lines at the end of the output may have the cause, where none is surely the final error.
const LAST_LINES: usize = 3;

struct Rule {
    /// The cause's name, for the tests.
    name: &'static str,
    /// The hint, where the clues fit.
    hint: fn(&Clues<'_>, &dyn Surroundings) -> Option<String>,
    /// The part of the clues that it reads.
    reads: ClueKind,
}

/// The part of the clues that a rule reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClueKind {
    /// The final error alone: earlier lines tell of problems that the worker survived.
    FinalError,
    /// Every line. A hint of the worker's own is better.
    Text,
    /// The exit code or signal, and the machine.
    Exit,
}

const fn of_text(name: &'static str, hint: fn(&Clues<'_>, &dyn Surroundings) -> Option<String>) -> Rule {
    Rule { name, hint, reads: ClueKind::FinalError }
}

const fn of_exit(name: &'static str, hint: fn(&Clues<'_>, &dyn Surroundings) -> Option<String>) -> Rule {
    Rule { name, hint, reads: ClueKind::Exit }
}

const RULES: &[Rule] = &[
    Rule { name: "abort at exit", hint: torch::abort_at_exit, reads: ClueKind::Text },
    of_text("no NCCL or no GPU", torch::missing_gpu),
    of_text("gloo on the loopback", network::gloo_on_loopback),
    of_text("shared memory", torch::shared_memory),
    of_text("data loader", torch::data_loader),
    of_text("address in use", network::address_in_use),
    of_text("module of another name", python::shadowed_module),
    of_text("module missing", python::missing_module),
    of_text("library missing", exits::missing_library),
    of_text("carriage returns", exits::carriage_returns),
    of_text("command that cannot run", exits::command_hint),
    of_exit("bus error", torch::bus_error),
    of_exit("exit code of a shell", exits::shell_code),
    of_exit("signal", exits::signal_hint),
];

/// The hint of the first row that fits.
#[must_use]
pub(crate) fn hint(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    named_hint(clues, surroundings).map(|(_, hint)| hint)
}

fn named_hint(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<(&'static str, String)> {
    // The worker's output does not explain a SIGKILL, which comes from outside.
    if matches!(clues.exit, Exit::Signal { number: libc::SIGKILL, .. }) {
        return None;
    }
    let has_own_hint = clues.tail.iter().any(|line| line.starts_with("hint: "));
    let find = |clues: &Clues<'_>, reads: &[ClueKind]| {
        let rules = RULES.iter().filter(|rule| reads.contains(&rule.reads));
        let usable = rules.filter(|rule| rule.reads == ClueKind::Exit || !has_own_hint);
        let mut hints = usable.filter_map(|rule| Some((rule.name, (rule.hint)(clues, surroundings)?)));
        hints.next()
    };
    let perhaps = |(name, hint): (&'static str, String)| (name, format!("perhaps {hint}"));
    let found = find(clues, &[ClueKind::Text]).or_else(|| {
        let (final_error, is_sure) = clues.of_final_error();
        let found = find(&final_error, &[ClueKind::FinalError]);
        if is_sure { found } else { found.map(perhaps) }
    });
    let found = found.or_else(|| find(&clues.of_last_lines()?, &[ClueKind::FinalError]).map(perhaps));
    let found = found.or_else(|| find(clues, &[ClueKind::Exit]));
    found.map(|(name, hint)| (name, plain(&hint)))
}

impl<'a> Clues<'a> {
    /// Whether the worker's lines may tell why it ended: most signals come from outside.
    fn has_text_of_end(&self) -> bool {
        matches!(self.exit, Exit::Code(_) | Exit::Signal { number: libc::SIGABRT, .. })
    }

    fn with_lines(&self, message: Option<&'a str>, tail: &'a [String]) -> Self {
        Self { message, tail, ..self.clone() }
    }

    /// The clues with the final error as their only text, and whether it is surely the reason for the end.
    fn of_final_error(&self) -> (Self, bool) {
        let none = (self.with_lines(None, &[]), true);
        if !self.has_text_of_end() {
            return none;
        }
        if self.message.is_some_and(|message| !message.trim().is_empty()) {
            return (self.with_lines(self.message, &[]), true);
        }
        let Some(error) = self.final_error() else { return none };
        let is_sure = match (self.exit, self.program) {
            // Python's exit code after an exception is 1: another one is the script's decision.
            (Exit::Code(code), Program::Python { .. }) if error.is_of_python => code == 1,
            (Exit::Code(_), _) => true,
            (Exit::Signal { .. }, _) => self.tail[error.line].trim_start().starts_with("what():"),
        };
        (self.with_lines(None, &self.tail[error.line..=error.line]), is_sure)
    }

    /// The clues with the last lines as their only text, where no error of Python is the final one.
    fn of_last_lines(&self) -> Option<Self> {
        let is_reported = self.message.is_some_and(|message| !message.trim().is_empty());
        let error = self.final_error().filter(|error| !error.is_of_python)?;
        let tail = &self.tail[error.line.saturating_sub(LAST_LINES - 1)..=error.line];
        (self.has_text_of_end() && !is_reported).then(|| self.with_lines(None, tail))
    }
}
