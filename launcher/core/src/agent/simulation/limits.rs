//! What time alone causes: the window for signals that hit all processes, the time limit with its warning,
//! and the start limit.

use crate::posix::Signal;

use rankrun_contract::rank::LocalRank;

use super::invariants::{Turn, Verdict, require};
use super::oracle::{Cause, WINDOW};
use super::setup::{WARNING, millis};
use crate::agent::message::{Action, Input};
use crate::job_event::JobEvent;

/// Nothing is done or said about such an exit, until the launcher gets a stop signal or the window is over.
pub(super) fn window_is_kept(turn: &Turn<'_>) -> Verdict {
    let current = &turn.oracle.current;
    let held_until = turn.held_until().filter(|until| turn.now < *until);
    require(held_until.is_none() || !turn.restarts(), || {
        format!("a signal to the whole group may come until {held_until:?}, and all start again")
    })?;
    let Some(suspect) = current.suspect.filter(|_| current.cause.is_none() && !turn.oracle.finished) else {
        return Ok(());
    };
    let until = suspect.at + WINDOW;
    let until = turn.oracle.time_limit_at().map_or(until, |end| end.min(until));
    let is_decided = turn.actions.iter().any(|action| match action {
        Action::ForwardSignal { .. }
        | Action::Suspend { .. }
        | Action::Resume { .. }
        | Action::KillSuspended
        | Action::Emit(JobEvent::TimeIsShort { .. } | JobEvent::ExternalWorkerStarted { .. }) => false,
        Action::Emit(_)
        | Action::Start { .. }
        | Action::Join { .. }
        | Action::TellFailure { .. }
        | Action::FindLostNode
        | Action::TellSuccess
        | Action::TellStop { .. }
        | Action::Signal { .. }
        | Action::SignalGroups { .. }
        | Action::ProbeDState { .. }
        | Action::ProbeJoined { .. }
        | Action::CollectRanks { .. }
        | Action::ProbeDevices { .. }
        | Action::ReassignDevices { .. }
        | Action::ProbeProgress { .. }
        | Action::ReleaseExternalWorker { .. }
        | Action::KillLeftovers { .. }
        | Action::SweepLeftovers { .. }
        | Action::DrainOutput
        | Action::Notify(_)
        | Action::WriteParentFile
        | Action::ReportOutcome
        | Action::Exit { .. }
        | Action::Finish(_) => true,
    });
    require(turn.now >= until || !is_decided, || {
        format!("{suspect:?} may have got a signal to the whole group, and already: {:?}", turn.actions)
    })?;
    require(turn.now <= turn.oracle.action_late_from(until) || is_decided, || {
        format!("no decision about {suspect:?}")
    })
}

pub(super) fn limits_are_enforced(turn: &Turn<'_>) -> Verdict {
    if turn.oracle.began.is_none() || turn.oracle.finished {
        return Ok(());
    }
    time_limit_is_enforced(turn)?;
    warning_is_sent(turn)?;
    start_timeout_is_enforced(turn)?;
    missing_worker_has_failed(turn)
}

fn time_limit_is_enforced(turn: &Turn<'_>) -> Verdict {
    let is_up = |action: &Action| matches!(action, Action::Emit(JobEvent::TimeIsUp { by_warning: None, .. }));
    let is_blamed = turn.actions.iter().any(
        |action| matches!(action, Action::Emit(JobEvent::TimeIsUp { by_warning: Some(end), .. }) if !turn.setup.is_exit_by_warning(end.exit)),
    );
    require(!is_blamed, || "the warning has ended no worker".to_owned())?;
    let is_said = turn.actions.iter().any(is_up);
    let Some(end) = turn.oracle.time_limit_at() else {
        return require(!is_said, || "there is no time limit".to_owned());
    };
    require(!is_said || turn.now >= end, || format!("{:?} too early", end - turn.now))?;
    if turn.now <= turn.oracle.action_late_from(end) {
        return Ok(());
    }
    let tells = |action: &Action| matches!(action, Action::Signal { .. } | Action::Finish(_));
    let is_stopped = turn.oracle.current.asked_at.is_some() || turn.actions.iter().any(tells);
    let is_waited_for = turn.workers().any(|process| !process.is_known());
    let is_over = is_stopped && (is_waited_for || turn.awaits_groups() || turn.finish().is_some());
    require(is_over || turn.leftover_since().is_some(), || {
        "the time limit is over, and the job goes on".to_owned()
    })
}

