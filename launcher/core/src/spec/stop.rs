//! The stop policy: a signal to each worker or its process group, then SIGKILL to all groups after the grace period; and
//! the time limits that stop them. Pure.

use std::fmt;
use std::time::Duration;

use crate::posix::Signal;
use clap::ValueEnum;
use serde::Serialize;

/// How long workers may take to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopPolicy {
    /// From the signal to SIGKILL, whatever the cause.
    pub grace: Duration,
    /// Grace periods for single causes of a stop.
    pub grace_for: GraceFor,
}

/// The processes of a worker that get the signal to stop. SIGKILL ends the whole group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopTarget {
    /// The worker alone where its process is the training program itself, else its process group.
    Auto,
    /// The worker alone: what it has started can serve it while it saves its work.
    Rank,
    /// The process group of the worker, as under torchrun.
    Group,
}

/// The treatment of processes that outlive the workers of a successful job. After any other end they are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverPolicy {
    /// They live on, as under torchrun.
    Keep,
    /// The launcher waits for them, and then stops them with SIGTERM, and after the grace with SIGKILL; processes with
    /// `RANKRUN_KEEP=1` in their environment live on.
    End {
        /// How long they are waited for.
        grace: Duration,
    },
}

/// How long the whole job may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit {
    /// From the first start of the workers, over all restarts.
    pub limit: Duration,
    /// The early warning of `--warn-signal`, if set.
    pub warning: Option<EarlyWarning>,
}

/// The signal to the workers before the time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyWarning {
    /// The signal that workers get as a warning.
    pub signal: Signal,
    /// The time between the warning and the stop.
    pub before: Duration,
}

/// Grace periods for single causes of a stop; `None` if none is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GraceFor {
    /// The grace period after a signal to the launcher.
    pub signal: Option<Duration>,
    /// The grace period after a worker's failure.
    pub failure: Option<Duration>,
    /// A worker failed, and all may start again.
    pub restart: Option<Duration>,
    /// The grace period at the time limit.
    pub time_limit: Option<Duration>,
    /// A worker has not joined the store in time.
    pub start_timeout: Option<Duration>,
}

/// Why the processes of the job are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The launcher was told to stop by this signal.
    Signal(Signal),
    /// The time limit of the job expired.
    TimeLimit,
    /// A worker failed.
    WorkerFailed,
    /// A worker has not joined the store in time.
    StartTimeout,
    /// A worker could not be started.
    NotStarted,
    /// The user wants all workers to start again.
    RestartRequest,
    /// Other nodes have failed, left or joined: all workers start again.
    Membership,
    /// The job has ended on another node.
    EndedElsewhere,
    /// Processes that the workers left running have outlived the wait for them.
    LeftoverTimeout,
}

/// What is expected to follow a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterStop {
    /// All workers may be started again.
    Restart,
    /// The job ends after this stop.
    End,
}

/// A cause that can have a grace of its own, as a file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraceCause {
    /// The launcher received a signal to stop.
    Signal,
    /// A worker failed and the job ends.
    Failure,
    /// A failed worker, and a restart to come.
    Restart,
    /// The limit of `--time-limit` expired.
    TimeLimit,
    /// The limit of `--start-timeout` expired.
    StartTimeout,
}

impl StopPolicy {
    /// From the signal to SIGKILL, for a stop with this reason.
    #[must_use]
    pub(crate) fn grace_period(&self, reason: StopReason, after: AfterStop) -> Duration {
        self.grace_for.resolve(reason, after).unwrap_or(self.grace)
    }
}

impl GraceFor {
    /// The grace period set for a stop with this reason. A reason for which none can be set counts as a failure, but
    /// for processes that the workers left running.
    fn resolve(&self, reason: StopReason, after: AfterStop) -> Option<Duration> {
        let failure = match after {
            AfterStop::Restart => self.restart.or(self.failure),
            AfterStop::End => self.failure,
        };
        match reason {
            StopReason::Signal(_) => self.signal,
            StopReason::TimeLimit => self.time_limit,
            StopReason::StartTimeout => self.start_timeout.or(failure),
            StopReason::WorkerFailed
            | StopReason::NotStarted
            | StopReason::RestartRequest
            | StopReason::Membership
            | StopReason::EndedElsewhere => failure,
            StopReason::LeftoverTimeout => None,
        }
    }

    /// The grace period set for this cause alone.
    #[must_use]
    pub const fn get(&self, cause: GraceCause) -> Option<Duration> {
        match cause {
            GraceCause::Signal => self.signal,
            GraceCause::Failure => self.failure,
            GraceCause::Restart => self.restart,
            GraceCause::TimeLimit => self.time_limit,
            GraceCause::StartTimeout => self.start_timeout,
        }
    }

    /// With a grace for this cause.
    pub const fn set(&mut self, cause: GraceCause, grace: Duration) {
        let slot = match cause {
            GraceCause::Signal => &mut self.signal,
            GraceCause::Failure => &mut self.failure,
            GraceCause::Restart => &mut self.restart,
            GraceCause::TimeLimit => &mut self.time_limit,
            GraceCause::StartTimeout => &mut self.start_timeout,
        };
        *slot = Some(grace);
    }
}

impl GraceCause {
    /// All causes, in the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::Signal, Self::Failure, Self::Restart, Self::TimeLimit, Self::StartTimeout];

    /// The key of the cause in `[stop.grace-for]`.
    #[must_use]
    pub fn key(self) -> &'static str {
        self.setting().trim_start_matches("grace-for.")
    }

    /// The same behind the table's name.
    #[must_use]
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Signal => "grace-for.signal",
            Self::Failure => "grace-for.failure",
            Self::Restart => "grace-for.restart",
            Self::TimeLimit => "grace-for.time-limit",
            Self::StartTimeout => "grace-for.start-timeout",
        }
    }
}

impl fmt::Display for GraceCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_specific_grace_period_wins() {
        let seconds = Duration::from_secs;
        let mut policy = StopPolicy { grace: seconds(30), grace_for: GraceFor::default() };
        let all = [
            (StopReason::Signal(Signal::SIGTERM), AfterStop::End),
            (StopReason::TimeLimit, AfterStop::End),
            (StopReason::WorkerFailed, AfterStop::End),
            (StopReason::WorkerFailed, AfterStop::Restart),
            (StopReason::StartTimeout, AfterStop::End),
            (StopReason::StartTimeout, AfterStop::Restart),
        ];
        for (cause, graces) in [
            (None, [30; 6]),
            (Some((GraceCause::Failure, 5)), [30, 30, 5, 5, 5, 5]),
            (Some((GraceCause::Restart, 2)), [30, 30, 5, 2, 5, 2]),
            (Some((GraceCause::StartTimeout, 1)), [30, 30, 5, 2, 1, 1]),
            (Some((GraceCause::TimeLimit, 120)), [30, 120, 5, 2, 1, 1]),
            (Some((GraceCause::Signal, 60)), [60, 120, 5, 2, 1, 1]),
        ] {
            if let Some((cause, grace)) = cause {
                policy.grace_for.set(cause, seconds(grace));
                assert_eq!(policy.grace_for.get(cause), Some(seconds(grace)), "{cause}");
            }
            assert_eq!(all.map(|(reason, after)| policy.grace_period(reason, after)), graces.map(seconds));
        }
    }
}
