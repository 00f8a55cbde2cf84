//! The messages that ranks send each other in one step of a call.

use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;

use crate::process_group::message::Call;
use crate::process_group::transport::Step;

/// One step of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) call: Call,
    /// Number of the step within the call, from 0.
    pub(crate) number: u32,
    pub(crate) deadline: Instant,
    /// The duration of which the deadline was made, for messages.
    pub(crate) timeout: Duration,
}

impl Exchange {
    pub(super) fn as_step(&self) -> Step {
        let Self { call, deadline, timeout, .. } = *self;
        Step { call, deadline, timeout }
    }
}

/// The message to one rank and the message from it.
#[derive(Default)]
pub(crate) struct Transfer<'a> {
    pub(crate) send: Option<&'a [u8]>,
    pub(crate) receive: Option<&'a mut [u8]>,
}

/// Two ranks send each other equally long data, and each folds the other's into its own.
pub(crate) struct Swap<'a> {
    pub(crate) data: &'a mut [u8],
    /// Folds received bytes, whole elements, into their place in the data.
    pub(crate) fold: &'a dyn Fn(&mut [u8], &[u8]),
}

pub(crate) fn rank_from_index(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}
