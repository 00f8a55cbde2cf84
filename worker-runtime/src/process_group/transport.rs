//! The interface of transports: TCP connections, shared memory, or channels of threads.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use super::buffer::Memory;
use super::collective::HostCollective;
use super::error::GroupFailure;
use super::message::Call;

/// One call of a group, and its time limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// The call on which ranks must agree. `call.sequence` counts the group's calls; for `send` and `receive`
    /// those between the two ranks, in one direction.
    pub(crate) call: Call,
    /// The call has ended by then, with a result or a failure.
    pub(crate) deadline: Instant,
    /// The duration of which the deadline was made, for messages.
    pub(crate) timeout: Duration,
}

/// A check of one part of a transport, made by a rank that waits in another part.
pub(crate) trait TransportProbe: Debug + Send {
    /// Whether the call has failed in that part.
    ///
    /// # Errors
    /// The failure.
    fn check(&mut self, step: &Step) -> Result<(), GroupFailure>;
}

/// Performs calls among the ranks of one group.
///
/// The caller numbers calls, checks lengths and ranks ([`HostCollective::check`]), makes no call after a
/// failure, and agrees on the failure with the other ranks. A transport moves the data, detects a rank that
/// is gone, silent or makes a different call, and never waits longer than the deadline.
pub(crate) trait Transport: Debug + Send {
    /// Performs one call. Memory holds whole, aligned elements of `step.call.data_type`.
    ///
    /// # Errors
    /// The failure of the group. Afterwards only [`close`](Self::close) may be called.
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), GroupFailure>;

    /// Allocates zeroed memory that needs fewer copies; `None` if the transport treats all memory alike.
    fn allocate(&mut self, bytes: usize) -> Option<Memory> {
        let _ = bytes;
        None
    }

    /// Whether the ranks are threads of this process.
    fn is_in_process(&self) -> bool {
        false
    }

    /// Tells the other ranks within a second that this rank makes no more calls.
    fn leave(&mut self);

    /// Closes all connections after a failure; the other ranks detect it.
    fn close(&mut self);
}
