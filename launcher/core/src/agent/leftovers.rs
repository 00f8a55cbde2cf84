//! After a success: waits for processes that the workers left running, then stops them. Pure.
//!
//! Invariant 4 of `ARCHITECTURE.md` holds here as for workers: the wait has a deadline, and SIGKILL follows
//! SIGTERM after the grace period. The wait also ends with the job's time limit. Invariant 10 holds too: a
//! signal ends the wait at once, and a second signal kills. The shell of the agent finds and signals the
//! processes.

use std::time::{Duration, Instant};

use crate::posix::Signal;

use crate::agent::phase::GIVE_UP_AFTER_KILL;
use crate::spec::stop::{AfterStop, StopPolicy, StopReason};

/// Most processes that remain when the last worker is reaped are about to exit.
const SETTLE_DELAY: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeftoverLimits {
    /// Until they get SIGTERM.
    pub(super) wait: Duration,
    /// From SIGTERM until they get SIGKILL.
    pub(super) stop: StopPolicy,
    /// When the job's time limit expires; the wait never lasts longer.
    pub(super) time_limit: Option<Instant>,
}

/// The wait, as long as a process is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftoverWait {
    limits: LeftoverLimits,
    end_at: Instant,
    stage: LeftoverStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftoverStage {
    /// The user has not been told of the processes yet.
    Settling {
        until: Instant,
    },
    /// The processes are counted again at `poll_at`: a process that leaves the job by execve(2) sends no
    /// notice.
    Waiting {
        poll_at: Instant,
        pause: Duration,
    },
    Asked {
        kill_at: Instant,
    },
    Killed {
        give_up_at: Instant,
    },
}

/// What to do about the remaining processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverStep {
    /// Nothing; whether a process is left is asked all the same.
    Wait,
    /// Name the processes to the user.
    Announce {
        /// The longest wait for them.
        wait: Duration,
        /// The time limit of the job may end the wait earlier.
        has_time_limit: bool,
    },
    /// Send them the stop signal.
    Ask {
        /// Why the wait is over.
        reason: StopReason,
        /// Time until SIGKILL.
        grace: Duration,
    },
    /// Send them SIGKILL.
    Kill {
        /// The signal that they have ignored for the grace period; `None` after a second stop signal.
        ignored_signal: Option<Signal>,
    },
    /// Kill the remaining processes again: new ones may have been forked meanwhile.
    KillAgain,
    /// Name the processes for the last time.
    GiveUp,
}

impl LeftoverWait {
    /// Starts at the last worker's exit.
    pub(super) fn new(now: Instant, limits: LeftoverLimits) -> Self {
        let end_at = now + limits.wait;
        Self { limits, end_at, stage: LeftoverStage::Settling { until: now + SETTLE_DELAY } }
    }

    /// When [`Self::poll`] is due, if nothing else happens before.
    pub(super) fn deadline(&self) -> Instant {
        match self.stage {
            LeftoverStage::Settling { until: at } | LeftoverStage::Waiting { poll_at: at, .. } => {
                at.min(self.stop_at().0)
            }
            LeftoverStage::Asked { kill_at: at } | LeftoverStage::Killed { give_up_at: at } => at,
        }
    }

    /// When and why the stop signal is due by time alone. A suspension does not put off the time limit.
    fn stop_at(&self) -> (Instant, StopReason) {
        match self.limits.time_limit {
            Some(limit) if limit <= self.end_at => (limit, StopReason::TimeLimit),
            Some(_) | None => (self.end_at, StopReason::LeftoverTimeout),
        }
    }

