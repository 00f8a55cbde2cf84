//! The numbered invariants, one function each, in the words of `ARCHITECTURE.md`. They judge by inputs,
//! actions and the processes of the virtual node; the machine itself is never asked.
//!
//! Parts that the state machine does not own are judged as far as its actions show them:
//!
//! - 2: a round is complete when the rendezvous says so, which it does at once in a job of one node.
//! - 3: reaping belongs to the agent's loop; here, that no worker is forgotten and no exit counts twice.
//! - 9: heartbeats belong to the rendezvous; here, every other message about an old generation.

use std::time::{Duration, Instant};

use crate::posix::Signal;

use rankrun_contract::rank::{Generation, LocalRank, RestartCount};

use super::budget::{EndReason, ExpectedStep, budget_is_kept, due_restarts_happen, wait_has_an_end};
use super::causes::invariant_5;
use super::groups::groups_have_the_grace;
use super::limits::{limits_are_enforced, ranks_are_collected_before_the_stop, window_is_kept};
use super::node::{Node, Process};
use super::oracle::{Cause, LENIENCY, Oracle, Question};
use super::others::{others_are_heard, starts_are_of_their_rounds};
use super::setup::Setup;
use super::status::invariant_8;
use super::suspension::suspension_is_kept;
use crate::agent::message::{Action, Input, JobOutcome};
use crate::agent::rules::Interrupt;
use crate::job_event::JobEvent;
use crate::spec::stop::StopReason;

/// From SIGKILL until the report that it did not help.
const GIVE_UP_AFTER_KILL: Duration = Duration::from_secs(5);

/// One answer of the machine, or a moment at which it was silent.
pub(super) struct Turn<'a> {
    pub(super) setup: &'a Setup,
    /// With the input, but without the machine's answer.
    pub(super) oracle: &'a Oracle,
    pub(super) node: &'a Node,
    pub(super) now: Instant,
    pub(super) input: Option<&'a Input>,
    /// The input is about a generation that is over.
    pub(super) is_stale: bool,
    pub(super) deadline_before: Option<Instant>,
    pub(super) deadline: Option<Instant>,
    pub(super) actions: &'a [Action],
}

/// On failure: what is wrong, in words.
pub(super) type Verdict = Result<(), String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) invariant: &'static Invariant,
    pub(super) why: String,
}

#[derive(Debug)]
pub(super) struct Invariant {
    pub(super) number: &'static str,
    pub(super) description: &'static str,
    covers: Covers,
    holds: fn(&Turn<'_>) -> Verdict,
}

/// The turns that an invariant covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Covers {
    /// Turns with actions.
    Actions,
    /// All turns, with actions or without.
    Silence,
}

