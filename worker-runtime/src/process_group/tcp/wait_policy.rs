//! Decides how a rank waits for others in one step of a call. Pure.

use std::time::{Duration, Instant};

use crate::process_group::error::GroupFailure;

/// Delay before a rank sends notices. Long enough that a healthy job sends none, and short for a person.
const NOTICE_DELAY: Duration = Duration::from_millis(100);

/// Pause without events after which a rank checks other parts of the transport.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// How long a rank still waits for others after the loss of one that has done its part. That rank may have
/// continued to a call in which the group failed: this call can then still complete. It is short against the
/// second in which every rank must learn of a loss.
const LOSS_GRACE: Duration = Duration::from_millis(200);

/// The wait of one step.
#[derive(Debug)]
pub(super) struct WaitPolicy {
    deadline: Instant,
    /// When notices are due; `None` after they were sent.
    notice_at: Option<Instant>,
    /// How long the rank polls after the latest event, before it sleeps.
    spin: Duration,
    spin_until: Instant,
    /// Bytes sent and received at the latest event.
    transferred_bytes: usize,
    /// The first loss, and until when the others are waited for.
    loss: Option<(GroupFailure, Instant)>,
}

/// The state of the transfers, which are not all done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TransferStatus {
    pub(super) transferred_bytes: usize,
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
        let notice_at = Some((now + NOTICE_DELAY).min(deadline));
        Self { deadline, notice_at, spin, spin_until: now + spin, transferred_bytes: 0, loss: None }
    }

    /// Notes a lost rank, which may have done its part; the first loss counts.
    pub(super) fn record_loss(&mut self, now: Instant, failure: GroupFailure) {
        self.loss.get_or_insert_with(|| (failure, (now + LOSS_GRACE).min(self.deadline)));
    }

    pub(super) fn next_step(&mut self, now: Instant, status: TransferStatus) -> NextStep {
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
        if self.transferred_bytes != status.transferred_bytes {
            (self.transferred_bytes, self.spin_until) = (status.transferred_bytes, now + self.spin);
        }
        if now < self.spin_until {
            return NextStep::Spin;
        }
        let gives_up = self.loss.as_ref().map_or(self.deadline, |&(_, until)| until);
        let until = self.notice_at.unwrap_or(self.deadline).min(gives_up);
        NextStep::Sleep { until: if status.has_probe { until.min(now + PROBE_INTERVAL) } else { until } }
    }
}

#[cfg(test)]
mod tests {
    use rankrun_contract::rank::Rank;

    use super::*;
    use crate::clock;
    use crate::process_group::error::LossCause;

    const SPIN: Duration = Duration::from_micros(200);
    const CALL_TIMEOUT: Duration = Duration::from_secs(60);

    /// A wait that began just now, and its start.
    fn new_policy(spin: Duration) -> (WaitPolicy, Instant) {
        let now = clock::now();
        (WaitPolicy::new(now, now + CALL_TIMEOUT, spin), now)
    }

    fn lost_rank() -> GroupFailure {
        GroupFailure::Lost { rank: Rank(1), cause: LossCause::Closed }
    }

    #[test]
    fn wait_policy_sends_one_notice_then_sleeps_until_deadline() {
        let (mut wait_policy, begun) = new_policy(Duration::ZERO);
        let notice_at = begun + NOTICE_DELAY;
        assert_eq!(
            wait_policy.next_step(begun, TransferStatus::default()),
            NextStep::Sleep { until: notice_at }
        );
        assert_eq!(wait_policy.next_step(notice_at, TransferStatus::default()), NextStep::GiveNotice);
        assert_eq!(
            wait_policy.next_step(notice_at, TransferStatus::default()),
            NextStep::Sleep { until: begun + CALL_TIMEOUT }
        );
        let status = TransferStatus { has_probe: true, ..TransferStatus::default() };
        assert_eq!(
            wait_policy.next_step(notice_at, status),
            NextStep::Sleep { until: notice_at + PROBE_INTERVAL }
        );
        assert_eq!(wait_policy.next_step(begun + CALL_TIMEOUT, status), NextStep::TimeOut);
    }

    #[test]
    fn wait_policy_spins_after_progress_then_sleeps() {
        let (mut wait_policy, begun) = new_policy(SPIN);
        assert_eq!(wait_policy.next_step(begun, TransferStatus::default()), NextStep::Spin);
        let (late, event) =
            (begun + SPIN, TransferStatus { transferred_bytes: 1, ..TransferStatus::default() });
        assert!(matches!(wait_policy.next_step(late, TransferStatus::default()), NextStep::Sleep { .. }));
        assert_eq!(wait_policy.next_step(late, event), NextStep::Spin);
        assert!(matches!(wait_policy.next_step(late + SPIN, event), NextStep::Sleep { .. }));
    }

    #[test]
    fn loss_ends_call_after_grace_or_at_once_if_incompletable() {
        let (mut wait_policy, begun) = new_policy(Duration::ZERO);
        wait_policy.record_loss(begun, lost_rank());
        wait_policy
            .record_loss(begun + LOSS_GRACE, GroupFailure::Lost { rank: Rank(2), cause: LossCause::Left });
        assert_eq!(
            wait_policy.next_step(begun + LOSS_GRACE / 4, TransferStatus::default()),
            NextStep::Sleep { until: begun + NOTICE_DELAY }
        );
        let status = TransferStatus { cannot_complete: true, ..TransferStatus::default() };
        assert_eq!(wait_policy.next_step(begun, status), NextStep::End(lost_rank()));
        assert_eq!(
            wait_policy.next_step(begun + LOSS_GRACE, TransferStatus::default()),
            NextStep::End(lost_rank())
        );
    }

    #[test]
    fn deadline_within_grace_ends_call_with_loss() {
        let now = clock::now();
        let deadline = now + Duration::from_millis(10);
        let mut wait_policy = WaitPolicy::new(now, deadline, Duration::ZERO);
        assert_eq!(
            wait_policy.next_step(now, TransferStatus::default()),
            NextStep::Sleep { until: deadline }
        );
        wait_policy.record_loss(now, lost_rank());
        assert_eq!(
            wait_policy.next_step(deadline, TransferStatus::default()),
            NextStep::End(lost_rank()),
            "that says more than the time"
        );
    }
}
