//! Where the workers of a node stand: the Python stacks that their handlers wrote, and what the kernel shows of their
//! threads. `host/src/stacks` takes them; the functions here read and fold them. Pure.

pub mod faulthandler;
pub mod fold;

use serde::{Deserialize, Serialize};

/// One worker. A field that is added is `#[serde(default)]`: a job of an older launcher leaves it out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStacks {
    pub rank: u32,
    pub local_rank: u32,
    /// The process that was looked at: the worker, or the Python below its wrapper.
    pub pid: Option<i32>,
    /// Python's threads in the order of the dump: the newest first, the main thread last.
    pub python: Vec<PythonThread>,
    /// Threads or calls are left out, since the dump was longer than what is read of it or than Python writes.
    pub is_python_cut: bool,
    /// The main thread is among those left out.
    #[serde(default)]
    pub is_main_missing: bool,
    /// Why there is no Python stack.
    pub python_absence: Option<String>,
    /// The threads as the kernel shows them; the main thread first.
    pub threads: Vec<KernelThread>,
    /// Why the kernel shows none.
    pub kernel_absence: Option<String>,
}

/// The stack of one Python thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonThread {
    /// Its number in Python, in hexadecimal.
    pub id: String,
    /// Its name, from Python 3.14 on.
    pub name: Option<String>,
    /// The signal was handled on it.
    pub is_current: bool,
    /// The innermost call first.
    pub frames: Vec<Frame>,
}

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    pub function: String,
    pub file: String,
    pub line: u32,
}

/// One thread as the kernel shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelThread {
    pub id: i32,
    pub name: String,
    /// The letter of `/proc/PID/stat`.
    pub state: String,
    /// The function of the kernel in which it waits, where that may be seen.
    pub wait_channel: Option<String>,
    /// The system call in which it waits, where that may be seen.
    pub system_call: Option<String>,
    pub cpu_seconds: f64,
}

impl WorkerStacks {
    /// The stack of the main thread; of the thread with the handler, if any, where the main thread is left out.
    #[must_use]
    pub fn main_thread(&self) -> Option<&PythonThread> {
        if self.is_main_missing {
            return self.python.iter().find(|thread| thread.is_current);
        }
        self.python.last()
    }
}

impl KernelThread {
    /// As in `sleeps in futex`.
    #[must_use]
    pub fn activity(&self) -> String {
        let state = match self.state.as_str() {
            "R" => "runs",
            "S" => "sleeps",
            "D" => "sleeps uninterruptibly",
            "T" | "t" => "is stopped",
            "Z" | "X" => "has ended",
            "I" => "is idle",
            _ => "is in an unknown state",
        };
        let place = self.system_call.as_ref().or(self.wait_channel.as_ref());
        place.map_or_else(|| state.to_owned(), |place| format!("{state} in {place}"))
    }
}

impl Frame {
    /// Whether the file is the program's own, and not one of Python or of an installed package.
    #[must_use]
    pub fn is_of_program(&self) -> bool {
        const FOREIGN: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python"];
        !self.file.starts_with('<') && !FOREIGN.iter().any(|part| self.file.contains(part))
    }

    /// As in `load_batch (data.py:17)`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} ({})", self.function, self.line_text())
    }

    /// As in `data.py:17`.
    #[must_use]
    pub fn line_text(&self) -> String {
        format!("{}:{}", self.file.rsplit('/').next().unwrap_or_default(), self.line)
    }
}