    /// The next step, given that a process is still there.
    pub(super) fn poll(&mut self, now: Instant) -> LeftoverStep {
        let is_due = self.deadline() <= now;
        let (ask_at, reason) = self.stop_at();
        match self.stage {
            LeftoverStage::Killed { .. } if !is_due => LeftoverStep::KillAgain,
            _ if !is_due => LeftoverStep::Wait,
            LeftoverStage::Settling { .. } | LeftoverStage::Waiting { .. } if ask_at <= now => {
                self.request_stop(now, reason)
            }
            LeftoverStage::Settling { .. } => {
                self.stage = waiting_stage(now, SETTLE_DELAY);
                let Self { limits, .. } = self;
                LeftoverStep::Announce { wait: limits.wait, has_time_limit: limits.time_limit.is_some() }
            }
            LeftoverStage::Waiting { pause, .. } => {
                self.stage = waiting_stage(now, pause * 2);
                LeftoverStep::Wait
            }
            LeftoverStage::Asked { .. } => self.kill(now, Some(Signal::SIGTERM)),
            LeftoverStage::Killed { .. } => LeftoverStep::GiveUp,
        }
    }

    /// The launcher was told to stop; `again` is true if an earlier signal was handled.
    pub(super) fn on_signal(&mut self, now: Instant, signal: Signal, again: bool) -> LeftoverStep {
        match self.stage {
            LeftoverStage::Settling { .. } | LeftoverStage::Waiting { .. } => {
                self.request_stop(now, StopReason::Signal(signal))
            }
            LeftoverStage::Asked { .. } if again => self.kill(now, None),
            LeftoverStage::Asked { .. } | LeftoverStage::Killed { .. } => LeftoverStep::Wait,
        }
    }

    /// The job and the remaining processes were suspended for this long; all deadlines but the time limit
    /// move.
    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        self.end_at += lasted;
        match &mut self.stage {
            LeftoverStage::Settling { until: at }
            | LeftoverStage::Waiting { poll_at: at, .. }
            | LeftoverStage::Asked { kill_at: at }
            | LeftoverStage::Killed { give_up_at: at } => *at += lasted,
        }
    }

    fn request_stop(&mut self, now: Instant, reason: StopReason) -> LeftoverStep {
        let grace = self.limits.stop.grace_period(reason, AfterStop::End);
        self.stage = LeftoverStage::Asked { kill_at: now + grace };
        LeftoverStep::Ask { reason, grace }
    }

    fn kill(&mut self, now: Instant, ignored_signal: Option<Signal>) -> LeftoverStep {
        self.stage = LeftoverStage::Killed { give_up_at: now + GIVE_UP_AFTER_KILL };
        LeftoverStep::Kill { ignored_signal }
    }
}

