//! How long a rank waits for others in one exchange, and what it does meanwhile. Pure.

use std::time::{Duration, Instant};

use crate::process_group::error::Ending;

/// How long a rank waits for another one before it says for which call. Long enough that it is not said in a job that gets on, and
/// short to a person.
const NOTICE_AFTER: Duration = Duration::from_millis(100);

/// How long nothing comes before a rank asks what else may have happened.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a rank still waits for the parts of others when one is gone that has done its own. That one may have gone on to a call in
/// which the group ended: then this call is as good as complete, and what is missing is under way. Short against the second in which
/// every rank is to hear of a loss.
const GRACE: Duration = Duration::from_millis(200);

/// The waiting of one exchange.
#[derive(Debug)]
pub(super) struct Patience {
    deadline: Instant,
    /// When others are told for which call this rank waits; `None` once they are.
    notice_at: Option<Instant>,
    /// How long it looks for news, after the last ones, before it sleeps.
    spin: Duration,
    spins_until: Instant,
    /// Bytes that had come and gone with the last news.
    moved: usize,
    /// How a rank was lost, and until when the others are waited for all the same.
    loss: Option<(Ending, Instant)>,
}

/// What can be seen of the transfers, of which not all are done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Bytes that have come and gone.
    pub(super) moved: usize,
    /// Whether a rank is gone that has not done its part.
    pub(super) is_hopeless: bool,
    /// Whether something else is to be asked while nothing comes.
    pub(super) has_outlook: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The group has ended.
    End(Ending),
    /// The deadline of the call has passed.
    TimeOut,
    /// Others are to be told for which call this rank waits; what to do after that is another question.
    GiveNotice,
    /// Look for news again at once.
    Spin,
    Sleep {
        until: Instant,
    },
}

impl Patience {
    pub(super) fn new(now: Instant, deadline: Instant, spin: Duration) -> Self {
        let notice_at = Some((now + NOTICE_AFTER).min(deadline));
        Self { deadline, notice_at, spin, spins_until: now + spin, moved: 0, loss: None }
    }

    /// A rank is lost, which may have done its part; the first one counts.
    pub(super) fn lose(&mut self, now: Instant, ending: Ending) {
        self.loss.get_or_insert_with(|| (ending, (now + GRACE).min(self.deadline)));
    }

    pub(super) fn next(&mut self, now: Instant, seen: Seen) -> Next {
        if let Some((ending, until)) = &self.loss
            && (*until <= now || seen.is_hopeless)
        {
            return Next::End(ending.clone());
        }
        if self.deadline <= now {
            return Next::TimeOut;
        }
        if self.notice_at.is_some_and(|at| at <= now) {
            self.notice_at = None;
            return Next::GiveNotice;
        }
        if self.moved != seen.moved {
            (self.moved, self.spins_until) = (seen.moved, now + self.spin);
        }
        if now < self.spins_until {
            return Next::Spin;
        }
        let gives_up = self.loss.as_ref().map_or(self.deadline, |&(_, until)| until);
        let until = self.notice_at.unwrap_or(self.deadline).min(gives_up);
        Next::Sleep { until: if seen.has_outlook { until.min(now + LOOK_EVERY) } else { until } }
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

    /// An exchange that began just now, and when that was.
    fn begun(spin: Duration) -> (Patience, Instant) {
        let now = clock::now();
        (Patience::new(now, now + CALL, spin), now)
    }

    fn lost() -> Ending {
        Ending::Lost { rank: Rank(1), cause: LossCause::Closed }
    }

    #[test]
    fn who_waits_says_so_once_and_sleeps_until_the_deadline() {
        let (mut patience, begun) = begun(Duration::ZERO);
        let notice_at = begun + NOTICE_AFTER;
        assert_eq!(patience.next(begun, Seen::default()), Next::Sleep { until: notice_at });
        assert_eq!(patience.next(notice_at, Seen::default()), Next::GiveNotice);
        assert_eq!(patience.next(notice_at, Seen::default()), Next::Sleep { until: begun + CALL });
        let seen = Seen { has_outlook: true, ..Seen::default() };
        assert_eq!(patience.next(notice_at, seen), Next::Sleep { until: notice_at + LOOK_EVERY });
        assert_eq!(patience.next(begun + CALL, seen), Next::TimeOut);
    }

    #[test]
    fn it_is_looked_for_news_a_while_after_the_last_ones() {
        let (mut patience, begun) = begun(SPIN);
        assert_eq!(patience.next(begun, Seen::default()), Next::Spin);
        let (late, news) = (begun + SPIN, Seen { moved: 1, ..Seen::default() });
        assert!(matches!(patience.next(late, Seen::default()), Next::Sleep { .. }));
        assert_eq!(patience.next(late, news), Next::Spin);
        assert!(matches!(patience.next(late + SPIN, news), Next::Sleep { .. }));
    }

    #[test]
    fn a_loss_leaves_the_others_their_time_unless_a_part_can_never_come() {
        let (mut patience, begun) = begun(Duration::ZERO);
        patience.lose(begun, lost());
        patience.lose(begun + GRACE, Ending::Lost { rank: Rank(2), cause: LossCause::Left });
        assert_eq!(
            patience.next(begun + GRACE / 4, Seen::default()),
            Next::Sleep { until: begun + NOTICE_AFTER }
        );
        let seen = Seen { is_hopeless: true, ..Seen::default() };
        assert_eq!(patience.next(begun, seen), Next::End(lost()));
        assert_eq!(patience.next(begun + GRACE, Seen::default()), Next::End(lost()));
    }

    #[test]
    fn a_call_that_is_over_sooner_is_waited_for_no_longer() {
        let now = clock::now();
        let deadline = now + Duration::from_millis(10);
        let mut patience = Patience::new(now, deadline, Duration::ZERO);
        assert_eq!(patience.next(now, Seen::default()), Next::Sleep { until: deadline });
        patience.lose(now, lost());
        assert_eq!(
            patience.next(deadline, Seen::default()),
            Next::End(lost()),
            "that says more than the time"
        );
    }
}
