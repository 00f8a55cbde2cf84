//! Signals that hit all processes: schedulers signal workers and launcher alike, but not at the same instant.
//! Pure.
//!
//! A worker that ends by a stop signal is not yet a failure while the launcher may be about to get the same
//! signal. Until then nothing is decided: no worker is stopped, and further exits are only recorded.
//!
//! A worker may also handle the signal and exit with a code of its own, as a Python handler does that calls
//! `sys.exit(1)`. Such an exit is a failure like any other, and the peers are stopped at once. If a peer also
//! exited with a code, the restart waits until the launcher would have got the signal. There is no
//! such delay if one worker fails and its peers die of our signal. A worker without peers cannot be told apart
//! from a worker that failed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalRank;

use super::State;
use crate::agent::failure::{Failure, FollowingEnd};
use crate::agent::message::Action;
use crate::agent::phase::JobPhase;
use crate::job_event::{FailureKind, WorkerEnd};

/// From a worker's exit to the signal that the launcher gets too.
pub(super) const GROUP_SIGNAL_WINDOW: Duration = Duration::from_millis(500);

impl State {
    /// A worker of the running generation ended badly; those in `live` are left.
    pub(super) fn on_failed_exit(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        end: WorkerEnd,
    ) -> Vec<Action> {
        if self.is_exit_by_warning(end.exit) {
            return self.on_exit_by_warning(now, live, end);
        }
        let failure = self.new_failure(now, end, FailureKind::Ended);
        if !self.rules.is_exit_by_stop_signal(end.exit) {
            return self.on_worker_failure(now, live, failure);
        }
        self.history.record_first_end(now);
        self.phase = JobPhase::Undecided { live, failure, until: now + GROUP_SIGNAL_WINDOW };
        Vec::new()
    }

    /// The earliest restart after this failure, once all exits are known.
    pub(super) fn restart_held_until(&self, failure: &Failure) -> Option<Instant> {
        let is_held = failure.may_be_group_signal();
        self.history.first_end().filter(|_| is_held).map(|ended| ended + GROUP_SIGNAL_WINDOW)
    }

    /// A worker that ends meanwhile may have got the same signal.
    pub(super) fn record_undecided_exit(&mut self, end: WorkerEnd) {
        if let JobPhase::Undecided { live, failure, .. } = &mut self.phase {
            live.remove(&end.local_rank);
            failure.push_exit(FollowingEnd { end, is_stopped_by_us: false });
        }
    }
}
