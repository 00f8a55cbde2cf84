//! What the restart policy allows, computed from the record in another way than the machine does: it keeps
//! all generations and looks back on them.

use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalRank;

use super::invariants::{Turn, Verdict, require};
use super::oracle::{Cause, GenerationRecord, Oracle, WINDOW};
use super::setup::{Policy, Rule, Wait, millis};
use crate::agent::message::Action;
use crate::job_event::{JobEvent, WorkerEnd};
use crate::posix::Exit;
use crate::spec::restart::RuleAction;

/// Instants are fractions of the settings and inexact.
const ROUNDING: Duration = Duration::from_millis(1);

/// The generations that are over, and the restarts between them.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Time from the start of each to its first failure or stop, and whether a restart followed.
    ages: Vec<(Duration, bool)>,
    /// Time from the start of each to its last reap, and whether a restart followed.
    spans: Vec<(Duration, bool)>,
    /// Result of each check of the folder that succeeded.
    files: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedStep {
    /// A restart is due within this interval.
    Restart { from: Instant, by: Instant },
    /// The job is over for this reason.
    End(EndReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndReason {
    Uninterruptible,
    Rule(RuleAction),
    NoProgress,
    Budget,
    /// A device is dead, and the rest cannot be assigned.
    Devices,
}

impl Record {
    /// All workers start again, by a restart or because of other nodes.
    pub(super) fn record_restart(&mut self, current: &GenerationRecord, now: Instant, counts: bool) {
        self.ages.push((current.age(), counts));
        self.spans.push((current.span(now), counts));
    }

    pub(super) fn record_files(&mut self, files: Option<u32>) {
        self.files.extend(files.map(u64::from));
    }

    /// The restarts since the last generation that was healthy for long enough, or since the first
    /// generation.
    fn used(&self, policy: &Policy, age: Duration) -> usize {
        let ages = self.ages.iter().map(|(earlier, _)| *earlier).chain([age]);
        let is_healthy = |age: Duration| policy.reset_after.is_some_and(|enough| age >= millis(enough));
        ages.enumerate()
            .filter(|(_, age)| is_healthy(*age))
            .last()
            .map_or(&self.ages[..], |(at, _)| &self.ages[at..])
            .iter()
            .filter(|(_, counts)| *counts)
            .count()
    }

    /// True if one more restart is within the budget, after a generation of this `age` and `span`. Time without
    /// workers is not part of a window.
    fn allows(&self, (policy, most): (&Policy, u32), (age, span): (Duration, Duration)) -> bool {
        let before = match policy.window {
            Some(window) => {
                let since_each = self.spans.iter().rev().scan(span, |since, (earlier, counts)| {
                    Some((std::mem::replace(since, *since + *earlier), *counts))
                });
                let within = since_each.take_while(|(since, _)| *since < millis(window));
                within.filter(|(_, counts)| *counts).count()
            }
            None => self.used(policy, age),
        };
        before < most as usize
    }

    /// The checks in a row that saw the same as the check before.
    fn probes_without_progress(&self) -> u32 {
        let Some(last) = self.files.last() else { return 0 };
        let same = self.files.iter().rev().take_while(|seen| *seen == last).count();
        u32::try_from(same - 1).expect("few looks")
    }
}

impl Wait {
    /// The shortest and the longest wait after this many restarts.
    fn delay_range(&self, used: usize) -> (Duration, Duration) {
        let grown = (0..used).fold(u64::from(self.delay) * 1_000, |wait, _| {
            (wait * u64::from(self.factor) / 100).min(u64::from(self.cap) * 1_000)
        });
        let longest = grown.min(u64::from(self.cap) * 1_000);
        let shortest = longest * u64::from(100 - self.jitter) / 100;
        (Duration::from_micros(shortest), Duration::from_micros(longest))
    }
}

impl Rule {
    /// `own`: the exit of the worker, unless our own stop ended it.
    fn matches(&self, local_rank: LocalRank, own: Option<Exit>) -> bool {
        let code = self.code.is_none_or(|code| own == Some(Exit::Code(i32::from(code))));
        let is_of = |signal| matches!(own, Some(Exit::Signal { number, .. }) if number == signal as i32);
        code && self.signal.is_none_or(is_of) && self.rank.is_none_or(|rank| rank == local_rank.0)
    }
}

impl Turn<'_> {
    /// What is due now, if a generation has failed and its last worker is gone.
    pub(super) fn due_decision(&self) -> Option<ExpectedStep> {
        let oracle = self.oracle;
        let (local_rank, own) = blamed(self).filter(|_| !self.is_others())?;
        if matches!(self.cause(), Some(Cause::Uninterruptible(_))) {
            return Some(ExpectedStep::End(EndReason::Uninterruptible));
        }
        let policy = &oracle.setup.policy;
        let rule = policy.rules.iter().flatten().find(|rule| rule.matches(local_rank, own));
        if let Some(rule) = rule.filter(|rule| rule.then != RuleAction::Restart) {
            return Some(ExpectedStep::End(EndReason::Rule(rule.then)));
        }
        if policy.progress.is_some_and(|most| oracle.record.probes_without_progress() >= most) {
            return Some(ExpectedStep::End(EndReason::NoProgress));
        }
        let (base, age) = (self.decided_at(), oracle.current.age());
        let wait =
            policy.wait.map(|wait| wait.delay_range(oracle.record.used(policy, age))).unwrap_or_default();
        let held = self.held_until().unwrap_or(base);
        // Another invariant checks that it does not come before `held`.
        let (from, by) = (base + wait.0, (base + wait.1).max(held));
        let lived = (age, oracle.current.span(self.now));
        Some(match oracle.record.allows((policy, oracle.setup.max_restarts), lived) {
            false => ExpectedStep::End(EndReason::Budget),
            true if oracle.current.is_without_devices => ExpectedStep::End(EndReason::Devices),
            true => ExpectedStep::Restart { from, by },
        })
    }

    /// A sender that signals all processes may also signal the launcher until then: the failed worker and
    /// another worker ended with codes of their own.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let is_code = |exit: Exit| matches!(exit, Exit::Code(code) if code != 0);
        let (_, own) = blamed(self)?;
        let codes = self.oracle.current.exits_since_cause().iter().filter(|end| is_code(end.exit)).count();
        let is_held = own.is_some_and(is_code) && codes > 1;
        let current = &self.oracle.current;
        current.ended.filter(|_| is_held).map(|ended| ended + WINDOW + current.suspended_since_end)
    }

    /// When everything was known that the restart depends on; `now` while a part is open.
    fn decided_at(&self) -> Instant {
        let current = &self.oracle.current;
        let is_open = self.oracle.open_question.is_some() || current.leftover_since.is_some();
        let known = current.swept_at.filter(|_| !is_open);
        known.map_or(self.now, |swept| current.last_answer.map_or(swept, |(_, answered)| answered.max(swept)))
    }

    /// Whether a restart may come too late for the time limit, and whether it certainly does.
    pub(super) fn restart_is_too_late(&self, due: ExpectedStep) -> (bool, bool) {
        let (ExpectedStep::Restart { from, by }, Some(end)) = (due, self.oracle.time_limit_at()) else {
            return (false, false);
        };
        (end <= by.max(self.now) + ROUNDING, end <= from.max(self.now))
    }
}

