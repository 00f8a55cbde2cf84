//! What follows a failure: (policy, history, failure, now) → decision. Pure.
//!
//! In this order: what the user wants, a worker that cannot be replaced, the rules, progress, the budget. Only then
//! there is a restart, now or after a wait.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{JobId, LocalRank, NodeRank, Rank, RestartCount};

use crate::agent::failure::{Failure, Manner};
use crate::process::Exit;
use crate::spec::LONGEST;
use crate::spec::restart::{Backoff, Conditions, RestartPolicy, RestartRule, RuleAction};

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// All workers start again.
    Restart {
        /// Not before.
        at: Instant,
    },
    /// The job has failed.
    Fail(Refusal),
    /// A rule says that the job is done.
    Succeed(RestartRule),
}

/// All that was seen in the folder of the job's checkpoints, as one number: it is another one as soon as any file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight(pub u64);

/// Why there is no restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The launcher was told to stop.
    Stopped,
    /// A worker sits in the kernel and may hold what a new one needs.
    Stuck,
    /// A rule says so.
    Rule(RestartRule),
    /// Nothing in the named folder was changed by so many restarts.
    NoProgress {
        /// How many.
        restarts: u32,
    },
    /// All are used up.
    Budget,
    /// The next one would come after the time limit.
    TooLate {
        /// How long it would have to be waited for.
        wait: Duration,
    },
    /// All that are allowed in a span of time are used up.
    Window {
        /// How many there may be.
        restarts: RestartCount,
        /// How long it is.
        window: Duration,
    },
}

/// Whether anybody still wants workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    GoOn,
    Stop,
}

/// What has become of the generations so far, as far as it counts; it does not grow with their number.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// Decides what is left to chance.
    pub(super) seed: u64,
    /// Who this node was in the round of the generation that was started last.
    place: Place,
    /// Restarts since the budget was whole.
    used: u32,
    /// Restarts since the back-off began anew.
    streak: u32,
    /// The restarts of the window that is looked at, oldest first, on a clock that stands while nobody runs.
    recent: VecDeque<Instant>,
    /// When the generation began, where it may have been healthy.
    began: Option<Instant>,
    /// When it began to end.
    ended: Option<Instant>,
    /// When the last of its workers was reaped.
    gone: Option<Instant>,
    /// For how long nobody ran, from such a moment to the restart, all in all.
    idle: Duration,
    progress: Progress,
}

/// A node among those of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Which one.
    pub(super) node: NodeRank,
    /// The rank of its first worker.
    pub(super) base: Rank,
}

/// What was seen in the folder of the job's checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nobody has looked.
    Unknown,
    /// What was there when it last was something else, and how many restarts have changed nothing since.
    Since { sight: Sight, restarts: u32 },
}

impl History {
    pub(super) const fn new() -> Self {
        Self {
            seed: 0,
            place: Place { node: NodeRank(0), base: Rank(0) },
            used: 0,
            streak: 0,
            recent: VecDeque::new(),
            began: None,
            ended: None,
            gone: None,
            idle: Duration::ZERO,
            progress: Progress::Unknown,
        }
    }

    /// All workers of a generation are started.
    pub(super) const fn generation_began(&mut self, now: Instant) {
        (self.began, self.ended, self.gone) = (Some(now), None, None);
    }

    /// The generation that is about to be started lives in a round in which this node is that one. Its workers were away
    /// for so long because others were waited for.
    pub(super) fn joined(&mut self, place: Place, waited: Duration) {
        self.place = place;
        self.idle += waited;
    }

    /// All workers start again, and that is no restart: other nodes have come or gone.
    pub(super) fn rejoined(&mut self, now: Instant, policy: &RestartPolicy) {
        (self.used, self.streak) = self.counted(policy);
        self.idle += self.gone.map_or(Duration::ZERO, |gone| now.saturating_duration_since(gone));
    }

