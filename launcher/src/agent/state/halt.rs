//! A halt of the whole job (Ctrl-Z) in the life of the machine. Pure.
//!
//! What gives somebody time to do something is put off by as long as nobody could do anything: the grace, the five
//! seconds after it, the start limit, the sleep that is too long, and the instant in which the launcher may be about to
//! get the signal that a worker got. And who was halted has not been healthy meanwhile. The time limit is not put off: as that of timeout(1) it is a time on the clock, after
//! which the machine is somebody else's. Nor is the wait before a restart, in which only the world is to change.

use std::time::Duration;

use super::State;
use crate::agent::message::Action;
use crate::agent::phase::{Phase, Stage};

impl State {
    /// Everybody was halted for this long, until now.
    pub(super) fn was_halted(&mut self, lasted: Duration) -> Vec<Action> {
        match &mut self.phase {
            Phase::Undecided { until: at, .. }
            | Phase::Observing { until: at, .. }
            | Phase::Blaming { until: at, .. }
            | Phase::Stopping {
                stage: Stage::Asked { kill_at: at, .. } | Stage::Killed { give_up_at: at },
                ..
            } => *at += lasted,
            Phase::Checking { say_at, give_up_at, .. } => {
                say_at.iter_mut().chain(give_up_at).for_each(|at| *at += lasted);
            }
            Phase::Settling { say_at } => say_at.iter_mut().for_each(|at| *at += lasted),
            Phase::Starting
            | Phase::Joining { .. }
            | Phase::Running { .. }
            | Phase::Waiting { .. }
            | Phase::Finished => {}
        }
        if let Some(patience) = &mut self.patience {
            *patience += lasted;
        }
        self.history.was_halted(lasted);
        if let Some(watch) = &mut self.watch {
            watch.was_halted(lasted);
        }
        self.finished.was_halted(lasted);
        if let Some(join_by) = &mut self.join_by {
            *join_by += lasted;
        }
        Vec::new()
    }
}
