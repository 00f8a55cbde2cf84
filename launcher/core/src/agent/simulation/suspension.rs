//! What a suspended job (Ctrl-Z) does and does not.

use std::collections::VecDeque;

use crate::posix::Signal;

use super::invariants::{Broken, Turn, Verdict, require};
use crate::agent::message::{Action, Input};
use crate::rendezvous::MembershipChange;

pub(super) fn suspension_is_kept(turn: &Turn<'_>) -> Verdict {
    if turn.oracle.resumes {
        let goes_on = matches!(turn.actions.first(), Some(Action::Resume { .. }));
        return require(goes_on, || "the processes stay stopped".to_owned());
    }
    let Some(since) = turn.oracle.suspended_at else { return Ok(()) };
    let limit = turn.oracle.time_limit_at().filter(|_| !turn.oracle.finished);
    require(limit.is_none_or(|end| turn.now <= turn.oracle.action_late_from(end.max(since))), || {
        "the time limit is over, and the job stays suspended".to_owned()
    })?;
    let is_due = match (turn.input, turn.actions) {
        (None | Some(Input::SuspendRequested | Input::RestartRequested), []) => true,
        (Some(Input::SuspendRequested), [action]) => matches!(action, Action::Suspend { .. }),
        (Some(Input::SuspendedTooLong), [action]) => *action == Action::KillSuspended,
        _ => false,
    };
    require(is_due, || format!("suspended, it handles {:?} by {:?}", turn.input, turn.actions))
}

/// The inputs that the machine leaves in its queue.
pub(super) fn check_waiting_inputs(queue: &VecDeque<Input>, turn: &Turn<'_>) -> Result<(), Vec<Broken>> {
    let is_stop = |input: &Input| matches!(input, Input::StopRequested { .. });
    if let Some(waiting) = queue.front().filter(|_| turn.oracle.suspended_at.is_none()) {
        return Err(vec![Broken::by_number("10", format!("{waiting:?} waits"))]);
    }
    if queue.iter().any(is_stop) {
        return Err(vec![Broken::by_number("10", "a stop waits for the end of a suspension".to_owned())]);
    }
    if queue.contains(&Input::RestartRequested) {
        return Err(vec![Broken::by_number("suspended", "a restart waits for its answer".to_owned())]);
    }
    let is_cut_off = |input: &Input| matches!(input, Input::Changed(MembershipChange::CutOff { .. }));
    let spared =
        turn.workers().find(|process| process.is_alive() && !process.signals.contains(&Signal::SIGKILL));
    match spared.filter(|_| queue.iter().any(is_cut_off) && !turn.oracle.finished) {
        Some(spared) => {
            Err(vec![Broken::by_number("suspended", format!("the lease is over for {spared:?}"))])
        }
        None => Ok(()),
    }
}