    /// The first of them failed, or all are told to stop.
    pub(super) fn generation_ended(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    /// The workers were halted for this long: nobody was healthy meanwhile.
    pub(super) fn was_halted(&mut self, lasted: Duration) {
        if let (Some(began), None) = (&mut self.began, self.ended) {
            *began += lasted;
        }
    }

    /// The rank of a worker of this node in the round of the generation that was started last.
    pub(super) const fn rank_of(&self, local_rank: LocalRank) -> Rank {
        Rank(self.place.base.0.saturating_add(local_rank.0))
    }

    /// When the first of them ended.
    pub(super) const fn first_end(&self) -> Option<Instant> {
        self.ended
    }

    /// The last of them is gone.
    pub(super) const fn generation_is_gone(&mut self, now: Instant) {
        self.gone = Some(now);
    }

    /// Its workers never met: it was not healthy, however long it lived.
    pub(super) const fn generation_never_met(&mut self) {
        self.began = None;
    }

    /// This was seen in the job's folder after a failure.
    pub(super) fn saw(&mut self, sight: Sight) {
        let restarts = match self.progress {
            Progress::Since { sight: before, restarts } if sight == before => restarts.saturating_add(1),
            Progress::Unknown | Progress::Since { .. } => 0,
        };
        self.progress = Progress::Since { sight, restarts };
    }

    /// A restart is made.
    pub(super) fn restarted(&mut self, now: Instant, policy: &RestartPolicy) {
        let (used, streak) = self.counted(policy);
        self.used = used.saturating_add(1);
        self.streak = streak.saturating_add(1);
        let worked = self.worked(now);
        self.idle += self.gone.map_or(Duration::ZERO, |gone| now.saturating_duration_since(gone));
        if let Some(window) = policy.window {
            while self.recent.front().is_some_and(|earlier| worked.duration_since(*earlier) >= window) {
                self.recent.pop_front();
            }
            self.recent.push_back(worked);
        }
    }

    /// On the clock of the window, which stands while nobody runs: a wait would make any window large enough.
    fn worked(&self, now: Instant) -> Instant {
        let at = self.gone.unwrap_or(now);
        at.checked_sub(self.idle).unwrap_or(at)
    }

    /// What follows this failure, all of whose ends are known; `most` is `--max-restarts`.
    pub(super) fn decide(
        &self,
        (policy, most): (&RestartPolicy, RestartCount),
        wish: Wish,
        failure: &Failure,
        now: Instant,
    ) -> Decision {
        if wish == Wish::Stop {
            return Decision::Fail(Refusal::Stopped);
        }
        if !failure.is_restartable() {
            return Decision::Fail(Refusal::Stuck);
        }
        match policy.rules.iter().find(|rule| fits(&rule.when, failure, self.place)) {
            Some(rule) if rule.then == RuleAction::Succeed => return Decision::Succeed(*rule),
            Some(rule) if rule.then != RuleAction::Restart => return Decision::Fail(Refusal::Rule(*rule)),
            _ => {}
        }
        if let (Some(limit), Progress::Since { restarts, .. }) = (&policy.progress, self.progress)
            && restarts >= limit.restarts
        {
            return Decision::Fail(Refusal::NoProgress { restarts });
        }
        let (used, streak) = self.counted(policy);
        let at = now + policy.backoff.map_or(Duration::ZERO, |backoff| self.wait(&backoff, streak));
        let Some(window) = policy.window else {
            let left = used < most.0;
            return if left { Decision::Restart { at } } else { Decision::Fail(Refusal::Budget) };
        };
        let worked = self.worked(now);
        let within = |earlier: &&Instant| worked.duration_since(**earlier) < window;
        if self.recent.iter().filter(within).count() < most.0 as usize {
            Decision::Restart { at }
        } else if most.0 == 0 {
            Decision::Fail(Refusal::Budget)
        } else {
            Decision::Fail(Refusal::Window { restarts: most, window })
        }
    }

    /// The restarts that count against the budget, and those that make the wait longer.
    fn counted(&self, policy: &RestartPolicy) -> (u32, u32) {
        let healthy = self.began.zip(self.ended).map(|(began, ended)| ended.saturating_duration_since(began));
        match (policy.reset_after, healthy) {
            (Some(enough), Some(healthy)) if healthy >= enough => (0, 0),
            _ => (self.used, self.streak),
        }
    }

    fn wait(&self, backoff: &Backoff, streak: u32) -> Duration {
        let longest = backoff.cap.min(LONGEST);
        let grown = backoff.delay.as_secs_f64() * backoff.factor.powf(f64::from(streak));
        // What is beyond any duration is not beyond the cap.
        let wait = Duration::try_from_secs_f64(grown).unwrap_or(longest).min(longest);
        let left_out = backoff.jitter * chance(self.seed.wrapping_add(u64::from(streak)));
        wait.mul_f64((1.0 - left_out).clamp(0.0, 1.0))
    }
}

/// What the restart policy leaves to chance differs from job to job.
pub(super) fn seed_of(job: &JobId) -> u64 {
    let mut hasher = DefaultHasher::new();
    job.0.hash(&mut hasher);
    hasher.finish()
}

/// A number from 0 to 1 that looks like chance: one step of SplitMix64.
fn chance(seed: u64) -> f64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let high = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or(u32::MAX);
    f64::from(high) / f64::from(u32::MAX)
}

/// Whether a rule is about this failure. How a worker ended that our own stop ended says nothing.
fn fits(when: &Conditions, failure: &Failure, place: Place) -> bool {
    let first = &failure.first;
    let own = |exit: Exit| (failure.manner == Manner::Ended).then_some(exit);
    let exit = when.exit.is_none_or(|codes| {
        matches!(own(first.exit), Some(Exit::Code(code)) if u8::try_from(code).is_ok_and(|code| codes.contains(code)))
    });
    let signal = when.signal.is_none_or(
        |signal| matches!(own(first.exit), Some(Exit::Signal { number, .. }) if number == signal as i32),
    );
    let own_rank = Rank(place.base.0.saturating_add(first.local_rank.0));
    let rank = when.rank.is_none_or(|rank| rank == own_rank);
    let node = when.node.is_none_or(|node| node == place.node);
    exit && signal && rank && node
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
