//! Finds the processes that the workers left running, and signals or kills them. When to do so is the
//! state's decision (`state::shutdown`).

use rankrun_core::posix::Signal;

use rankrun_contract::report::ErrorReport;

use crate::agent::Agent;
use crate::error::LaunchError;
use crate::process::descendants::{
    FoundProcess, KillScope, kill_descendants, kill_present_descendants, leftover_processes,
};
use crate::reporter::leftovers as messages;
use rankrun_core::agent::leftovers::LeftoverStep;
use rankrun_core::agent::message::{Input, SweepResult};

impl Agent<'_> {
    /// Lists the remaining processes, and does this step to them.
    pub(super) fn sweep_leftovers(&mut self, step: LeftoverStep) -> SweepResult {
        let _ = self.workers.reap();
        let Ok(mut remaining) = leftover_processes() else { return SweepResult::Unknown };
        remaining.retain(|process| !self.state.survivors().contains(&process.identity()));
        if remaining.is_empty() {
            return SweepResult::Empty;
        }
        self.apply_leftover_step(step, &remaining);
        SweepResult::Remaining
    }

    fn apply_leftover_step(&self, step: LeftoverStep, remaining: &[FoundProcess]) {
        let signal_all = |signal| remaining.iter().for_each(|process| process.signal(signal));
        let named =
            || -> Vec<_> { remaining.iter().map(|process| (process.pid, process.command())).collect() };
        match step {
            LeftoverStep::Wait => {}
            LeftoverStep::Announce { wait, has_time_limit } => {
                self.announce_leftovers("waiting_for_leftovers", named(), |named| {
                    messages::waiting(named, wait, has_time_limit)
                });
            }
            LeftoverStep::Ask { reason, grace } => {
                let named = named();
                remaining.iter().for_each(|process| process.signal_and_continue(Signal::SIGTERM));
                self.announce_leftovers("ending_leftovers", named, |named| {
                    messages::ending(named, reason, grace)
                });
            }
            LeftoverStep::Kill { ignored_signal } => {
                let named = named();
                signal_all(Signal::SIGKILL);
                self.announce_leftovers("killing_leftovers", named, |named| {
                    messages::killing(named, ignored_signal)
                });
            }
            LeftoverStep::KillAgain => signal_all(Signal::SIGKILL),
            LeftoverStep::GiveUp => {
                self.announce_leftovers("leftovers_survive_kill", named(), messages::unkillable);
            }
        }
    }

    /// Kills all processes of the job that are left, and waits for none.
    pub(super) fn kill_leftovers(&mut self) -> Input {
        // The last worker was reaped before.
        let _ = self.workers.reap();
        Input::LeftoversKilled { remaining: kill_present_descendants() }
    }

    /// The same, and waits for their end: the loop has ended, so no signal waits.
    pub(super) fn end_leftovers(&self) {
        match kill_descendants(&KillScope::All) {
            Ok(remaining) if remaining.is_empty() => {}
            Ok(remaining) => self.announce("leftovers_survive_kill", &messages::surviving(&remaining)),
            Err(source) => {
                self.report_launcher_error(&LaunchError::Unswept { source });
            }
        }
    }

    /// Reports that processes of the job may be left, if so.
    pub(super) fn report_scan_error(&self) -> Option<ErrorReport> {
        let source = self.state.scan_error()?;
        Some(self.report_launcher_error(&LaunchError::Unswept { source }).report)
    }
}
