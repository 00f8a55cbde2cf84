//! Ctrl-Z, `fg` and `bg`: stops the processes of the job and lets them go on, when the state says so
//! (`state::suspend`). The guard's side, and why the agent itself keeps running, is in `process/job_control.rs`.

use std::time::Duration;

use rankrun_core::posix::Signal;

use crate::agent::Agent;
use crate::process::descendants::{continue_descendants, kill_unreaped, stop_descendants};
use crate::process::link::ToGuard;
use rankrun_core::posix::ProcessScanError;

impl Agent<'_> {
    /// Stops the processes of the job, and tells the guard, which then stops itself. The heartbeats go on.
    pub(super) fn suspend_job(&mut self, has_processes: bool) {
        if has_processes {
            // Each process group in one instant, then the processes that have left theirs.
            self.workers.signal_all(Signal::SIGSTOP);
            warn_of_failure("some of the job may not be stopped", stop_descendants());
        }
        if let Some(watch) = &self.progress_watch {
            watch.suspend();
        }
        // Without a guard the next read of the link ends the job, and all processes are killed as they stand.
        let _ = self.link.send_to_guard(ToGuard::Suspended);
    }

    pub(super) fn resume_job(&mut self, has_processes: bool, suspended_for: Duration) {
        if has_processes {
            warn_of_failure("some of the job may stay stopped", continue_descendants());
            self.workers.signal_all(Signal::SIGCONT);
        }
        if let Some(watch) = &self.progress_watch {
            watch.resume(suspended_for);
        }
        tracing::info!("the job was stopped for {suspended_for:.1?}, and goes on");
    }

    pub(super) fn kill_suspended_job(&mut self) {
        self.workers.signal_all(Signal::SIGKILL);
        warn_of_failure("some of the job may not be killed", kill_unreaped());
    }
}

fn warn_of_failure(what: &str, result: Result<(), ProcessScanError>) {
    if let Err(error) = result {
        tracing::warn!("{what}: {error}: {}", error.0);
    }
}
