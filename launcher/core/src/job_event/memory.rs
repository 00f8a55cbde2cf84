//! What is known about the memory of a worker that ended.

/// The most memory that a process had at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakMemory {
    /// The amount in bytes.
    pub bytes: u64,
    /// Whether the worker itself had most of it: the processes that it has waited for count too, and had less.
    pub is_own: bool,
}

/// The counters' evidence about a worker's death by SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomEvidence {
    /// The kernel killed a process of the job's cgroup for lack of memory.
    InCgroup {
        /// The limit that was reached, in bytes; without one the machine itself had no memory left.
        limit: Option<u64>,
        /// Whether each of the deaths has a kill that can be of no other known process.
        is_certain: bool,
    },
    /// The number of processes that the kernel killed on the whole machine.
    OnMachine {
        /// The number of processes killed by the OOM killer.
        count: u64,
    },
    /// The kernel killed no process for lack of memory.
    NoKill,
    /// The kernel shows no counter to this process.
    Unknown,
}
