//! The power draw of the workers' devices, while their stacks are taken: a worker that waits for a kernel on its GPU looks
//! like one that waits for nothing. A child asks NVML, which may block.
#![expect(clippy::disallowed_methods, reason = "the answer has a limit")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rankrun_core::worker_command::WorkerCommand;

use super::collect::StackTarget;
use super::tool_run::{ToolEnd, ToolRun};
use crate::device_probe::{Answer, Probe};
use crate::process::probe::probe_command;

/// The stacks wait no longer for it.
const POWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The child that asks for the power of all devices.
#[derive(Debug)]
pub(super) struct PowerRun {
    /// The devices in the order of its answer.
    uuids: Vec<String>,
    run: ToolRun,
    give_up_at: Instant,
}

impl PowerRun {
    /// `None` if no worker that lives has a device with a power draw, or the child cannot be started.
    pub(super) fn start(targets: &[StackTarget]) -> Option<Self> {
        let live = targets.iter().filter(|target| target.is_live);
        let mut uuids: Vec<String> = live.filter_map(|target| target.device_uuid.clone()).collect();
        uuids.sort();
        uuids.dedup();
        if uuids.is_empty() {
            return None;
        }
        let command = probe_command(&Probe::Power(uuids.clone()));
        let run = command.and_then(|command| Self::with(uuids, &command));
        run.inspect_err(|error| tracing::info!("the power of the devices is not read: {error}")).ok()
    }

    /// A child that answers for these devices.
    pub(super) fn with(uuids: Vec<String>, command: &WorkerCommand) -> io::Result<Self> {
        let run = ToolRun::start(command)?;
        Ok(Self { uuids, run, give_up_at: Instant::now() + POWER_TIMEOUT })
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.run.fds()
    }

    /// Reads what there is; true while the answer may come.
    pub(super) fn advance(&mut self) -> bool {
        !self.run.advance() && Instant::now() < self.give_up_at
    }

    /// Kills the child if it still runs.
    pub(super) fn stop(&mut self) {
        self.run.stop();
    }

    /// The watts of each device, by UUID. [`Self::stop`] was called; waits until then for the end of the child.
    pub(super) fn finish(self, until: Instant) -> BTreeMap<String, f64> {
        let output = self.run.finish(until);
        match (output.end, serde_json::from_slice(&output.stdout)) {
            (ToolEnd::Exited(_), Ok(Answer::Power(Ok(power)))) => {
                let watts = power.into_iter().map(|milliwatts| Some(f64::from(milliwatts?) / 1000.0));
                self.uuids.into_iter().zip(watts).filter_map(|(uuid, watts)| Some((uuid, watts?))).collect()
            }
            (ToolEnd::Exited(_), Ok(Answer::Power(Err(why)))) => {
                tracing::info!("the power of the devices is not read: {why}");
                BTreeMap::new()
            }
            // The stacks were complete before.
            (ToolEnd::TooLate, _) if Instant::now() < self.give_up_at => BTreeMap::new(),
            _ => {
                tracing::info!("the power of the devices is not read: {}", output.problem());
                BTreeMap::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell in place of the child.
    fn watts(script: &str) -> BTreeMap<String, f64> {
        let argv = [c"sh", c"-c"].map(ToOwned::to_owned).into_iter();
        let argv = argv.chain([std::ffi::CString::new(script).unwrap()]).collect();
        let envp = vec![c"PATH=/usr/bin:/bin".to_owned()];
        let command =
            WorkerCommand { path: c"/bin/sh".to_owned(), argv, envp, cpus: None, names_tracer: false };
        let uuids = ["GPU-1", "GPU-2"].map(str::to_owned).to_vec();
        let mut power = PowerRun::with(uuids, &command).unwrap();
        while power.advance() {
            std::thread::yield_now();
        }
        power.stop();
        power.finish(Instant::now() + Duration::from_secs(10))
    }

    #[test]
    fn power_is_that_of_each_device_in_order() {
        let answer = Answer::Power(Ok(vec![None, Some(390_500)]));
        let script = format!("echo '{}'", serde_json::to_string(&answer).unwrap());
        assert_eq!(watts(&script), BTreeMap::from([("GPU-2".to_owned(), 390.5)]));
    }

    #[test]
    fn power_is_unknown_after_error_junk_or_silence() {
        let failed = serde_json::to_string(&Answer::Power(Err("no NVML".to_owned()))).unwrap();
        for script in [format!("echo '{failed}'"), "echo junk".to_owned(), "exec sleep 1000".to_owned()] {
            assert_eq!(watts(&script), BTreeMap::new(), "{script}");
        }
    }

    #[test]
    fn worker_without_device_starts_no_child() {
        assert!(PowerRun::start(&[]).is_none());
    }
}