impl PartialEq for Invariant {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Invariant {}

pub(super) static INVARIANTS: [Invariant; 20] = [
    Invariant {
        number: "1",
        description: "At most one generation has living workers.",
        covers: Covers::Actions,
        holds: invariant_1,
    },
    Invariant {
        number: "2",
        description: "A worker is spawned only for a completed round, with the placement of that round.",
        covers: Covers::Actions,
        holds: invariant_2,
    },
    Invariant {
        number: "3",
        description: "Every spawned process is reaped exactly once, and its exit enters the state exactly once.",
        covers: Covers::Actions,
        holds: invariant_3,
    },
    Invariant {
        number: "4",
        description: "Every stop has a cause, a deadline and an end: SIGKILL is sent by grace + 0.1 s, the stop ends with \
                the last reap, and what is not reaped 5 s later is reported.",
        covers: Covers::Silence,
        holds: invariant_4,
    },
    Invariant {
        number: "5",
        description: "The first cause of a generation's end is never replaced; a worker that ended by our own stop signal \
                is never a cause.",
        covers: Covers::Actions,
        holds: invariant_5,
    },
    Invariant {
        number: "6",
        description: "Restarts never exceed the policy's budget; a membership change uses none of it.",
        covers: Covers::Silence,
        holds: invariant_6,
    },
    Invariant {
        number: "7",
        description: "No restart after a stop by the user, by a time limit, or after the job is closed.",
        covers: Covers::Actions,
        holds: invariant_7,
    },
    Invariant {
        number: "8",
        description: "The exit status is a function of the final state alone, by the table in `exit_code.rs`.",
        covers: Covers::Actions,
        holds: invariant_8,
    },
    Invariant {
        number: "9",
        description: "A heartbeat of an old generation changes nothing.",
        covers: Covers::Silence,
        holds: invariant_9,
    },
    Invariant {
        number: "10",
        description: "A handled signal is answered in every phase, at once; the second one kills.",
        covers: Covers::Silence,
        holds: invariant_10,
    },
    Invariant {
        number: "left out",
        description: "A worker that is left to a person is waited for, and never signalled (`rules.rs`).",
        covers: Covers::Actions,
        holds: external_worker_is_not_signalled,
    },
    Invariant {
        number: "window",
        description: "A worker that ends by a handled stop signal is not a failure until 500 ms have passed without that \
                signal reaching the launcher, and where several end with codes no worker restarts before \
                (`state/window.rs`).",
        covers: Covers::Silence,
        holds: window_is_kept,
    },
    Invariant {
        number: "limits",
        description: "The time limit and the start limit strike in time and not before, and the warning comes once \
                (`state/limit.rs`, `state/start.rs`).",
        covers: Covers::Silence,
        holds: limits_are_enforced,
    },
    Invariant {
        number: "ranks",
        description: "The ranks are collected once in a generation, before the first stop signal (`state/rank_table.rs`).",
        covers: Covers::Actions,
        holds: ranks_are_collected_before_the_stop,
    },
    Invariant {
        number: "others",
        description: "What other nodes do ends the round here at once, what fails here is told at once unless the cause is \
                known, which is a failure that lost no peer, and leaving is not closing (`state/rendezvous.rs`).",
        covers: Covers::Silence,
        holds: others_are_heard,
    },
    Invariant {
        number: "requested",
        description: "A requested restart stops all workers at once, and starts them again unless the job is told to end \
                meanwhile (`state/control.rs`).",
        covers: Covers::Silence,
        holds: requested_restarts_happen,
    },
    Invariant {
        number: "suspended",
        description: "A suspended job does nothing until it goes on, is told to stop or its time limit is over. It refuses \
                a restart at once. Its workers are killed before the other nodes start their round again \
                (`state/suspend.rs`).",
        covers: Covers::Silence,
        holds: suspension_is_kept,
    },
    Invariant {
        number: "survivors",
        description: "A process that SIGKILL does not end is awaited for 5 s and told once; no later generation waits for \
                it (`state/leftovers.rs`).",
        covers: Covers::Silence,
        holds: survivors_are_awaited_once,
    },
    Invariant {
        number: "groups",
        description: "What a worker leaves in its process group gets the stop signal at the worker's exit, if the worker \
                got it alone, and has the rest of the grace (`state/groups.rs`).",
        covers: Covers::Silence,
        holds: groups_have_the_grace,
    },
    Invariant {
        number: "granted",
        description: "A restart that the policy grants is made (`policy.rs`).",
        covers: Covers::Actions,
        holds: due_restarts_happen,
    },
];

impl Broken {
    pub(super) fn by_number(number: &str, why: String) -> Self {
        let invariant = INVARIANTS.iter().find(|invariant| invariant.number == number);
        Self { invariant: invariant.expect("a numbered invariant"), why }
    }

