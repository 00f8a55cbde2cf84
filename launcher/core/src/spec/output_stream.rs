//! The two streams of output.

/// One of our two streams, and of a worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// The standard output of the launcher.
    Stdout,
    /// The standard error of the launcher.
    Stderr,
}
