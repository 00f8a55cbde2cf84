//! Where the workers of a node stand: their Python stacks, and what the kernel and a tracer show of their threads.
//! `host/src/stacks` takes them; the functions here read and fold them. Pure.

pub mod eu_stack;
pub mod faulthandler;
pub mod fold;
pub mod ptrace;

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
    /// What read the Python stack.
    #[serde(default)]
    pub python_source: Option<StackSource>,
    /// Why there is no Python stack.
    pub python_absence: Option<String>,
    /// The threads as the kernel shows them; the main thread first.
    pub threads: Vec<KernelThread>,
    /// Why the kernel shows none.
    pub kernel_absence: Option<String>,
    /// Why no thread has native calls, where they were asked for.
    #[serde(default)]
    pub native_absence: Option<String>,
    /// The power draw of its device in watts, where its driver tells.
    #[serde(default)]
    pub device_watts: Option<f64>,
}

/// What reads the stacks of a Python worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StackSource {
    /// The handler of its signal, in the worker.
    Faulthandler,
    /// The crate `py-spy`, from the memory of the worker.
    PySpy,
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

/// The function of a native call without a symbol.
const UNNAMED: &str = "??";

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    pub function: String,
    /// The source file. Of a native call without known source: the program or library.
    pub file: String,
    /// 0 if it is unknown.
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
    /// Its native calls, the innermost first.
    #[serde(default)]
    pub native: Vec<Frame>,
}

impl WorkerStacks {
    /// The calls of the main thread, the innermost first: Python's if they are known, else the native ones.
    #[must_use]
    pub fn main_frames(&self) -> &[Frame] {
        let native = || self.threads.first().map(|thread| &thread.native[..]).unwrap_or_default();
        self.main_thread().map_or_else(native, |thread| &thread.frames)
    }

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
    /// Whether the file is the program's own, and not one of Python, of an installed package, of the system or of
    /// Rust's standard library.
    #[must_use]
    pub fn is_of_program(&self) -> bool {
        const FOREIGN: [&str; 5] =
            ["/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python", "/.cargo/registry/"];
        const FOREIGN_ROOTS: [&str; 7] =
            ["<", "[", "/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/rustc/"];
        !FOREIGN_ROOTS.iter().any(|root| self.file.starts_with(root))
            && !FOREIGN.iter().any(|part| self.file.contains(part))
    }

    /// Whether it may be a function of another crate in a Rust program without debug information: its file is then that
    /// of the program, and only the name of its crate differs from the program's.
    #[must_use]
    pub fn may_be_of_linked_crate(&self) -> bool {
        let program = self.file.rsplit('/').next().unwrap_or_default().replace('-', "_");
        self.line == 0 && self.function.split_once("::").is_none_or(|(crate_name, _)| crate_name != program)
    }

    /// Whether its function is unknown.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.function == UNNAMED
    }

    /// As in `load_batch (data.py:17)`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} ({})", self.function, self.line_text())
    }

    /// As in `data.py:17`, or `libc.so.6` without a line.
    #[must_use]
    pub fn line_text(&self) -> String {
        with_line(self.file.rsplit('/').next().unwrap_or_default(), self.line)
    }

    /// As in `/home/u/data.py:17 in load_batch`.
    #[must_use]
    pub fn full_text(&self) -> String {
        format!("{} in {}", with_line(&self.file, self.line), self.function)
    }
}

fn with_line(file: &str, line: u32) -> String {
    if line == 0 { file.to_owned() } else { format!("{file}:{line}") }
}
