//! Watches for workers in uninterruptible sleep (state `D` of proc(5)): a hung device or file server. Only
//! enabled by `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`. The agent reads `/proc`; the state ends the job.
//! Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalRank;

use crate::job_event::UninterruptibleWorker;

/// torchrun's interval. A sleep that ended and began again between two polls counts as one.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Lower bound of the interval.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Records since when each worker is uninterruptible.
#[derive(Debug)]
pub(super) struct DStateWatch {
    limit: Duration,
    next_poll: Instant,
    since: BTreeMap<LocalRank, Instant>,
}

impl DStateWatch {
    pub(super) const fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, next_poll: now, since: BTreeMap::new() }
    }

    pub(super) const fn next_poll(&self) -> Instant {
        self.next_poll
    }

    pub(super) fn schedule_next_poll(&mut self, now: Instant) {
        self.next_poll = now + self.limit.clamp(MIN_POLL_INTERVAL, POLL_INTERVAL);
    }

    /// The job was suspended for this long: neither sleep nor polls count.
    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        self.next_poll += lasted;
        self.since.values_mut().for_each(|since| *since += lasted);
    }

    /// Records the workers in state `D`; returns the worker that exceeds the limit by most, and for how long
    /// it slept.
    pub(super) fn record_blocked_workers(
        &mut self,
        now: Instant,
        uninterruptible: &[UninterruptibleWorker],
    ) -> Option<(UninterruptibleWorker, Duration)> {
        self.since.retain(|rank, _| uninterruptible.iter().any(|found| found.local_rank == *rank));
        let dwell = uninterruptible.iter().map(|found| {
            let since = *self.since.entry(found.local_rank).or_insert(now);
            (*found, now.saturating_duration_since(since))
        });
        dwell.filter(|(_, dwell)| *dwell >= self.limit).max_by_key(|(_, dwell)| *dwell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::Pid;

    fn uninterruptible(local_rank: u32) -> UninterruptibleWorker {
        UninterruptibleWorker { local_rank: LocalRank(local_rank), pid: Pid::from_raw(7) }
    }

    #[test]
    fn interrupted_dstate_sleep_restarts_the_limit() {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let limit = Duration::from_secs(2);
        let mut watch = DStateWatch::new(limit, at(0));
        assert_eq!(watch.record_blocked_workers(at(0), &[uninterruptible(0), uninterruptible(1)]), None);
        assert_eq!(watch.record_blocked_workers(at(1), &[uninterruptible(1)]), None);
        assert_eq!(watch.record_blocked_workers(at(1), &[uninterruptible(0), uninterruptible(1)]), None);
        assert_eq!(
            watch.record_blocked_workers(at(2), &[uninterruptible(0), uninterruptible(1)]),
            Some((uninterruptible(1), limit))
        );
        assert_eq!(
            watch.record_blocked_workers(at(3), &[uninterruptible(0)]),
            Some((uninterruptible(0), limit)),
            "rank 0 slept from second 1 on"
        );
    }
}
