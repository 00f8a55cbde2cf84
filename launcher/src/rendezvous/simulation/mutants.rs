//! stub
use crate::rendezvous::round::{Goal, Me, Step, View, next};
use crate::rendezvous::state::Timestamp;
use std::time::Instant;

/// What the virtual agents ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Machine {}
impl Machine {
    pub(super) fn next(
        self,
        view: &View<'_>,
        me: &Me,
        goal: Goal<'_>,
        now: Instant,
        wall: Timestamp,
    ) -> Step {
        next(view, me, goal, now, wall)
    }
}
