//! What `execve` gets for one worker.

use std::ffi::CString;

/// A program with arguments and environment, ready for `execve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The path of the file to execute.
    pub path: CString,
    /// The arguments; the first one is the program's name.
    pub argv: Vec<CString>,
    /// The environment as `NAME=value`, one string per variable.
    pub envp: Vec<CString>,
    /// The CPUs that it is bound to; by none it has the launcher's.
    pub cpus: Option<Vec<u32>>,
}

/// An argument or variable holds a NUL byte, which no program can be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` holds a NUL byte")]
pub struct NulByte {
    /// The text, with invalid UTF-8 replaced.
    pub text: String,
}