    /// The machine and its deadline do not come to an end.
    pub(super) fn by_the_deadline(why: String) -> Self {
        Self { invariant: &INVARIANTS[3], why: format!("the deadline: {why}") }
    }
}

/// All invariants that do not hold.
pub(super) fn check_invariants(turn: &Turn<'_>) -> Result<(), Vec<Broken>> {
    let is_silent = turn.actions.is_empty();
    let broken: Vec<Broken> = INVARIANTS
        .iter()
        .filter(|invariant| !is_silent || invariant.covers == Covers::Silence)
        .filter(|invariant| turn.oracle.suspended_at.is_none() || invariant.number == "suspended")
        .filter_map(|invariant| (invariant.holds)(turn).err().map(|why| Broken { invariant, why }))
        .collect();
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

/// Fails with `why` unless it `holds`.
pub(super) fn require(holds: bool, why: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(why()) }
}

impl Turn<'_> {
    fn starts(&self) -> impl Iterator<Item = (usize, Generation, RestartCount)> {
        self.actions.iter().enumerate().filter_map(|(at, action)| match action {
            Action::Start { generation, restart_count, .. } => Some((at, *generation, *restart_count)),
            _ => None,
        })
    }

    const fn input_signal(&self) -> Option<Signal> {
        match self.input {
            Some(Input::StopRequested { signal, .. }) => Some(*signal),
            _ => None,
        }
    }

    pub(super) fn finish(&self) -> Option<&JobOutcome> {
        self.actions.iter().find_map(|action| match action {
            Action::Finish(end) => Some(end),
            _ => None,
        })
    }

    /// The workers of the current generation, except the external worker.
    pub(super) fn workers(&self) -> impl Iterator<Item = &Process> {
        self.node.launched_workers(self.oracle.generation)
    }

    fn is_sent(&self, process: &Process, wanted: Signal) -> bool {
        let is_it = |action: &Action| match action {
            Action::Signal { generation, local_ranks, signal } => {
                *generation == process.generation
                    && *signal == wanted
                    && local_ranks.contains(&process.local_rank)
            }
            _ => false,
        };
        process.signals.contains(&wanted) || self.actions.iter().any(is_it)
    }

    fn sweeps(&self, actions: &[Action]) -> bool {
        let is_it = |action: &Action| matches!(action, Action::KillLeftovers { generation } if *generation == self.oracle.generation);
        self.oracle.current.swept_at.is_some() || actions.iter().any(is_it)
    }

    /// Since when a leftover that SIGKILL does not end is awaited, unless the wait is over.
    pub(super) fn leftover_since(&self) -> Option<Instant> {
        let kills = |action: &Action| matches!(action, Action::KillLeftovers { .. });
        let is_new = self.oracle.survivor_reports == 0 && self.actions.iter().any(kills);
        let unkillable = self.setup.unkillable_after(self.oracle.generation).filter(|_| is_new);
        let goes_on = |action: &Action| {
            matches!(
                action,
                Action::Finish(_) | Action::Join { .. } | Action::Emit(JobEvent::LeftoversSurvive { .. })
            )
        };
        let since = self.oracle.current.leftover_since.or(unkillable.map(|_| self.now));
        since.filter(|_| !self.actions.iter().any(goes_on))
    }

    /// Why the generation ends, as the machine was told or has just found out.
    pub(super) fn cause(&self) -> Option<Cause> {
        let found = || self.actions.iter().find_map(|action| self.oracle.current.cause_in_action(action));
        self.oracle.current.cause.or_else(found)
    }

    pub(super) fn given_up(&self) -> &[LocalRank] {
        let said = self.actions.iter().find_map(|action| match action {
            Action::Emit(JobEvent::CannotEnd { local_ranks }) => Some(local_ranks),
            _ => None,
        });
        said.unwrap_or(&self.oracle.current.given_up)
    }
}

/// Also no process that an old generation left behind is alive.
fn invariant_1(turn: &Turn<'_>) -> Verdict {
    let Some(at) = turn.next_generation_at() else { return Ok(()) };
    let old = turn.node.processes.iter().find(|old| old.is_alive() && !old.is_external);
    require(old.is_none(), || format!("a generation begins, and {old:?} is alive"))?;
    let is_swept = turn.oracle.starts == 0 || turn.sweeps(&turn.actions[..at]);
    require(is_swept, || "a generation begins before the old one's leftovers are killed".to_owned())
}