fn waiting_stage(now: Instant, pause: Duration) -> LeftoverStage {
    LeftoverStage::Waiting { poll_at: now + pause, pause }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one instant to count from")]
mod tests {
    use super::*;
    use crate::spec::stop::GraceFor;

    const STOP: StopPolicy = StopPolicy { grace: Duration::from_secs(3), grace_for: GRACE_FOR };
    const GRACE_FOR: GraceFor = GraceFor {
        signal: None,
        failure: None,
        restart: None,
        time_limit: Some(Duration::from_secs(1)),
        start_timeout: None,
    };
    const LIMITS: LeftoverLimits =
        LeftoverLimits { wait: Duration::from_secs(30), stop: STOP, time_limit: None };
    const ANNOUNCE: LeftoverStep =
        LeftoverStep::Announce { wait: Duration::from_secs(30), has_time_limit: false };
    const TERM: StopReason = StopReason::Signal(Signal::SIGTERM);
    const KILL: LeftoverStep = LeftoverStep::Kill { ignored_signal: Some(Signal::SIGTERM) };

    const fn ask(reason: StopReason, grace: u64) -> LeftoverStep {
        LeftoverStep::Ask { reason, grace: Duration::from_secs(grace) }
    }

    fn wait(limits: LeftoverLimits) -> (LeftoverWait, impl Fn(f64) -> Instant) {
        let start = Instant::now();
        (LeftoverWait::new(start, limits), move |seconds| start + Duration::from_secs_f64(seconds))
    }

    #[test]
    fn leftovers_are_announced_stopped_killed_and_given_up() {
        let (mut wait, at) = wait(LIMITS);
        let mut steps = Vec::new();
        let mut now = at(0.0);
        while steps.last().is_none_or(|(_, step)| *step != LeftoverStep::GiveUp) {
            now = wait.deadline();
            match wait.poll(now) {
                LeftoverStep::Wait => {}
                step => steps.push((now, step)),
            }
        }
        let expected = [
            (at(0.2), ANNOUNCE),
            (at(30.0), ask(StopReason::LeftoverTimeout, 3)),
            (at(33.0), KILL),
            (at(38.0), LeftoverStep::GiveUp),
        ];
        assert_eq!(steps, expected);
        assert!(now == at(38.0));
    }

    #[test]
    fn death_of_one_leftover_does_not_change_schedule() {
        let (mut wait, at) = wait(LIMITS);
        assert_eq!(wait.poll(at(0.1)), LeftoverStep::Wait);
        assert_eq!(wait.poll(at(0.3)), ANNOUNCE);
        assert_eq!((wait.poll(at(0.31)), wait.deadline()), (LeftoverStep::Wait, at(0.5)));
    }

    #[test]
    fn signal_ends_leftover_wait_and_second_signal_kills() {
        let (mut wait, at) = wait(LIMITS);
        assert_eq!(wait.poll(at(0.2)), ANNOUNCE);
        assert_eq!(wait.on_signal(at(5.0), Signal::SIGTERM, false), ask(TERM, 3));
        // The same request by another way.
        assert_eq!(wait.on_signal(at(5.1), Signal::SIGTERM, false), LeftoverStep::Wait);
        assert_eq!(wait.deadline(), at(8.0));
        assert_eq!(
            wait.on_signal(at(5.2), Signal::SIGTERM, true),
            LeftoverStep::Kill { ignored_signal: None }
        );
        assert_eq!(wait.on_signal(at(5.3), Signal::SIGTERM, true), LeftoverStep::Wait);
        assert_eq!(wait.poll(at(5.4)), LeftoverStep::KillAgain);
        assert_eq!(wait.poll(at(10.2)), LeftoverStep::GiveUp);
    }

    #[test]
    fn suspended_time_does_not_count_towards_leftover_wait() {
        let (mut wait, at) = wait(LIMITS);
        wait.add_suspended_time(Duration::from_secs(100));
        assert_eq!((wait.poll(at(100.1)), wait.poll(at(100.2))), (LeftoverStep::Wait, ANNOUNCE));
        wait.add_suspended_time(Duration::from_secs(100));
        assert_eq!(wait.deadline(), at(200.4));
        assert_eq!(wait.poll(at(229.9)), LeftoverStep::Wait);
        assert_eq!(wait.poll(at(230.0)), ask(StopReason::LeftoverTimeout, 3));
        wait.add_suspended_time(Duration::from_secs(100));
        assert_eq!(wait.poll(at(332.9)), LeftoverStep::Wait);
        assert_eq!(wait.poll(at(333.0)), KILL);
    }

    #[test]
    fn time_limit_ends_leftover_wait() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut wait = LeftoverWait::new(start, LeftoverLimits { time_limit: Some(at(10)), ..LIMITS });
        let limited = LeftoverStep::Announce { wait: LIMITS.wait, has_time_limit: true };
        assert_eq!(wait.poll(at(1)), limited);
        // The time limit is wall-clock time: a suspension does not put it off.
        wait.add_suspended_time(Duration::from_secs(5));
        assert_eq!(wait.poll(at(9)), LeftoverStep::Wait);
        assert!(wait.deadline() <= at(10));
        assert_eq!(wait.poll(at(10)), ask(StopReason::TimeLimit, 1));
        assert_eq!(wait.poll(at(11)), KILL, "the grace of the time limit");
        let mut late = LeftoverWait::new(at(20), LeftoverLimits { time_limit: Some(at(10)), ..LIMITS });
        assert_eq!(late.poll(at(20)), ask(StopReason::TimeLimit, 1));
    }

    #[test]
    fn zero_leftover_wait_stops_leftovers_at_once() {
        let (mut wait, at) = wait(LeftoverLimits { wait: Duration::ZERO, ..LIMITS });
        assert_eq!(wait.poll(at(0.0)), ask(StopReason::LeftoverTimeout, 3));
        assert_eq!(wait.deadline(), at(3.0));
    }
}
