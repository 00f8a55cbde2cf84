//! What the guard does about a stop signal that the agent does not answer. Pure.
//!
//! An agent that is stopped (SIGSTOP) cannot answer: the guard continues it, and it then stops the job with the usual
//! grace. A debugger does not let go of it: that agent is killed, and the job with it.

use std::time::{Duration, Instant};

/// An agent that has not answered for this long is continued. From then on the next signal kills it.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// One that has still not answered is killed. A machine that swaps must not end in a job without its grace.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// A guard that wakes later than this stood still, and the agent with it: Ctrl-Z, a frozen cgroup.
const LATE_WAKE: Duration = Duration::from_secs(1);

/// The stop signal that the agent has not answered.
#[derive(Debug, Default)]
pub(super) struct AnswerWatch {
    pending: Option<PendingAnswer>,
}

#[derive(Debug, Clone, Copy)]
struct PendingAnswer {
    signal: i32,
    since: Instant,
    is_continued: bool,
}

/// What the guard does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerAction {
    Wait,
    /// Pass the signal on.
    Forward,
    /// Continue the agent, which may be stopped: it has not answered this signal.
    Continue(i32),
    /// Kill the agent, which has not answered this signal.
    Kill(i32),
}

impl PendingAnswer {
    fn deadline(&self) -> Instant {
        self.since + if self.is_continued { KILL_LIMIT } else { ANSWER_LIMIT }
    }
}

impl AnswerWatch {
    pub(super) fn on_answered(&mut self) {
        self.pending = None;
    }

    /// A stop signal has come. While another one is unanswered it is the same request.
    pub(super) fn on_signal(&mut self, now: Instant, signal: i32) -> AnswerAction {
        match &self.pending {
            None => {
                self.pending = Some(PendingAnswer { signal, since: now, is_continued: false });
                AnswerAction::Forward
            }
            Some(pending) if now.saturating_duration_since(pending.since) > ANSWER_LIMIT => {
                AnswerAction::Kill(signal)
            }
            Some(_) => AnswerAction::Wait,
        }
    }

    /// What is due. The agent's answers have been read just before.
    pub(super) fn on_time(&mut self, now: Instant) -> AnswerAction {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.deadline() <= now) else {
            return AnswerAction::Wait;
        };
        let PendingAnswer { signal, is_continued, .. } = *pending;
        if now.saturating_duration_since(pending.deadline()) >= LATE_WAKE {
            pending.since = now;
            AnswerAction::Wait
        } else if is_continued {
            self.pending = None;
            AnswerAction::Kill(signal)
        } else {
            pending.is_continued = true;
            AnswerAction::Continue(signal)
        }
    }

    /// When [`Self::on_time`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pending.as_ref().map(PendingAnswer::deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::test_clock::clock;

    #[test]
    fn answered_signal_has_no_deadline() {
        let (at, mut watch) = (clock(), AnswerWatch::default());
        assert_eq!((watch.deadline(), watch.on_time(at(9_000))), (None, AnswerAction::Wait));
        assert_eq!(watch.on_signal(at(0), libc::SIGTERM), AnswerAction::Forward);
        watch.on_answered();
        assert_eq!((watch.deadline(), watch.on_time(at(2_000))), (None, AnswerAction::Wait));
        assert_eq!(watch.on_signal(at(2_000), libc::SIGTERM), AnswerAction::Forward);
    }

    #[test]
    fn unanswered_signal_continues_agent_once_and_kills_it_later() {
        let (at, mut watch) = (clock(), AnswerWatch::default());
        watch.on_signal(at(0), libc::SIGTERM);
        assert_eq!((watch.deadline(), watch.on_time(at(1_999))), (Some(at(2_000)), AnswerAction::Wait));
        assert_eq!(watch.on_time(at(2_000)), AnswerAction::Continue(libc::SIGTERM));
        assert_eq!((watch.deadline(), watch.on_time(at(29_999))), (Some(at(30_000)), AnswerAction::Wait));
        assert_eq!(watch.on_time(at(30_000)), AnswerAction::Kill(libc::SIGTERM));
        assert_eq!((watch.deadline(), watch.on_time(at(30_001))), (None, AnswerAction::Wait));
    }

    #[test]
    fn further_signal_kills_agent_after_answer_limit_alone() {
        let (at, mut watch) = (clock(), AnswerWatch::default());
        watch.on_signal(at(0), libc::SIGTERM);
        assert_eq!(watch.on_signal(at(2_000), libc::SIGINT), AnswerAction::Wait);
        assert_eq!(watch.on_signal(at(2_001), libc::SIGINT), AnswerAction::Kill(libc::SIGINT));
    }

    /// The agent may have stood still too, and gets its time anew.
    #[test]
    fn guard_that_stood_still_waits_again() {
        let (at, mut watch) = (clock(), AnswerWatch::default());
        watch.on_signal(at(0), libc::SIGTERM);
        watch.on_time(at(2_000));
        assert_eq!((watch.on_time(at(99_000)), watch.deadline()), (AnswerAction::Wait, Some(at(129_000))));
        assert_eq!(watch.on_time(at(129_000)), AnswerAction::Kill(libc::SIGTERM));
    }
}
