//! Suspension of the whole job (Ctrl-Z) in the state machine. Pure.
//!
//! Deadlines that give a process time to act are put off by the length of the suspension: the grace period,
//! the five seconds after it, the start limit, the limit of uninterruptible sleep, and the window for a
//! signal that worker and launcher get alike. Suspended time does not count as healthy. The time limit is not
//! put off: like that of timeout(1) it is wall-clock time, after which another user owns the machine. The
//! wait before a restart is not put off either: it only lets the surroundings change.

use std::time::Duration;

use super::State;
use crate::agent::message::Action;
use crate::agent::phase::{JobPhase, StopStage};

impl State {
    /// All processes of the job were suspended for this long, until now.
    pub(super) fn on_resumed(&mut self, lasted: Duration) -> Vec<Action> {
        match &mut self.phase {
            JobPhase::Undecided { until: at, .. }
            | JobPhase::Observing { until: at, .. }
            | JobPhase::Blaming { until: at, .. }
            | JobPhase::Stopping {
                stage: StopStage::Asked { kill_at: at, .. } | StopStage::Killed { give_up_at: at },
                ..
            } => *at += lasted,
            JobPhase::Checking { report_at: say_at, give_up_at, .. } => {
                say_at.iter_mut().chain(give_up_at).for_each(|at| *at += lasted);
            }
            JobPhase::Settling { report_at: say_at } => say_at.iter_mut().for_each(|at| *at += lasted),
            JobPhase::ShuttingDown(shutdown) => shutdown.add_suspended_time(lasted),
            JobPhase::Starting
            | JobPhase::Joining { .. }
            | JobPhase::Running { .. }
            | JobPhase::Waiting { .. }
            | JobPhase::Finished => {}
        }
        if let Some(patience) = &mut self.output_deadline {
            *patience += lasted;
        }
        self.history.add_suspended_time(lasted);
        if let Some(watch) = &mut self.dstate_watch {
            watch.add_suspended_time(lasted);
        }
        self.finished.add_suspended_time(lasted);
        if let Some(join_by) = &mut self.join_by {
            *join_by += lasted;
        }
        Vec::new()
    }
}
