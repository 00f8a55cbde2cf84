//! What ranks send each other at once in a call.

use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;

use crate::process_group::message::Call;
use crate::process_group::transport::Step;

/// One exchange of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) call: Call,
    /// Which one of the call, from 0.
    pub(crate) number: u32,
    pub(crate) deadline: Instant,
    /// What the deadline was made of, for the message.
    pub(crate) timeout: Duration,
}

impl Exchange {
    pub(super) fn step(&self) -> Step {
        let Self { call, deadline, timeout, .. } = *self;
        Step { call, deadline, timeout }
    }
}

/// What goes to one rank and what comes from it.
#[derive(Default)]
pub(crate) struct Transfer<'a> {
    pub(crate) send: Option<&'a [u8]>,
    pub(crate) receive: Option<&'a mut [u8]>,
}

/// Two ranks send each other as much, and each folds what comes into what it has sent.
pub(crate) struct Swap<'a> {
    pub(crate) data: &'a mut [u8],
    /// Folds what has come, a piece of whole elements, into its place in the data.
    pub(crate) fold: &'a dyn Fn(&mut [u8], &[u8]),
}

pub(crate) fn rank_at(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}
