//! Finds the processes that the workers left running, and signals or kills them. When to do so is the
//! state's decision (`state::shutdown`).

use nix::sys::signal::Signal;

use crate::agent::leftovers::LeftoverStep;
use crate::agent::message::SweepResult;
use crate::agent::{Agent, error_report};
use crate::error::LaunchError;
use crate::process::descendants::{FoundProcess, KillScope, kill_descendants, leftover_processes};
use crate::reporter::leftovers as messages;

impl Agent<'_> {
    /// Lists the remaining processes, and does this step to them.
    pub(super) fn sweep_leftovers(&mut self, step: LeftoverStep) -> SweepResult {
        let _ = self.workers.reap();
        match leftover_processes() {
            Err(_) => SweepResult::Unknown,
            Ok(remaining) if remaining.is_empty() => SweepResult::Empty,
            Ok(remaining) => {
                self.apply_leftover_step(step, &remaining);
                SweepResult::Remaining
            }
        }
    }

    fn apply_leftover_step(&self, step: LeftoverStep, remaining: &[FoundProcess]) {
        let signal_all = |signal| remaining.iter().for_each(|process| process.signal(signal));
        let named =
            || -> Vec<_> { remaining.iter().map(|process| (process.pid, process.command())).collect() };
        match step {
            LeftoverStep::Wait => {}
            LeftoverStep::Announce { wait, has_time_limit } => {
                self.user_log.print_line(&messages::waiting(&named(), wait, has_time_limit));
            }
            LeftoverStep::Ask { reason, grace } => {
                let named = named();
                remaining.iter().for_each(|process| process.signal_and_continue(Signal::SIGTERM));
                self.user_log.print_line(&messages::ending(&named, reason, grace));
            }
            LeftoverStep::Kill { ignored_signal } => {
                let named = named();
                signal_all(Signal::SIGKILL);
                self.user_log.print_line(&messages::killing(&named, ignored_signal));
            }
            LeftoverStep::KillAgain => signal_all(Signal::SIGKILL),
            LeftoverStep::GiveUp => self.user_log.print_line(&messages::unkillable(&named())),
        }
    }

    /// Kills all remaining processes of the job. If they cannot be listed, the job neither goes on nor
    /// succeeds.
    pub(super) fn kill_leftovers(&mut self) {
        match kill_descendants(&KillScope::All) {
            Ok(remaining) => {
                for pid in remaining {
                    tracing::warn!(pid = pid.as_raw(), "a process of the job cannot be ended");
                }
                self.scan_error = None;
            }
            Err(source) => self.scan_error = Some(source),
        }
    }

    /// Reports that processes of the job may be left, if so.
    pub(super) fn report_scan_error(&mut self) -> bool {
        let Some(source) = self.scan_error else { return false };
        let error = LaunchError::Unswept { source };
        self.user_log.error(&error, error.hint().as_deref());
        self.launcher_error = Some(error_report(&error));
        true
    }
}