/// The worker that counts as the cause, and its exit unless our own stop ended it.
fn blamed(turn: &Turn<'_>) -> Option<(LocalRank, Option<Exit>)> {
    let said = turn.actions.iter().find_map(|action| match action {
        Action::Emit(JobEvent::GroupFailed { cause }) => Some(*cause),
        _ => None,
    });
    let end = said.or(turn.oracle.current.group_failed)?;
    let is_own = matches!(turn.cause(), Some(Cause::Failed(_))) && !is_exit_by_our_stop(turn, &end);
    Some((end.local_rank, is_own.then_some(end.exit)))
}

/// The worker ended after all were told to stop, so the stop may be the reason.
fn is_exit_by_our_stop(turn: &Turn<'_>, end: &WorkerEnd) -> bool {
    let current = &turn.oracle.current;
    let at = current.ends.iter().position(|other| other == end);
    let is_later =
        current.is_lost_peer || at.is_none_or(|at| at > current.ends_before && at >= current.ends_decided);
    let is_by_us = turn.node.by_pid(end.pid).is_some_and(|process| process.is_ended_by_us(end.exit));
    let is_after_stop = current.asked_at.is_some() && at.is_none_or(|at| at >= current.ends_asked);
    let may_be_by_us = is_after_stop && matches!(end.exit, Exit::Signal { number: libc::SIGTERM, .. });
    is_later && (is_by_us || may_be_by_us)
}

