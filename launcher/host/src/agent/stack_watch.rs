//! Takes the stacks of workers that do not answer, shortly before they are killed: on a thread of its own, so that SIGKILL
//! is sent on time whatever the workers do.
#![expect(clippy::disallowed_methods, reason = "the agent's shell compares deadlines with the clock")]

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{Generation, LocalRank};

use crate::agent::Agent;
use crate::blocking::{BlockingCall, CallProgress};
use crate::reporter::stacks::render_briefly;
use crate::stacks::{STACKS_TIMEOUT, StackMethod, take_stacks};
use rankrun_core::agent::state::start::UnansweredDeadline;
use rankrun_core::stacks::WorkerStacks;

/// Calls of each stack that are shown beside others.
pub(super) const SHOWN_CALLS: usize = 6;
/// The rest is counted.
pub(super) const MAX_SHOWN_LINES: usize = 40;
/// From the end of a collection to the deadline, at most: its lines come before the SIGKILL.
const ANSWER_MARGIN: Duration = Duration::from_millis(200);

/// The next deadline of the state, and the stacks that were taken before one.
#[derive(Debug, Default)]
pub(super) struct StackWatch {
    next: Option<Due>,
    call: Option<(Due, BlockingCall<Vec<WorkerStacks>>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Due {
    generation: Generation,
    deadline: UnansweredDeadline,
    /// Half of the time that is left, at most the time that the stacks may take, before the deadline.
    at: Instant,
    is_taken: bool,
}

/// The stacks of workers that did not answer.
#[derive(Debug)]
pub(super) struct UnansweredStacks {
    pub(super) generation: Generation,
    /// `None` if they make no progress.
    pub(super) deadline: Option<UnansweredDeadline>,
    pub(super) workers: Vec<WorkerStacks>,
}

impl StackWatch {
    /// When the stacks are due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|due| !due.is_taken).map(|due| due.at)
    }

    /// Readable when they are taken.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.call.as_ref().map(|(_, call)| call.as_fd())
    }

    fn follow(&mut self, generation: Generation, deadline: Option<UnansweredDeadline>, now: Instant) {
        let is_same = |due: &Due| Some(due.deadline) == deadline && due.generation == generation;
        if self.next.as_ref().is_some_and(is_same) {
            return;
        }
        self.next = deadline.map(|deadline| {
            let left = deadline.at().saturating_duration_since(now);
            let at = deadline.at() - STACKS_TIMEOUT.min(left / 2);
            // Without a grace there is no time to take them.
            Due { generation, deadline, at, is_taken: left.is_zero() }
        });
    }
}

impl Agent<'_> {
    /// Takes the stacks when they are due, and says where the workers stand.
    pub(super) fn advance_stacks(&mut self) {
        if !self.workers.spec().takes_stacks() {
            return;
        }
        let now = Instant::now();
        self.stack_watch.follow(self.state.generation(), self.state.unanswered_deadline(), now);
        if let Some(due) = &mut self.stack_watch.next
            && !due.is_taken
            && due.at <= now
        {
            due.is_taken = true;
            let due = *due;
            self.start_stacks(due, now);
        }
        let Some((due, call)) = &self.stack_watch.call else { return };
        let workers = match call.progress() {
            CallProgress::Running => return,
            CallProgress::Returned(workers) => workers,
            CallProgress::Lost => Vec::new(),
        };
        let (generation, deadline) = (due.generation, due.deadline);
        self.stack_watch.call = None;
        if self.state.generation() != generation {
            return;
        }
        // If the workers have stopped meanwhile, nothing is killed.
        if matches!(deadline, UnansweredDeadline::Kill(_))
            && self.state.unanswered_deadline() == Some(deadline)
        {
            let shown = render_briefly(&workers, SHOWN_CALLS, MAX_SHOWN_LINES).join("\n");
            self.announce("stacks", &format!("SIGKILL follows; the workers that do not stop:\n{shown}"));
        }
        let stacks = UnansweredStacks { generation, deadline: Some(deadline), workers };
        self.workers.set_unanswered(stacks);
    }

    fn start_stacks(&mut self, due: Due, now: Instant) {
        let mut targets = self.stack_targets();
        targets.retain(|target| target.is_live);
        if matches!(due.deadline, UnansweredDeadline::Join(_)) {
            let live: Vec<LocalRank> = targets.iter().map(|target| LocalRank(target.local_rank)).collect();
            let missing = self.workers.workers_not_joined(&live, self.rendezvous.client_pids());
            targets.retain(|target| missing.iter().any(|worker| worker.local_rank.0 == target.local_rank));
        }
        if targets.is_empty() || self.stack_watch.call.is_some() {
            return;
        }
        let left = due.deadline.at().saturating_duration_since(due.at);
        let until = due.deadline.at() - ANSWER_MARGIN.min(left / 4);
        let method = match due.deadline {
            UnansweredDeadline::Kill(_) => StackMethod::Tools,
            UnansweredDeadline::Join(_) => StackMethod::Signal,
        };
        match BlockingCall::start("stacks", move |_| take_stacks(targets, method, now, until)) {
            Ok(call) => self.stack_watch.call = Some((due, call)),
            Err(error) => tracing::info!("no stacks are taken: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_due_in_half_of_the_time_left_and_two_seconds_before_at_most() {
        let now = Instant::now();
        let mut watch = StackWatch::default();
        let mut due = |after: f64, elapsed: u64| {
            let kill = UnansweredDeadline::Kill(now + Duration::from_secs_f64(after));
            watch.follow(Generation(0), Some(kill), now + Duration::from_secs(elapsed));
            watch.deadline().map(|at| (at - now).as_secs_f64())
        };
        assert_eq!(due(30.0, 0), Some(28.0));
        assert_eq!(due(30.0, 20), Some(28.0), "the same deadline");
        assert_eq!(due(1.0, 0), Some(0.5));
        assert_eq!(due(0.0, 0), None, "no time is left");
        watch.follow(Generation(0), None, now);
        assert_eq!(watch.deadline(), None);
    }
}
