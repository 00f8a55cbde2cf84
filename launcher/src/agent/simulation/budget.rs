//! What the restart policy allows, reckoned from the record of what happened and in another way than the machine does:
//! it keeps all that ever was, and looks back on it.

use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalRank;

use super::book::{Book, Cause, Life, WINDOW};
use super::invariants::{Turn, Verdict, must};
use super::setup::{Policy, Rule, Wait, millis};
use crate::agent::message::{Action, Happening, WorkerEnd};
use crate::process::Exit;
use crate::spec::restart::RuleAction;

/// Instants are shares of what was asked for, and are not exact.
const ROUNDING: Duration = Duration::from_millis(1);

/// The generations that are over, and what came between them.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// How long each lived before it began to end, and whether a restart came of it.
    lives: Vec<(Duration, bool)>,
    /// How long each was there, from its start until the last of it was gone, and the same.
    spans: Vec<(Duration, bool)>,
    /// What was seen at each look, where it could be seen.
    files: Vec<u64>,
}

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// A restart within this time.
    Restart { from: Instant, by: Instant },
    /// The job is over for this reason.
    End(Why),
}

/// Why there is no restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Stuck,
    Rule(RuleAction),
    NoProgress,
    Budget,
    /// Some device is dead, or there are no seats without it.
    Devices,
}

impl Record {
    /// All start again, by a restart or because of other nodes.
    pub(super) fn restarted(&mut self, life: &Life, now: Instant, counts: bool) {
        self.lives.push((life.age(), counts));
        self.spans.push((life.span(now), counts));
    }

    pub(super) fn saw(&mut self, files: Option<u32>) {
        self.files.extend(files.map(u64::from));
    }

    /// The restarts since a generation that had lived for long enough, or since the first.
    fn used(&self, policy: &Policy, age: Duration) -> usize {
        let lives = self.lives.iter().map(|(life, _)| *life).chain([age]);
        let is_healthy = |life: Duration| policy.reset_after.is_some_and(|enough| life >= millis(enough));
        lives
            .enumerate()
            .filter(|(_, life)| is_healthy(*life))
            .last()
            .map_or(&self.lives[..], |(at, _)| &self.lives[at..])
            .iter()
            .filter(|(_, counts)| *counts)
            .count()
    }

    /// Whether one more is within the budget, after a life of such an age that was there for so long. The time in which
    /// nobody was there is no part of a window.
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

    /// The looks in a row that saw what the one before them had seen.
    fn looks_without_progress(&self) -> u32 {
        let Some(last) = self.files.last() else { return 0 };
        let same = self.files.iter().rev().take_while(|seen| *seen == last).count();
        u32::try_from(same - 1).expect("few looks")
    }
}

impl Wait {
    /// The shortest and the longest that it may be after so many restarts.
    fn after(&self, used: usize) -> (Duration, Duration) {
        let grown = (0..used).fold(u64::from(self.delay) * 1_000, |wait, _| {
            (wait * u64::from(self.factor) / 100).min(u64::from(self.cap) * 1_000)
        });
        let longest = grown.min(u64::from(self.cap) * 1_000);
        let shortest = longest * u64::from(100 - self.jitter) / 100;
        (Duration::from_micros(shortest), Duration::from_micros(longest))
    }
}

impl Rule {
    /// `own`: how it ended, where that was its own doing.
    fn fits(&self, local_rank: LocalRank, own: Option<Exit>) -> bool {
        let code = self.code.is_none_or(|code| own == Some(Exit::Code(i32::from(code))));
        let is_of = |signal| matches!(own, Some(Exit::Signal { number, .. }) if number == signal as i32);
        code && self.signal.is_none_or(is_of) && self.rank.is_none_or(|rank| rank == local_rank.0)
    }
}

impl Turn<'_> {
    /// What is due now, where a generation has failed and nobody of it is left.
    pub(super) fn due(&self) -> Option<Due> {
        let book = self.book;
        let (local_rank, own) = blamed(self).filter(|_| !self.is_others())?;
        if matches!(self.cause(), Some(Cause::Stuck(_))) {
            return Some(Due::End(Why::Stuck));
        }
        let policy = &book.setup.policy;
        let rule = policy.rules.iter().flatten().find(|rule| rule.fits(local_rank, own));
        if let Some(rule) = rule.filter(|rule| rule.then != RuleAction::Restart) {
            return Some(Due::End(Why::Rule(rule.then)));
        }
        if policy.progress.is_some_and(|most| book.record.looks_without_progress() >= most) {
            return Some(Due::End(Why::NoProgress));
        }
        let (base, age) = (self.decided_at(), book.life.age());
        let wait = policy.wait.map(|wait| wait.after(book.record.used(policy, age))).unwrap_or_default();
        let held = self.held_until().unwrap_or(base);
        // That it does not come before it is held is another invariant's business.
        let (from, by) = (base + wait.0, (base + wait.1).max(held));
        let lived = (age, book.life.span(self.now));
        Some(match book.record.allows((policy, book.setup.max_restarts), lived) {
            false => Due::End(Why::Budget),
            true if book.life.is_without_devices => Due::End(Why::Devices),
            true => Due::Restart { from, by },
        })
    }

    /// Until then somebody who signals everybody may have signalled the launcher too: the one that failed and another
    /// one ended with codes of their own.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let is_code = |exit: Exit| matches!(exit, Exit::Code(code) if code != 0);
        let (_, own) = blamed(self)?;
        let codes = self.book.life.ends_since().iter().filter(|end| is_code(end.exit)).count();
        let is_held = own.is_some_and(is_code) && codes > 1;
        self.book.life.ended.filter(|_| is_held).map(|ended| ended + WINDOW)
    }

    /// When all was known on which the restart depends; now, where something is not yet.
    fn decided_at(&self) -> Instant {
        let life = &self.book.life;
        let known = life.swept_at.filter(|_| self.book.open.is_none());
        known.map_or(self.now, |swept| life.answered.map_or(swept, |(_, answered)| answered.max(swept)))
    }

    /// Whether a restart may come too late for the time limit, and whether it does so for certain.
    pub(super) fn too_late(&self, due: Due) -> (bool, bool) {
        let (Due::Restart { from, by }, Some(end)) = (due, self.book.time_is_up_at()) else {
            return (false, false);
        };
        (end <= by.max(self.now) + ROUNDING, end <= from.max(self.now))
    }
}