impl GenerationRecord {
    /// Time from start to end without suspensions; zero for workers that never joined the store.
    fn age(&self) -> Duration {
        if matches!(self.cause, Some(Cause::NotJoined(_))) {
            return Duration::ZERO;
        }
        self.began.zip(self.ended).map_or(Duration::ZERO, |(began, ended)| ended - began - self.suspended_for)
    }

    /// Time from start to the first end, or until `now`.
    fn span(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| self.ended.unwrap_or(now) - began)
    }
}

/// A restart is within the budget and comes in its time.
pub(super) fn budget_is_kept(turn: &Turn<'_>, at: Instant) -> Verdict {
    let (oracle, policy) = (turn.oracle, &turn.oracle.setup.policy);
    let is_within = oracle
        .record
        .allows((policy, oracle.setup.max_restarts), (oracle.current.age(), oracle.current.span(at)));
    require(is_within, || format!("a restart beyond the budget: {:?}", oracle.record))?;
    let Some(ExpectedStep::Restart { from, by }) = turn.due_decision() else { return Ok(()) };
    require(at + ROUNDING >= from, || format!("{:?} before the back-off is over", from - at))?;
    require(at <= oracle.action_late_from(by), || format!("{:?} after the back-off is over", at - by))
}

/// A restart that is waited for has a deadline.
pub(super) fn wait_has_an_end(turn: &Turn<'_>) -> Verdict {
    let oracle = turn.oracle;
    let asks = |action: &Action| {
        matches!(
            action,
            Action::ProbeDevices { .. } | Action::ReassignDevices { .. } | Action::ProbeProgress { .. }
        )
    };
    let moves = |action: &Action| {
        let is_done = matches!(action, Action::Start { .. } | Action::Join { .. } | Action::Finish(_));
        is_done || asks(action) || *action == Action::FindLostNode
    };
    let is_over = oracle.finished || oracle.peers.is_joining || turn.leftover_since().is_some();
    if is_over || turn.actions.iter().any(moves) {
        return Ok(());
    }
    if let Some(give_up_at) = oracle.question_expires_at() {
        let is_awake = turn.deadline.is_some_and(|deadline| deadline <= give_up_at);
        return require(is_awake && turn.now <= oracle.action_late_from(give_up_at), || {
            format!("the look at the folder has no end, or a late one: {give_up_at:?}")
        });
    }
    if oracle.open_question.is_some() {
        return Ok(());
    }
    let Some(ExpectedStep::Restart { by, .. }) = turn.due_decision() else { return Ok(()) };
    require(turn.deadline.is_some_and(|deadline| deadline <= by + ROUNDING), || {
        format!(
            "the restart is due in {:?}, and no wakeup is planned",
            by.saturating_duration_since(turn.now)
        )
    })?;
    require(turn.now <= oracle.action_late_from(by), || format!("the restart is {:?} late", turn.now - by))
}

/// Every restart that the policy grants is made: a machine that never restarts keeps every budget.
pub(super) fn due_restarts_happen(turn: &Turn<'_>) -> Verdict {
    let Some(end) = turn.finish() else { return Ok(()) };
    if turn.oracle.stop_signal.is_some()
        || turn.oracle.peers.over.is_some()
        || end.failure.is_none()
        || !turn.given_up().is_empty()
    {
        return Ok(());
    }
    let Some(due @ ExpectedStep::Restart { .. }) = turn.due_decision() else { return Ok(()) };
    require(turn.restart_is_too_late(due).0, || {
        format!("the job ends, where a restart was due: {:?}", turn.oracle.record)
    })
}

impl Oracle {
    /// Records what was found in the checkpoint folder.
    pub(super) fn saw_files(&mut self) {
        let files = self.setup.files_after(self.generation);
        self.record.record_files(files);
    }
}