fn invariant_2(turn: &Turn<'_>) -> Verdict {
    let asks = |action: &Action| {
        let looks = matches!(
            action,
            Action::ProbeDevices { .. } | Action::ReassignDevices { .. } | Action::ProbeProgress { .. }
        );
        looks || *action == Action::FindLostNode
    };
    for ((at, generation, _), expected) in turn.starts().zip(turn.oracle.starts..) {
        require(turn.oracle.ready, || "a start before anything was ready".to_owned())?;
        require(generation.0 == expected, || format!("{generation:?} starts where {expected} was next"))?;
        let is_answered = turn.oracle.open_question.is_none() && !turn.actions[..at].iter().any(asks);
        require(is_answered, || "a start while something is being looked at".to_owned())?;
    }
    starts_are_of_their_rounds(turn)?;
    require(turn.starts().count() <= 1, || "two starts at once".to_owned())
}

fn invariant_3(turn: &Turn<'_>) -> Verdict {
    let Some(end) = turn.finish() else { return Ok(()) };
    let ours = || turn.node.processes.iter().filter(|process| !process.is_external);
    let forgotten =
        ours().find(|process| !process.is_known() && !turn.given_up().contains(&process.local_rank));
    require(forgotten.is_none(), || format!("the job ends, and no report has the end of {forgotten:?}"))?;
    let Some(failure) = &end.failure else { return Ok(()) };
    let reported = [&failure.first].into_iter().chain(failure.following_ends.iter().map(|other| &other.end));
    let mut reported: Vec<LocalRank> = reported.map(|end| end.local_rank).collect();
    let mut seen: Vec<LocalRank> =
        turn.oracle.current.exits_since_cause().iter().map(|end| end.local_rank).collect();
    if let Some(Cause::Uninterruptible(local_rank) | Cause::NotJoined(local_rank)) = turn.cause()
        && !seen.contains(&local_rank)
    {
        seen.push(local_rank);
    }
    reported.sort_unstable();
    seen.sort_unstable();
    require(reported == seen, || {
        format!("the ends of {seen:?} were seen, those of {reported:?} are reported")
    })
}

fn invariant_4(turn: &Turn<'_>) -> Verdict {
    let current = &turn.oracle.current;
    if turn.oracle.finished || turn.oracle.starts == 0 {
        return Ok(());
    }
    let sent = |wanted: fn(Signal) -> bool| {
        let is_it = |action: &Action| matches!(action, Action::Signal { signal, .. } if wanted(*signal));
        turn.actions.iter().any(is_it).then_some(turn.now)
    };
    let asked_at = current.asked_at.or_else(|| sent(|_| true));
    let killed_at = current.killed_at.or_else(|| sent(|signal| signal == Signal::SIGKILL));
    require(turn.cause().is_some() || asked_at.is_none(), || "a stop without a cause".to_owned())?;

    let stays = || turn.workers().filter(|process| !process.is_known());
    let grace = turn.cause().map_or(Duration::ZERO, |cause| turn.setup.grace_of(cause));
    let kill_by = current.kill_by.or(asked_at.map(|asked| asked + grace));
    if let Some(kill_by) = kill_by
        && let Some(spared) =
            stays().find(|process| process.is_alive() && !turn.is_sent(process, Signal::SIGKILL))
    {
        require(turn.now <= kill_by + LENIENCY, || format!("SIGKILL is overdue for {spared:?}"))?;
    }
    let is_second = matches!(turn.input, Some(Input::StopRequested { is_second: true, .. }));
    let kills = sent(|signal| signal == Signal::SIGKILL).is_some();
    require(!kills || is_second || kill_by.is_none_or(|kill_by| turn.now >= kill_by), || {
        format!("SIGKILL within the grace, which is over {kill_by:?}")
    })?;
    let report_by = killed_at.map(|killed| killed + GIVE_UP_AFTER_KILL);
    if let Some(report_by) = report_by
        && let Some(survivor) = stays().find(|process| !turn.given_up().contains(&process.local_rank))
    {
        require(turn.now <= report_by + LENIENCY, || {
            format!("it is not reported that {survivor:?} does not end")
        })?;
    }
    let is_over = turn.finish().is_some() || turn.goes_on();
    if let Some(due) = report_by.or(kill_by)
        && !is_over
        && stays().next().is_some()
    {
        require(turn.deadline.is_some_and(|deadline| deadline <= due), || {
            format!("the stop has no deadline, or a late one: {:?}", turn.deadline.map(|at| at - turn.now))
        })?;
    }
    let last_is_reaped = turn.cause().is_some() && !current.start_pending && stays().next().is_none();
    // Another invariant checks that a start does not come too early.
    let ends = turn.sweeps(turn.actions) || turn.goes_on();
    require(!last_is_reaped || ends || turn.awaits_groups(), || {
        "the last worker is reaped, and the stop goes on".to_owned()
    })
}

