//! Decides how a rank waits for others in one step of a call. Pure.

use std::time::{Duration, Instant};

use crate::process_group::error::GroupFailure;

/// Delay before a rank sends notices. Long enough that a healthy job sends none, and short for a person.
const NOTICE_AFTER: Duration = Duration::from_millis(100);

/// Pause without events after which a rank checks other parts of the transport.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a rank still waits for others after the loss of one that has done its part. That rank may have
/// continued to a call in which the group failed: this call can then still complete. It is short against the
/// second in which every rank must learn of a loss.
const GRACE: Duration = Duration::from_millis(200);

/// The wait of one step.
#[derive(Debug)]
pub(super) struct WaitPolicy {
    deadline: Instant,
    /// When notices are due; `None` after they were sent.
    notice_at: Option<Instant>,
    /// How long the rank polls after the latest event, before it sleeps.
    spin: Duration,
    spins_until: Instant,
    /// Bytes sent and received at the latest event.
    moved: usize,
    /// The first loss, and until when the others are waited for.
    loss: Option<(GroupFailure, Instant)>,
}

/// The state of the transfers, which are not all done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TransferStatus {
    pub(super) moved: usize,
    /// Whether a lost rank has not done its part.
    pub(super) cannot_complete: bool,
    /// Whether another part of the transport is to be checked.
    pub(super) has_probe: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// The group has failed.
    End(GroupFailure),
    /// The deadline of the call has passed.
    TimeOut,
    /// Send notices, then ask again.
    GiveNotice,
    /// Poll again at once.
    Spin,
    Sleep {
        until: Instant,
    },
}

impl WaitPolicy {
    pub(super) fn new(now: Instant, deadline: Instant, spin: Duration) -> Self {
        let notice_at = Some((now + NOTICE_AFTER).min(deadline));
        Self { deadline, notice_at, spin, spins_until: now + spin, moved: 0, loss: None }
    }

    /// Notes a lost rank, which may have done its part; the first loss counts.
    pub(super) fn lose(&mut self, now: Instant, failure: GroupFailure) {
        self.loss.get_or_insert_with(|| (failure, (now + GRACE).min(self.deadline)));
    }

    pub(super) fn next(&mut self, now: Instant, status: TransferStatus) -> NextStep {
        if let Some((failure, until)) = &self.loss
            && (*until <= now || status.cannot_complete)
        {
            return NextStep::End(failure.clone());
        }
        if self.deadline <= now {
            return NextStep::TimeOut;
        }
        if self.notice_at.is_some_and(|at| at <= now) {
            self.notice_at = None;
            return NextStep::GiveNotice;
        }
        if self.moved != status.moved {
            (self.moved, self.spins_until) = (status.moved, now + self.spin);
        }
        if now < self.spins_until {
            return NextStep::Spin;
        }
        let gives_up = self.loss.as_ref().map_or(self.deadline, |&(_, until)| until);
        let until = self.notice_at.unwrap_or(self.deadline).min(gives_up);
        NextStep::Sleep { until: if status.has_probe { until.min(now + LOOK_EVERY) } else { until } }
    }
}

#[cfg(test)]
mod tests {
    use rankrun_contract::rank::Rank;

    use super::*;
    use crate::clock;
    use crate::process_group::error::LossCause;

    const SPIN: Duration = Duration::from_micros(200);
    const CALL: Duration = Duration::from_secs(60);

    /// A wait that began just now, and its start.
    fn begun(spin: Duration) -> (WaitPolicy, Instant) {
        let now = clock::now();
        (WaitPolicy::new(now, now + CALL, spin), now)
    }

    fn lost_rank() -> GroupFailure {
        GroupFailure::Lost { rank: Rank(1), cause: LossCause::Closed }
    }

    #[test]
    fn waiting_rank_sends_one_notice_and_sleeps_until_the_deadline() {
        let (mut wait_policy, begun) = begun(Duration::ZERO);
        let notice_at = begun + NOTICE_AFTER;
        assert_eq!(wait_policy.next(begun, TransferStatus::default()), NextStep::Sleep { until: notice_at });
        assert_eq!(wait_policy.next(notice_at, TransferStatus::default()), NextStep::GiveNotice);
        assert_eq!(
            wait_policy.next(notice_at, TransferStatus::default()),
            NextStep::Sleep { until: begun + CALL }
        );
        let status = TransferStatus { has_probe: true, ..TransferStatus::default() };
        assert_eq!(wait_policy.next(notice_at, status), NextStep::Sleep { until: notice_at + LOOK_EVERY });
        assert_eq!(wait_policy.next(begun + CALL, status), NextStep::TimeOut);
    }

    #[test]
    fn it_is_looked_for_news_a_while_after_the_last_ones() {
        let (mut wait_policy, begun) = begun(SPIN);
        assert_eq!(wait_policy.next(begun, TransferStatus::default()), NextStep::Spin);
        let (late, news) = (begun + SPIN, TransferStatus { moved: 1, ..TransferStatus::default() });
        assert!(matches!(wait_policy.next(late, TransferStatus::default()), NextStep::Sleep { .. }));
        assert_eq!(wait_policy.next(late, news), NextStep::Spin);
        assert!(matches!(wait_policy.next(late + SPIN, news), NextStep::Sleep { .. }));
    }

    #[test]
    fn loss_leaves_the_others_their_time_unless_a_part_can_never_come() {
        let (mut wait_policy, begun) = begun(Duration::ZERO);
        wait_policy.lose(begun, lost_rank());
        wait_policy.lose(begun + GRACE, GroupFailure::Lost { rank: Rank(2), cause: LossCause::Left });
        assert_eq!(
            wait_policy.next(begun + GRACE / 4, TransferStatus::default()),
            NextStep::Sleep { until: begun + NOTICE_AFTER }
        );
        let status = TransferStatus { cannot_complete: true, ..TransferStatus::default() };
        assert_eq!(wait_policy.next(begun, status), NextStep::End(lost_rank()));
        assert_eq!(wait_policy.next(begun + GRACE, TransferStatus::default()), NextStep::End(lost_rank()));
    }

    #[test]
    fn call_that_is_over_sooner_is_waited_for_no_longer() {
        let now = clock::now();
        let deadline = now + Duration::from_millis(10);
        let mut wait_policy = WaitPolicy::new(now, deadline, Duration::ZERO);
        assert_eq!(wait_policy.next(now, TransferStatus::default()), NextStep::Sleep { until: deadline });
        wait_policy.lose(now, lost_rank());
        assert_eq!(
            wait_policy.next(deadline, TransferStatus::default()),
            NextStep::End(lost_rank()),
            "that says more than the time"
        );
    }
}