fn warning_is_sent(turn: &Turn<'_>) -> Verdict {
    let oracle = turn.oracle;
    let said =
        turn.actions.iter().filter(|action| matches!(action, Action::Emit(JobEvent::TimeIsShort { .. })));
    let said = said.count();
    let Some(warned_at) = oracle.warned_at() else {
        return require(said == 0, || "no warning was asked for".to_owned());
    };
    if said > 0 {
        require(said == 1 && oracle.warnings == 0, || "warned twice".to_owned())?;
        require(turn.now >= warned_at, || format!("warned {:?} too early", warned_at - turn.now))?;
        let unwarned =
            turn.workers().find(|process| process.is_alive() && !is_warned(turn, process.local_rank));
        return require(unwarned.is_none(), || format!("not warned: {unwarned:?}"));
    }
    // A worker that starts when the warning is due or later gets none.
    let was_there = oracle.starts == 1 || oracle.current.began.is_some_and(|began| began < warned_at);
    let runs = turn.cause().is_none() && oracle.current.settled_at.is_none();
    let is_undisturbed = runs && oracle.time_limit_at().is_some_and(|end| turn.now < end);
    let is_due = was_there && is_undisturbed && turn.now > oracle.action_late_from(warned_at);
    require(!is_due || oracle.warnings > 0, || "the warning is overdue".to_owned())
}

fn is_warned(turn: &Turn<'_>, local_rank: LocalRank) -> bool {
    turn.actions.iter().any(|action| match action {
        Action::ForwardSignal { generation, local_ranks, signal } => {
            *generation == turn.oracle.generation && *signal == WARNING && local_ranks.contains(&local_rank)
        }
        _ => false,
    })
}

fn start_timeout_is_enforced(turn: &Turn<'_>) -> Verdict {
    let current = &turn.oracle.current;
    let looks = turn.actions.iter().filter(|action| matches!(action, Action::ProbeJoined { .. })).count();
    let Some(join_by) =
        current.joins_from.zip(turn.setup.start_limit).map(|(began, limit)| began + millis(limit))
    else {
        return require(looks == 0, || "there is no start limit".to_owned());
    };
    if looks > 0 {
        require(looks == 1 && current.join_probes == 0, || "one look is enough".to_owned())?;
        return require(turn.now >= join_by, || format!("{:?} too early", join_by - turn.now));
    }
    let runs = turn.cause().is_none() && current.settled_at.is_none();
    let is_running = runs && current.suspect.is_none() && turn.finish().is_none();
    let is_due = is_running && turn.now > turn.oracle.action_late_from(join_by);
    require(!is_due || current.join_probes > 0, || "no look at the joined workers".to_owned())
}

/// A missing worker counts as failed, unless it has ended otherwise.
fn missing_worker_has_failed(turn: &Turn<'_>) -> Verdict {
    let current = &turn.oracle.current;
    let is_running = current.cause.is_none() && current.suspect.is_none();
    let missing: Vec<LocalRank> = match turn.input {
        Some(Input::JoinedProbed { missing, .. }) if is_running && !turn.is_stale => {
            let is_there = |rank: LocalRank| turn.workers().any(|it| it.local_rank == rank && !it.is_known());
            missing.iter().map(|it| it.local_rank).filter(|rank| is_there(*rank)).collect()
        }
        _ => Vec::new(),
    };
    let reported = turn.actions.iter().find_map(|action| match action {
        Action::Emit(JobEvent::NotJoined { missing, .. }) => Some(missing.as_slice()),
        _ => None,
    });
    require(reported.unwrap_or_default() == missing, || {
        format!("{missing:?} have not joined, and it says {reported:?}")
    })?;
    let is_stop_signal = |action: &Action| matches!(action, Action::Signal { signal: Signal::SIGTERM, .. });
    require(missing.is_empty() || turn.actions.iter().any(is_stop_signal), || {
        "no worker gets a stop signal".to_owned()
    })?;
    let is_named = matches!(turn.cause(), Some(Cause::NotJoined(first)) if missing.first() == Some(&first));
    require(missing.is_empty() || is_named, || {
        format!("{missing:?} have not joined, and it is {:?}", turn.cause())
    })
}

/// A worker may act on a stop signal at once, so a later table would not show its state before the stop.
pub(super) fn ranks_are_collected_before_the_stop(turn: &Turn<'_>) -> Verdict {
    let is_collected = |action: &Action| matches!(action, Action::CollectRanks { .. });
    let Some(at) = turn.actions.iter().position(is_collected) else { return Ok(()) };
    let is_signal = |action: &Action| matches!(action, Action::Signal { .. });
    let is_early = turn.oracle.current.asked_at.is_none() && !turn.actions[..at].iter().any(is_signal);
    require(is_early, || "the ranks are collected after the stop signal".to_owned())?;
    require(!turn.actions[at + 1..].iter().any(is_collected), || "the ranks are collected twice".to_owned())
}