/// Also no restart before the back-off is over, and every granted restart is made.
fn invariant_6(turn: &Turn<'_>) -> Verdict {
    for (_, _, restart_count) in turn.starts() {
        let used = RestartCount(turn.oracle.peers.restarts);
        require(restart_count == used, || format!("{restart_count:?} is told after {used:?}"))?;
    }
    if turn.restarts() {
        budget_is_kept(turn, turn.now)?;
    }
    wait_has_an_end(turn)
}

/// Also no restart where a rule forbids it, or without progress.
fn invariant_7(turn: &Turn<'_>) -> Verdict {
    let (starts, restarts) = (turn.goes_on(), turn.restarts());
    let stop_signal = turn.oracle.stop_signal;
    require(stop_signal.is_none() || !starts, || format!("a start after {stop_signal:?}"))?;
    let is_late = turn.oracle.time_limit_at().is_some_and(|end| end <= turn.now);
    require(!is_late || !starts, || "a start after the time limit".to_owned())?;
    let is_over = turn.oracle.peers.over.is_some();
    require(!is_over || !starts, || "a start after the job is closed".to_owned())?;
    let due = if restarts { turn.due_decision() } else { None };
    let is_forbidden = matches!(due, Some(ExpectedStep::End(why)) if why != EndReason::Budget);
    require(!is_forbidden, || format!("a start where {due:?}"))?;
    let has_looked = matches!(turn.oracle.current.last_answer, Some((Question::Progress, _)));
    let is_unasked = restarts && turn.setup.policy.progress.is_some() && !has_looked;
    require(!is_unasked, || "a restart without a look for progress".to_owned())?;
    let is_closed = turn.oracle.has_exited;
    require(!is_closed || turn.actions.is_empty(), || format!("after the end: {:?}", turn.actions))?;
    require(!turn.oracle.finished || !starts, || "a start after the outcome".to_owned())
}

fn invariant_9(turn: &Turn<'_>) -> Verdict {
    let is_silent = turn.actions.is_empty() && turn.deadline == turn.deadline_before;
    // What was due before the late input comes with it.
    let was_due = turn.deadline_before.is_some_and(|deadline| deadline <= turn.now);
    require(!turn.is_stale || is_silent || was_due, || {
        format!("an old generation brings about {:?}", turn.actions)
    })
}

