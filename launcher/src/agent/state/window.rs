//! Signals that hit everybody: schedulers signal workers and launcher alike, and not in one instant. Pure.
//!
//! A worker that ends by a signal that stops the job is no failure as long as the launcher may be about to get the same
//! one. Until then nothing is decided: nobody is stopped, and further ends are only taken in.
//!
//! A worker may also handle the signal and end with a code of its own, as a Python handler does that calls
//! `sys.exit(1)`. Such an end is a failure like any other, and the peers are stopped at once. Only where one of them
//! ended with a code too does the restart wait until the launcher would have got the signal: who fails alone, and whose
//! peers die of our signal, is not held up. A worker without peers cannot be told apart from one that failed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalRank;

use super::State;
use crate::agent::failure::{Failure, FollowingEnd, Manner};
use crate::agent::message::{Action, WorkerEnd};
use crate::agent::phase::Phase;

/// From a worker's end to the signal that the launcher gets too.
pub(super) const WINDOW: Duration = Duration::from_millis(500);

impl State {
    /// A worker of the generation that runs ended badly; these are left.
    pub(super) fn ended_badly(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        end: WorkerEnd,
    ) -> Vec<Action> {
        if self.is_of_the_warning(end.exit) {
            return self.ended_by_warning(now, live, end);
        }
        let failure = self.failure(now, end, Manner::Ended);
        if !self.rules.is_of_a_stop_signal(end.exit) {
            return self.failed_beside(now, live, failure);
        }
        self.history.generation_ended(now);
        self.phase = Phase::Undecided { live, failure, until: now + WINDOW };
        Vec::new()
    }

    /// Before then nobody starts again after this failure, whose ends are all known.
    pub(super) fn held_until(&self, failure: &Failure) -> Option<Instant> {
        let is_held = failure.may_be_everybodys();
        self.history.first_end().filter(|_| is_held).map(|ended| ended + WINDOW)
    }

    /// Whatever ends meanwhile may have got the same signal.
    pub(super) fn ended_undecided(&mut self, end: WorkerEnd) {
        if let Phase::Undecided { live, failure, .. } = &mut self.phase {
            live.remove(&end.local_rank);
            failure.followed_by(FollowingEnd { end, stopped: false });
        }
    }
}
