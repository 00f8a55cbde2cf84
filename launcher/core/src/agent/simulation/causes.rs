//! Invariant 5: why a generation ends.

use std::time::Duration;

use rankrun_contract::rank::LocalRank;

use super::invariants::{Turn, Verdict, require};
use super::oracle::{Cause, Oracle};
use crate::agent::failure::Failure;
use crate::agent::message::Action;
use crate::exit_code::ExitStatus;
use crate::job_event::{FailureKind, JobEvent, LostPeer, WorkerEnd};
use crate::posix::Exit;
use crate::spec::stop::StopReason;

/// A crash this soon after the first failure may have come before it.
const SAME_MOMENT: Duration = Duration::from_millis(500);

/// The reported cause of a generation's end is the first cause; of failures that came together, one that has
/// evidence.
pub(super) fn invariant_5(turn: &Turn<'_>) -> Verdict {
    let cause = turn.cause();
    let mut released = turn.oracle.current.released;
    let mut blamed = turn.oracle.current.group_failed;
    for action in turn.actions {
        match action {
            Action::ReleaseExternalWorker { reason, failed } => {
                require(released.is_none(), || format!("released for {released:?}, then for {reason:?}"))?;
                require(is_released_by(*reason, *failed, cause), || {
                    format!("{reason:?}, {failed:?} where {cause:?} was first")
                })?;
                released = Some(*reason);
            }
            Action::Emit(JobEvent::GroupFailed { cause: end }) => {
                require(blamed.is_none(), || "two causes".to_owned())?;
                may_be_blamed(turn, end, cause)?;
                blamed = Some(*end);
            }
            // What another node did first, or did to this node, is not reported as a failure of this node.
            Action::Finish(end) if end.failure.is_none() && turn.is_others() => {}
            // A rule may call it a success, which another invariant checks.
            Action::Finish(end) if end.status == ExitStatus::SUCCESS && blamed.is_some() => {}
            Action::Finish(end) => {
                is_cause_reported(turn, end.failure.as_ref(), cause)?;
                let first = end.failure.as_ref().map(|failure| failure.first);
                require(first == blamed, || {
                    format!("{blamed:?} was the cause, {first:?} is told at the end")
                })?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_released_by(reason: StopReason, failed: Option<WorkerEnd>, cause: Option<Cause>) -> bool {
    match (reason, cause, failed.map(|end| end.local_rank)) {
        (StopReason::StartTimeout, Some(Cause::NotJoined(first)), failed) => failed == Some(first),
        // Under the name torchrun a signal may come before the siblings of a failed worker are told to stop.
        (
            StopReason::WorkerFailed | StopReason::Signal(_),
            Some(Cause::Failed(first) | Cause::Uninterruptible(first)),
            failed,
        ) => failed == Some(first),
        (reason, Some(Cause::Stop(cause)), None) => reason == cause,
        _ => false,
    }
}

/// The report at the end is of the kind that came first.
fn is_cause_reported(turn: &Turn<'_>, failure: Option<&Failure>, cause: Option<Cause>) -> Verdict {
    let kind = failure.map(|failure| failure.kind);
    let is_of_its_kind = matches!(
        (cause, kind),
        (Some(Cause::Failed(_)), Some(FailureKind::Ended | FailureKind::EndedByStop))
            | (Some(Cause::Uninterruptible(_)), Some(FailureKind::Uninterruptible { .. }))
            | (Some(Cause::NotJoined(_)), Some(FailureKind::NotJoined { .. }))
            | (Some(Cause::Stop(_)) | None, None)
    );
    require(is_of_its_kind, || {
        format!("{cause:?} was first, and a failure of this kind is reported: {kind:?}")
    })?;
    let seen_before = |failure: &Failure| {
        matches!(failure.kind, FailureKind::Uninterruptible { .. } | FailureKind::NotJoined { .. })
    };
    let Some(failure) = failure.filter(|failure| !seen_before(failure)) else { return Ok(()) };
    let generation = turn.oracle.generation;
    require(failure.generation == generation, || format!("it was {generation:?}"))?;
    let ours = failure
        .following_ends
        .iter()
        .find(|other| !other.is_stopped_by_us && is_ended_by_us(turn, &other.end));
    require(ours.is_none(), || format!("our stop ended this one, and it is told as a failure: {ours:?}"))?;
    let is_ours = is_ended_by_us(turn, &failure.first);
    require(!is_ours || failure.kind == FailureKind::EndedByStop, || {
        format!("our stop ended it, and it is told as its own doing: {:?}", failure.first)
    })
}

fn is_ended_by_us(turn: &Turn<'_>, end: &WorkerEnd) -> bool {
    turn.node.by_pid(end.pid).is_some_and(|process| process.is_ended_by_us(end.exit))
}

fn may_be_blamed(turn: &Turn<'_>, end: &WorkerEnd, cause: Option<Cause>) -> Verdict {
    match cause {
        Some(Cause::Failed(first)) => {
            require(is_evident(turn.oracle, end, first), || {
                format!("{first:?} was first, and {end:?} is blamed")
            })?;
            let is_ours = is_ended_by_us(turn, end) && end.error_file_info.is_none();
            require(!is_ours, || format!("our own stop ended {end:?}"))
        }
        Some(Cause::Uninterruptible(rank) | Cause::NotJoined(rank)) => {
            require(end.local_rank == rank, || format!("it was {rank:?}, not {end:?}"))
        }
        Some(Cause::Stop(_)) | None => Err(format!("{cause:?} was first, and {end:?} is blamed")),
    }
}

/// True if there is evidence to blame it instead of the exit that was seen first.
fn is_evident(oracle: &Oracle, blamed: &WorkerEnd, first: LocalRank) -> bool {
    let ends = oracle.current.exits_since_cause();
    let Some(seen_first) = ends.first() else { return false };
    let is_lost = |end: &WorkerEnd| {
        end.error_file_info.is_some_and(|it| it.lost_peer == Some(LostPeer::Here(blamed.local_rank)))
    };
    let crashes = [libc::SIGKILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let is_crash = matches!(blamed.exit, Exit::Signal { number, .. } if crashes.contains(&number));
    let is_at_once = blamed.at.duration_since(seen_first.at).is_ok_and(|later| later <= SAME_MOMENT);
    let wrote_first = match (blamed.error_file_info, seen_first.error_file_info) {
        (Some(blamed), Some(first)) => blamed.written <= first.written,
        _ => false,
    };
    let is_known = ends.contains(blamed) && !blamed.exit.is_success();
    let lost = |end: &WorkerEnd| end.error_file_info.is_some_and(|it| it.lost_peer.is_some());
    // It had ended before all were told to stop.
    let is_own = lost(seen_first) && !lost(blamed) && blamed.at <= seen_first.at;
    is_known
        && (blamed.local_rank == first
            || ends.iter().any(is_lost)
            || is_crash && is_at_once
            || wrote_first
            || is_own)
}
