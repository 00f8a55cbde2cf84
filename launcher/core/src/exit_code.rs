//! Every exit status of the launcher.
//!
//! | status | when | under the name `torchrun` |
//! |---|---|---|
//! | 0 | every worker exited 0, or one failed in a way that a rule calls `succeed` | 0 |
//! | 0 | every worker exited 0, and the time limit ended what they had left behind or the wait for their output | 0 |
//! | 128 + n | every worker exited 0, and signal n cut that wait short | 1 |
//! | 1 | the launcher itself failed (settings, spawn, log folder, store) | 1 |
//! | 0 | a rule of another node, on which a worker failed first, says `succeed` | 0 |
//! | 75, 78 | such a rule says `requeue` or `no-requeue` | 75, 78 |
//! | 0 | the job of other nodes succeeded, and this one was a spare that was not needed | 0 |
//! | 1 | another node ended the job, or the rendezvous failed (too few nodes came, its store is lost) | 1 |
//! | 1 | `devices` or `topo` could tell nothing, since a library hangs, fails or crashes | – |
//! | 1 | `gc` cannot look at processes, a process survived SIGKILL, or a file cannot be removed | – |
//! | 1 | `status --check` finds a job that does not run, or a job refuses `stop` or `restart` | – |
//! | 3 | `status`, `stop` or `restart` finds no such job, or it does not answer | – |
//! | 2 | usage: the command line could not be read | 2 |
//! | 124 | the time limit was over (`--time-limit`), as timeout(1) ends then | 1 |
//! | the worker's own | a worker failed and no restart was left, or a rule said `fail` | 1 |
//! | 75 | a worker failed in a way that a rule calls `requeue`: its scheduler should start the job again | 75 |
//! | 78 | a worker failed in a way that a rule calls `no-requeue`: the job would fail again | 78 |
//! | 128 + n | a worker was ended by signal n and no restart was left | 1 |
//! | 128 + n | the launcher was told to stop by signal n | 1, or death by that signal before the first start |

/// The launcher itself failed: bad settings, a worker that cannot be started, no log folder, no store.
pub const LAUNCHER_FAILED: u8 = 1;
/// The command line could not be read.
pub const USAGE: u8 = 2;
/// The time limit was over, and the job was stopped for that; timeout(1) ends so too.
pub const TIME_LIMIT: u8 = 124;
/// A rule says `requeue`: another try may succeed (`EX_TEMPFAIL` of sysexits.h).
pub const REQUEUE: u8 = 75;
/// A rule says `no-requeue`: further tries will fail too (`EX_CONFIG` of sysexits.h).
pub const DO_NOT_REQUEUE: u8 = 78;
/// `status`, `stop` or `restart` finds no such job, or it does not answer.
pub const NO_ANSWER: u8 = 3;
/// Added to a signal's number, as shells do.
pub const SIGNAL_BASE: u8 = 128;

/// The exit status of the launcher process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// The process exits with this code.
    Code(u8),
    /// Death by a signal, as an unhandled one would have brought.
    Signal(i32),
}

impl ExitStatus {
    /// Every worker exited with code 0.
    pub const SUCCESS: Self = Self::Code(0);

    /// The status 128 plus the signal's number.
    #[must_use]
    pub fn of_signal(signal: i32) -> Self {
        Self::Code(code_of_signal(signal))
    }
}

/// 128 + the signal's number; signals go up to 64.
#[must_use]
pub fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).unwrap_or(0) | SIGNAL_BASE
}
