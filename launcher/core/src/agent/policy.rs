//! The restart policy: (policy, history, failure) → decision. Pure. The answer is the same from the first end of a
//! generation on, so it is asked once.
//!
//! The checks run in this order: the user's stop, an irreplaceable worker, the rules, the budget. If all allow
//! it, there is a restart, now or after a wait, unless a later probe shows that the job makes no progress.
//! `state::restart` feeds the history and carries the decision out.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{JobId, LocalRank, NodeRank, Rank, RestartCount};

use crate::agent::failure::Failure;
use crate::agent::recurrence::{FailureSignature, ProgressMark, Recurrence};
use crate::job_event::{FailureKind, NoRestart};
use crate::posix::{Exit, Signal};
use crate::spec::MAX_DURATION;
use crate::spec::restart::{Backoff, Conditions, FailureShare, RestartPolicy, RestartRule, RuleAction};

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// All workers start again.
    Restart {
        /// The wait from the last reap on.
        wait: Duration,
    },
    /// The job has failed for this reason.
    Fail(NoRestart),
    /// A rule counts the failure as a success.
    Succeed(RestartRule),
}

/// What the policy needs to know of the generations so far. Its size does not grow with their number.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// Seed of the jitter.
    pub(super) seed: u64,
    /// This node's place in the round of the last started generation.
    node_slot: NodeSlot,
    /// Restarts used since the budget was last reset.
    used: u32,
    /// Restarts since the back-off was last reset.
    streak: u32,
    /// The restarts within the window, oldest first, on a clock that stops while no worker runs.
    recent_restarts: VecDeque<Instant>,
    /// Start of the generation; unset if its workers never joined the store.
    began: Option<Instant>,
    /// Time of the first failure or of the stop.
    ended: Option<Instant>,
    /// Total time without a whole generation, from its first end to the next start.
    idle: Duration,
    recurrence: Option<Recurrence>,
    /// Whether a worker of this node failed first, for each of the last restarts after a failure.
    first_failures: VecDeque<bool>,
}

/// The place of this node in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct NodeSlot {
    pub(super) node: NodeRank,
    pub(super) base: Rank,
}

impl History {
    pub(super) const fn new() -> Self {
        Self {
            seed: 0,
            node_slot: NodeSlot { node: NodeRank(0), base: Rank(0) },
            used: 0,
            streak: 0,
            recent_restarts: VecDeque::new(),
            began: None,
            ended: None,
            idle: Duration::ZERO,
            recurrence: None,
            first_failures: VecDeque::new(),
        }
    }

    /// All workers of a generation are started.
    pub(super) const fn record_start(&mut self, now: Instant) {
        (self.began, self.ended) = (Some(now), None);
    }

    /// The next generation has this place in its round. It waited for this long until the round was complete.
    pub(super) fn record_joined(&mut self, place: NodeSlot, waited: Duration) {
        self.node_slot = place;
        self.idle += waited;
    }

    /// All workers start again because other nodes joined or left; that does not count as a restart.
    pub(super) fn record_rejoin(&mut self, now: Instant, policy: &RestartPolicy) {
        (self.used, self.streak) = self.counted_restarts(policy);
        self.idle += self.ended.map_or(Duration::ZERO, |ended| now.saturating_duration_since(ended));
    }

