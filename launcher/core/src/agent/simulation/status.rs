//! Invariant 8: the launcher's exit status.

use super::budget::{EndReason, ExpectedStep};
use super::invariants::{Turn, Verdict, require};
use super::oracle::Cause;
use super::setup::{Setup, millis};
use crate::agent::message::{Input, JobOutcome};
use crate::agent::rules::Interrupt;
use crate::exit_code::{DO_NOT_REQUEUE, ExitStatus, LAUNCHER_FAILED, REQUEUE, TIME_LIMIT};
use crate::job_event::FailureKind;
use crate::posix::{Exit, Signal};
use crate::rendezvous::RendezvousEnd;
use crate::rendezvous::note::RuleEnd;
use crate::spec::CliFlavor;
use crate::spec::restart::RuleAction;
use crate::spec::stop::StopReason;

pub(super) fn invariant_8(turn: &Turn<'_>) -> Verdict {
    let Some(end) = turn.finish() else { return Ok(()) };
    require(end.stopped_by == turn.oracle.stop_signal, || {
        format!("told to stop by {:?}, it says {:?}", turn.oracle.stop_signal, end.stopped_by)
    })?;
    let (status, other) = status(turn, end);
    require([status, other].contains(&end.status), || format!("{:?} where {status:?} is due", end.status))?;
    let limit = turn.setup.time_limit.map(millis);
    let is_same_limit = end.time_limit.is_none() || end.time_limit == limit;
    require(is_same_limit, || format!("{limit:?} was the limit, not {:?}", end.time_limit))
}

/// The table of `exit_code.rs`. Where jitter decides about a wait, there is a second valid status.
fn status(turn: &Turn<'_>, end: &JobOutcome) -> (ExitStatus, ExitStatus) {
    let (setup, cause) = (turn.setup, turn.cause());
    let both = |code| (ExitStatus::Code(code), ExitStatus::Code(code));
    let of_limit = if setup.cli_flavor == CliFlavor::Rankrun { TIME_LIMIT } else { LAUNCHER_FAILED };
    let plain = plain_status(setup, turn.oracle.starts > 0, end);
    let is_up = turn.oracle.time_limit_at().is_some_and(|up| up <= turn.now);
    let or_of_limit = |status| (status, if is_up { ExitStatus::Code(of_limit) } else { status });
    match (&turn.oracle.peers.over, end.stopped_by) {
        _ if cause == Some(Cause::Stop(StopReason::TimeLimit)) => return both(of_limit),
        (Some(RendezvousEnd::NotNeeded), None) => return or_of_limit(ExitStatus::SUCCESS),
        (Some(RendezvousEnd::ByRule { rule, .. }), None) => return or_of_limit(due_by(rule.then)),
        (Some(_), None) => return or_of_limit(ExitStatus::Code(LAUNCHER_FAILED)),
        // A restart is granted, and the other nodes are awaited: only the time limit ends that.
        (None, None) if turn.oracle.peers.is_joining || matches!(turn.input, Some(Input::Joined(_))) => {
            return both(of_limit);
        }
        (None, None) if turn.is_others() => return or_of_limit(plain),
        (None, None) if cause.is_none() && !turn.oracle.peers.all_succeeded => {
            return both(of_limit);
        }
        _ => {}
    }
    match (cause, end.stopped_by) {
        (Some(Cause::Stop(StopReason::TimeLimit)), _) => both(of_limit),
        (None, None) => both(0),
        (Some(Cause::Stop(StopReason::RestartRequest)), None) => or_of_limit(plain),
        (Some(Cause::Failed(_) | Cause::Uninterruptible(_) | Cause::NotJoined(_)), None) => {
            match turn.due_decision() {
                Some(ExpectedStep::End(EndReason::Rule(RuleAction::Succeed))) => both(0),
                Some(ExpectedStep::End(EndReason::Rule(RuleAction::Requeue))) => both(REQUEUE),
                Some(ExpectedStep::End(EndReason::Rule(RuleAction::NoRequeue))) => both(DO_NOT_REQUEUE),
                Some(due) if turn.given_up().is_empty() => match turn.restart_is_too_late(due) {
                    (_, true) => both(of_limit),
                    (true, false) => (ExitStatus::Code(of_limit), plain),
                    (false, false) => (plain, plain),
                },
                _ => (plain, plain),
            }
        }
        _ => (plain, plain),
    }
}

const fn due_by(rule: RuleEnd) -> ExitStatus {
    ExitStatus::Code(match rule {
        RuleEnd::Succeed => 0,
        RuleEnd::Requeue => REQUEUE,
        RuleEnd::NoRequeue => DO_NOT_REQUEUE,
    })
}

/// The status by a worker's exit, or by the signal that told the launcher to stop.
fn plain_status(setup: &Setup, has_started: bool, end: &JobOutcome) -> ExitStatus {
    let of_worker = || match end.failure.as_ref().map(|failure| (failure.kind, failure.first.exit)) {
        Some((FailureKind::Ended, Exit::Code(code))) => u8::try_from(code).unwrap_or(LAUNCHER_FAILED),
        Some((FailureKind::Ended, Exit::Signal { number, .. })) => {
            128 + u8::try_from(number).expect("a signal")
        }
        Some((
            FailureKind::EndedByStop
            | FailureKind::Uninterruptible { .. }
            | FailureKind::NotJoined { .. }
            | FailureKind::Hang,
            _,
        ))
        | None => LAUNCHER_FAILED,
    };
    let is_exception =
        |signal: Signal| !has_started || signal == Signal::SIGINT && setup.interrupt == Interrupt::Unlisted;
    match (setup.cli_flavor, end.stopped_by) {
        (CliFlavor::Rankrun, Some(signal)) => ExitStatus::Code(128 + signal as u8),
        (CliFlavor::Rankrun, None) => ExitStatus::Code(of_worker()),
        (CliFlavor::Torchrun, Some(signal)) if is_exception(signal) => ExitStatus::Signal(signal as i32),
        (CliFlavor::Torchrun, _) => ExitStatus::Code(LAUNCHER_FAILED),
    }
}
