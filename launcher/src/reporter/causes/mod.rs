//! The hint of a failure report: the cause that a worker's end, report and last lines point to, the most certain
//! first. Pure.
//!
//! It owns the table `RULES`. A rule reads [`Clues`], asks [`Surroundings`] for further facts of the machine, and
//! returns one sentence. The failure card prints it.

mod exits;
mod network;
mod python;
mod text;
mod torch;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rankrun_contract::env::Master;

use crate::process::Exit;
use crate::reporter::plain::plain;

/// The known facts of the worker that failed first.
#[derive(Debug, Clone)]
pub struct Clues<'a> {
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
pub enum Program<'a> {
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
pub trait Surroundings {
    /// A variable of the launcher's environment; an empty value is a value.
    fn variable(&self, name: &str) -> Option<String>;
    /// A variable, where an empty value counts as none.
    fn filled(&self, name: &str) -> Option<String> {
        self.variable(name).filter(|value| !value.is_empty())
    }
    /// The other Python interpreters of this user, and whether they have the module.
    fn other_pythons(&self, module: &str) -> Vec<OtherPython>;
    /// The file or folder by which the working folder has that module.
    fn module_here(&self, module: &str) -> Option<String>;
    /// The process that listens on a port.
    fn listener(&self, port: u16) -> Option<Listener>;
    /// The size of `/dev/shm` in bytes.
    fn shared_memory(&self) -> Option<u64>;
    /// Whether the first line of a script ends in CRLF.
    fn has_carriage_return(&self, script: &Path) -> bool;
}

/// A Python interpreter that the worker did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherPython {
    /// The path of the interpreter's executable.
    pub path: PathBuf,
    /// Whether the module is among its installed packages.
    pub has_module: bool,
}

/// A process that listens on the port in question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The process id of the listener.
    pub pid: i32,
    /// The listener's command name in `/proc`.
    pub name: String,
}

struct Rule {
    /// The cause's name, for the tests.
    name: &'static str,
    /// The hint, where the clues fit.
    hint: fn(&Clues<'_>, &dyn Surroundings) -> Option<String>,
    /// Whether a hint of the worker's own is better.
    is_of_text: bool,
}

const fn of_text(name: &'static str, hint: fn(&Clues<'_>, &dyn Surroundings) -> Option<String>) -> Rule {
    Rule { name, hint, is_of_text: true }
}

const fn of_exit(name: &'static str, hint: fn(&Clues<'_>, &dyn Surroundings) -> Option<String>) -> Rule {
    Rule { name, hint, is_of_text: false }
}

const RULES: &[Rule] = &[
    of_text("abort at exit", torch::abort_at_exit),
    of_text("no NCCL or no GPU", torch::without_gpu),
    of_text("gloo on the loopback", network::gloo_on_loopback),
    of_text("shared memory", torch::shared_memory),
    of_text("data loader", torch::data_loader),
    of_text("address in use", network::address_in_use),
    of_text("module of another name", python::shadowed_module),
    of_text("module missing", python::missing_module),
    of_text("library missing", exits::missing_library),
    of_exit("carriage returns", exits::carriage_returns),
    of_text("command that cannot run", exits::command),
    of_exit("exit code of a shell", exits::shell_code),
    of_exit("signal", exits::signal),
];

/// The hint of the first row that fits.
#[must_use]
pub fn hint(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    named_hint(clues, surroundings).map(|(_, hint)| hint)
}

fn named_hint(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<(&'static str, String)> {
    // The worker's output does not explain a SIGKILL, which comes from outside.
    if matches!(clues.exit, Exit::Signal { number: libc::SIGKILL, .. }) {
        return None;
    }
    let has_own_hint = clues.tail.iter().any(|line| line.starts_with("hint: "));
    let rules = RULES.iter().filter(|rule| !(rule.is_of_text && has_own_hint));
    rules.into_iter().find_map(|rule| (rule.hint)(clues, surroundings).map(|hint| (rule.name, plain(&hint))))
}
