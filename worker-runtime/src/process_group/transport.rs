//! What carries the calls of a group of ranks on the CPU: connections, shared memory, or channels of threads.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use super::buffer::Memory;
use super::collective::HostCollective;
use super::error::Ending;
use super::message::Call;

/// One call of a group, and how long it may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// As all ranks must make it. `call.sequence` counts the group's calls; for `send` and `receive` those between the two
    /// ranks, in one direction.
    pub(crate) call: Call,
    /// Until then it has ended, one way or the other.
    pub(crate) deadline: Instant,
    /// What the deadline was made of, for messages.
    pub(crate) timeout: Duration,
}

/// Where a rank that waits for something looks now and then, too: a part of the transport in which it does not wait.
pub(crate) trait Outlook: Debug + Send {
    /// Whether the call has come to its end there.
    ///
    /// # Errors
    /// How.
    fn look(&mut self, step: &Step) -> Result<(), Ending>;
}

/// Carries calls among the ranks of one group.
///
/// The caller numbers calls, checks lengths and ranks ([`HostCollective::check`]), makes no call after an ending, and agrees
/// on the ending with the others. A transport performs calls, notices a rank that is gone, silent or makes another call,
/// and never waits longer than the deadline.
pub(crate) trait Transport: Debug + Send {
    /// Performs one call of the group; `memory` is of `step.call.data_type`, whole elements, aligned for it.
    ///
    /// # Errors
    /// How the group ended: the transport is of no further use but for [`close`](Self::close).
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), Ending>;

    /// Memory that this transport carries with fewer copies, zeroed; nothing where all memory is alike to it.
    fn allocate(&mut self, bytes: usize) -> Option<Memory> {
        let _ = bytes;
        None
    }

    /// Whether the ranks are threads of this process, so that none of them lives as long as it.
    fn is_among_threads(&self) -> bool {
        false
    }

    /// Tells the other ranks that this one needs nothing more from them, within a second.
    fn leave(&mut self);

    /// Ends all connections after an ending; the others notice.
    fn close(&mut self);
}