fn invariant_10(turn: &Turn<'_>) -> Verdict {
    let Some(Input::StopRequested { signal, is_second: again }) =
        turn.input.filter(|_| !turn.oracle.has_exited)
    else {
        return Ok(());
    };
    if turn.oracle.finished {
        return shutdown_is_cut_short(turn, *again);
    }
    let expected = match (signal, turn.setup.interrupt) {
        _ if *again => Signal::SIGKILL,
        (Signal::SIGINT, Interrupt::Unlisted) => Signal::SIGTERM,
        _ => *signal,
    };
    let unanswered = turn.workers().find(|process| {
        process.is_alive() && !turn.is_sent(process, expected) && !turn.is_sent(process, Signal::SIGKILL)
    });
    require(unanswered.is_none(), || format!("{expected} does not reach {unanswered:?}"))?;
    let somebody_stays =
        turn.oracle.current.start_pending || turn.workers().any(|process| !process.is_known());
    let is_awaited =
        turn.leftover_since().is_some() && !(*again && turn.oracle.current.leftover_since.is_some());
    let is_awaited = is_awaited || turn.awaits_groups() && !*again;
    require(somebody_stays || is_awaited || turn.finish().is_some(), || {
        "no worker is left, and the job goes on".to_owned()
    })
}

fn requested_restarts_happen(turn: &Turn<'_>) -> Verdict {
    if turn.cause() != Some(Cause::Stop(StopReason::RestartRequest)) || turn.oracle.finished {
        return Ok(());
    }
    let runs_on =
        turn.workers().find(|process| process.is_alive() && !turn.is_sent(process, Signal::SIGTERM));
    require(runs_on.is_none(), || format!("a restart is requested, and {runs_on:?} was not told to stop"))?;
    let is_late = turn.oracle.time_limit_at().is_some_and(|end| end <= turn.now);
    let may_end = turn.oracle.stop_signal.is_some() || is_late || !turn.given_up().is_empty();
    require(turn.finish().is_none() || may_end, || "a restart is requested, and the job ends".to_owned())
}

fn survivors_are_awaited_once(turn: &Turn<'_>) -> Verdict {
    let is_report = |action: &&Action| matches!(action, Action::Emit(JobEvent::LeftoversSurvive { .. }));
    let reports = turn.actions.iter().filter(is_report).count();
    require(turn.oracle.survivor_reports + reports <= 1, || "it is told again".to_owned())?;
    let Some(since) = turn.leftover_since() else { return Ok(()) };
    let give_up_at = since + GIVE_UP_AFTER_KILL;
    require(turn.deadline.is_some_and(|deadline| deadline <= give_up_at), || "it is awaited on".to_owned())
}

/// The same once the job has its outcome.
fn shutdown_is_cut_short(turn: &Turn<'_>, is_second: bool) -> Verdict {
    let mut sweep = turn.oracle.sweep;
    let was_asked = sweep.is_asked;
    for action in turn.actions {
        if let Action::SweepLeftovers { step } = action {
            sweep.record_step(*step);
        }
    }
    if turn.oracle.is_reported {
        let exits = turn.actions.iter().any(|action| matches!(action, Action::Exit { .. }));
        return require(exits, || "the other nodes are awaited on".to_owned());
    }
    let is_same = !is_second && turn.input_signal() == turn.oracle.stop_signal;
    if turn.oracle.is_drained {
        let is_usual = turn.deadline.is_some_and(|at| at <= turn.now + LENIENCY);
        let reports = turn.actions.contains(&Action::ReportOutcome);
        return require(is_same || is_usual || reports, || "the parent's file is awaited on".to_owned());
    }
    if turn.oracle.sweep.is_over {
        let goes_on = turn.actions.contains(&Action::WriteParentFile);
        return require(is_same || goes_on, || "the reader of the output is awaited on".to_owned());
    }
    let is_answered = sweep.is_killed || sweep.is_asked && !(is_second && was_asked);
    require(is_answered, || "the leftover processes are awaited on".to_owned())
}

fn external_worker_is_not_signalled(turn: &Turn<'_>) -> Verdict {
    let Some(spared) = turn.setup.external_worker.map(LocalRank) else { return Ok(()) };
    let is_touched = turn.actions.iter().any(|action| match action {
        Action::Signal { local_ranks, .. }
        | Action::SignalGroups { local_ranks, .. }
        | Action::ForwardSignal { local_ranks, .. } => local_ranks.contains(&spared),
        _ => false,
    });
    require(!is_touched, || format!("{:?}", turn.actions))
}
