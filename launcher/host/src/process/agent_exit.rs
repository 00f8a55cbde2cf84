//! How long the guard waits for the agent to exit. Pure.
//!
//! A thread of the agent may wait in the kernel for a file system that no signal reaches (state `D`): a frozen disk, for
//! example. The agent is then a process without a main thread until the file system answers. The guard does not wait for it.

use std::time::{Duration, Instant};

use rankrun_core::exit_code::ExitStatus;

/// An agent that has reported the job's status, or was killed, exits at once unless a thread of it is in state `D`.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Why the agent is about to exit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct AgentExit {
    /// The job's status, which the agent has reported.
    pub(super) status: Option<ExitStatus>,
    /// The signal that the agent did not answer, and was killed for.
    pub(super) killed_for: Option<i32>,
    /// The guard waits no longer than this.
    pub(super) deadline: Option<Instant>,
}

impl AgentExit {
    pub(super) fn on_finished(&mut self, now: Instant, status: ExitStatus) {
        self.status = Some(status);
        self.deadline = Some(now + EXIT_LIMIT);
    }

    pub(super) fn on_killed(&mut self, now: Instant, signal: i32) {
        self.killed_for.get_or_insert(signal);
        self.deadline.get_or_insert(now + EXIT_LIMIT);
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::test_clock::clock;

    #[test]
    fn exit_of_a_working_agent_is_awaited_without_limit() {
        let at = clock();
        assert!(!AgentExit::default().is_overdue(at(1_000_000)));
    }

    #[test]
    fn exit_of_a_finished_agent_is_awaited_for_a_second() {
        let at = clock();
        let mut exit = AgentExit::default();
        exit.on_finished(at(0), ExitStatus::Code(143));
        assert!(!exit.is_overdue(at(999)) && exit.is_overdue(at(1_000)));
        assert_eq!(exit.status, Some(ExitStatus::Code(143)));
    }

    #[test]
    fn further_kills_do_not_put_off_the_deadline() {
        let at = clock();
        let mut exit = AgentExit::default();
        exit.on_killed(at(0), libc::SIGINT);
        exit.on_killed(at(900), libc::SIGTERM);
        assert!(exit.is_overdue(at(1_000)));
        assert_eq!((exit.status, exit.killed_for), (None, Some(libc::SIGINT)));
    }
}