/// The worker that a generation is said to have failed of, and how it ended where that was its own doing.
fn blamed(turn: &Turn<'_>) -> Option<(LocalRank, Option<Exit>)> {
    let said = turn.actions.iter().find_map(|action| match action {
        Action::Say(Happening::GroupFailed { cause }) => Some(*cause),
        _ => None,
    });
    let end = said.or(turn.book.life.group_failed)?;
    let is_own = matches!(turn.cause(), Some(Cause::Failed(_))) && !is_of_the_stop(turn, &end);
    Some((end.local_rank, is_own.then_some(end.exit)))
}

/// It ended when all were told to stop, and so that this may have been why.
fn is_of_the_stop(turn: &Turn<'_>, end: &WorkerEnd) -> bool {
    let life = &turn.book.life;
    let at = life.ends.iter().position(|other| other == end);
    let is_later = life.is_named || at.is_none_or(|at| at > life.ends_before && at >= life.ends_decided);
    let is_told = turn.node.by_pid(end.pid).is_some_and(|process| process.is_ended_by_us(end.exit));
    let may_be_told =
        life.asked_at.is_some() && matches!(end.exit, Exit::Signal { number: libc::SIGTERM, .. });
    is_later && (is_told || may_be_told)
}

impl Life {
    /// How long it lived before it began to end, but for halts; who have never met have not lived.
    fn age(&self) -> Duration {
        if matches!(self.cause, Some(Cause::NotJoined(_))) {
            return Duration::ZERO;
        }
        self.began.zip(self.ended).map_or(Duration::ZERO, |(began, ended)| ended - began - self.halted)
    }

    /// How long it was there; until now, where its last is only just gone.
    fn span(&self, now: Instant) -> Duration {
        let gone = self.settled.or(self.swept_at).unwrap_or(now);
        self.began.map_or(Duration::ZERO, |began| gone - began)
    }
}

/// A restart is within the budget and comes in its time.
pub(super) fn budget_is_kept(turn: &Turn<'_>, at: Instant) -> Verdict {
    let (book, policy) = (turn.book, &turn.book.setup.policy);
    let is_within =
        book.record.allows((policy, book.setup.max_restarts), (book.life.age(), book.life.span(at)));
    must(is_within, || format!("a restart beyond the budget: {:?}", book.record))?;
    let Some(Due::Restart { from, by }) = turn.due() else { return Ok(()) };
    must(at + ROUNDING >= from, || format!("{:?} before the back-off is over", from - at))?;
    must(at <= book.late_from(by), || format!("{:?} after the back-off is over", at - by))
}

/// A restart that is waited for has a deadline.
pub(super) fn wait_has_an_end(turn: &Turn<'_>) -> Verdict {
    let book = turn.book;
    let asks = |action: &Action| {
        matches!(action, Action::CheckDevices { .. } | Action::Reseat { .. } | Action::LookForProgress { .. })
    };
    let moves = |action: &Action| {
        let is_done = matches!(action, Action::Start { .. } | Action::Join { .. } | Action::Finish(_));
        is_done || asks(action) || *action == Action::AskBlame
    };
    if book.finished || book.others.is_joining || turn.actions.iter().any(moves) {
        return Ok(());
    }
    if let Some(give_up_at) = book.look_ends_at() {
        let is_awake = turn.deadline.is_some_and(|deadline| deadline <= give_up_at);
        return must(is_awake && turn.now <= book.late_from(give_up_at), || {
            format!("the look at the folder has no end, or a late one: {give_up_at:?}")
        });
    }
    if book.open.is_some() {
        return Ok(());
    }
    let Some(Due::Restart { by, .. }) = turn.due() else { return Ok(()) };
    must(turn.deadline.is_some_and(|deadline| deadline <= by + ROUNDING), || {
        format!("the restart is due in {:?}, and nobody will wake", by.saturating_duration_since(turn.now))
    })?;
    must(turn.now <= book.late_from(by), || format!("the restart is {:?} late", turn.now - by))
}

/// Every restart that the policy grants is made: a machine that never restarts keeps every budget.
pub(super) fn grants_are_made(turn: &Turn<'_>) -> Verdict {
    let Some(end) = turn.finish() else { return Ok(()) };
    if turn.book.wish.is_some()
        || turn.book.others.over.is_some()
        || end.failure.is_none()
        || !turn.given_up().is_empty()
    {
        return Ok(());
    }
    let Some(due @ Due::Restart { .. }) = turn.due() else { return Ok(()) };
    must(turn.too_late(due).0, || format!("the job ends, where a restart was due: {:?}", turn.book.record))
}

impl Book {
    /// What was seen in the job's folder.
    pub(super) fn saw_files(&mut self) {
        let files = self.setup.files_after(self.generation);
        self.record.saw(files);
    }
}