    /// The first worker failed, or all are told to stop.
    pub(super) fn record_first_end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    /// The job was suspended for this long, which does not count as healthy time. The window of a signal that worker
    /// and launcher get alike moves with the first end.
    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        if let Some(began) = &mut self.began {
            *began += lasted;
        }
        if let Some(ended) = &mut self.ended {
            *ended += lasted;
            self.idle += lasted;
        }
    }

    /// The global rank of a worker of this node, in the round of the last started generation.
    pub(super) const fn rank_of(&self, local_rank: LocalRank) -> Rank {
        Rank(self.node_slot.base.0.saturating_add(local_rank.0))
    }

    pub(super) const fn first_end(&self) -> Option<Instant> {
        self.ended
    }

    /// The workers never joined the store, so the generation does not count as healthy.
    pub(super) const fn record_never_joined(&mut self) {
        self.began = None;
    }

    /// Records how far the job had come when it failed.
    pub(super) fn record_progress(&mut self, mark: ProgressMark, signature: FailureSignature) {
        self.recurrence = Some(Recurrence::after(self.recurrence.take(), mark, signature));
    }

    pub(super) fn record_restart(&mut self, now: Instant, policy: &RestartPolicy) {
        let (used, streak) = self.counted_restarts(policy);
        self.used = used.saturating_add(1);
        self.streak = streak.saturating_add(1);
        let worked = self.work_clock(now);
        self.idle += self.ended.map_or(Duration::ZERO, |ended| now.saturating_duration_since(ended));
        if let Some(window) = policy.window {
            while self
                .recent_restarts
                .front()
                .is_some_and(|earlier| worked.duration_since(*earlier) >= window)
            {
                self.recent_restarts.pop_front();
            }
            self.recent_restarts.push_back(worked);
        }
    }

    /// Time on the window's clock, which stops from the first end on: else a long wait would empty any window.
    fn work_clock(&self, now: Instant) -> Instant {
        let at = self.ended.unwrap_or(now);
        at.checked_sub(self.idle).unwrap_or(at)
    }

    /// What follows this failure; `now` counts only if no worker has ended.
    pub(super) fn decide_restart(
        &self,
        (policy, max_restarts): (&RestartPolicy, RestartCount),
        stopped_by: Option<Signal>,
        failure: &Failure,
        now: Instant,
    ) -> Decision {
        if stopped_by.is_some() {
            return Decision::Fail(NoRestart::Stopped);
        }
        if !failure.is_restartable() {
            return Decision::Fail(NoRestart::Uninterruptible);
        }
        match policy.rules.iter().find(|rule| matches_conditions(&rule.when, failure, self.node_slot)) {
            Some(rule) if rule.then == RuleAction::Succeed => return Decision::Succeed(*rule),
            Some(rule) if rule.then != RuleAction::Restart => return Decision::Fail(NoRestart::Rule(*rule)),
            _ => {}
        }
        let (used, streak) = self.counted_restarts(policy);
        let wait = policy.backoff.map_or(Duration::ZERO, |backoff| self.backoff_delay(&backoff, streak));
        let Some(window) = policy.window else {
            let left = used < max_restarts.0;
            return if left { Decision::Restart { wait } } else { Decision::Fail(NoRestart::Budget) };
        };
        let worked = self.work_clock(now);
        let within = |earlier: &&Instant| worked.duration_since(**earlier) < window;
        if self.recent_restarts.iter().filter(within).count() < max_restarts.0 as usize {
            Decision::Restart { wait }
        } else if max_restarts.0 == 0 {
            Decision::Fail(NoRestart::Budget)
        } else {
            Decision::Fail(NoRestart::Window { restarts: max_restarts, window })
        }
    }

    /// A restart follows the failure of a worker, which is of this node or not.
    pub(super) fn record_first_failure(&mut self, is_own: bool) {
        self.first_failures.push_back(is_own);
        if self.first_failures.len() > FailureShare::MAX_RESTARTS as usize {
            self.first_failures.pop_front();
        }
    }

    /// Workers of this node have failed first so often that the job is to go on without it, if it can.
    pub(super) fn is_failing_node(&self, policy: &RestartPolicy) -> bool {
        let Some(FailureShare { failures, restarts }) = policy.exclude_node_after else { return false };
        let last = self.first_failures.iter().rev().take(restarts as usize);
        last.filter(|is_own| **is_own).count() >= failures as usize
    }

    /// Forbids a granted restart, once the progress of the generation is recorded.
    pub(super) fn refuse_without_progress(&self, policy: &RestartPolicy) -> Option<NoRestart> {
        let limit = policy.progress.as_ref()?.restarts;
        let recurrence = self.recurrence.as_ref().filter(|it| it.restarts >= limit)?;
        let step = match recurrence.mark {
            ProgressMark::Files(_) => None,
            ProgressMark::Step(step) => Some(step?),
        };
        Some(NoRestart::NoProgress { restarts: recurrence.restarts, step })
    }

    /// The failures that have reached the limit where nothing shows whether the job makes progress. Once for each cause.
    pub(super) fn unmeasured_recurrence(&self, policy: &RestartPolicy) -> Option<&Recurrence> {
        let limit = policy.progress.as_ref()?.restarts;
        let has_reached = |it: &&Recurrence| it.mark == ProgressMark::Step(None) && it.restarts == limit;
        self.recurrence.as_ref().filter(has_reached)
    }

    /// The restarts that count against the budget, and those that lengthen the wait.
    fn counted_restarts(&self, policy: &RestartPolicy) -> (u32, u32) {
        let healthy = self.began.zip(self.ended).map(|(began, ended)| ended.saturating_duration_since(began));
        match (policy.reset_after, healthy) {
            (Some(enough), Some(healthy)) if healthy >= enough => (0, 0),
            _ => (self.used, self.streak),
        }
    }

    fn backoff_delay(&self, backoff: &Backoff, streak: u32) -> Duration {
        let longest = backoff.cap.min(MAX_DURATION);
        let grown = backoff.delay.as_secs_f64() * backoff.factor.powf(f64::from(streak));
        // A wait beyond any duration is cut to the cap.
        let wait = Duration::try_from_secs_f64(grown).unwrap_or(longest).min(longest);
        let reduction = backoff.jitter * random_fraction(self.seed.wrapping_add(u64::from(streak)));
        wait.mul_f64((1.0 - reduction).clamp(0.0, 1.0))
    }
}

/// Seed of the jitter, which differs from job to job.
pub fn jitter_seed(job: &JobId) -> u64 {
    let mut hasher = DefaultHasher::new();
    job.0.hash(&mut hasher);
    hasher.finish()
}

/// A pseudo-random number from 0 to 1: one step of SplitMix64.
fn random_fraction(seed: u64) -> f64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let high = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or(u32::MAX);
    f64::from(high) / f64::from(u32::MAX)
}

/// True if a rule matches this failure. If our own stop ended the worker, its exit matches no exit or signal
/// condition.
fn matches_conditions(when: &Conditions, failure: &Failure, place: NodeSlot) -> bool {
    let first = &failure.first;
    let own = |exit: Exit| (failure.kind == FailureKind::Ended).then_some(exit);
    let exit = when.exit.is_none_or(|codes| {
        matches!(own(first.exit), Some(Exit::Code(code)) if u8::try_from(code).is_ok_and(|code| codes.contains(code)))
    });
    let signal = when.signal.is_none_or(
        |signal| matches!(own(first.exit), Some(Exit::Signal { number, .. }) if number == signal as i32),
    );
    let cause = when.cause.is_none_or(|cause| failure.cause() == Some(cause));
    let own_rank = Rank(place.base.0.saturating_add(first.local_rank.0));
    let rank = when.rank.is_none_or(|rank| rank == own_rank);
    let node = when.node.is_none_or(|node| node == place.node);
    exit && signal && cause && rank && node
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
