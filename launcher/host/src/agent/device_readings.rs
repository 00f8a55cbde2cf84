//! The error counters of the devices, read at the start of the job and again for the failure report. NVML may block for
//! long, so each reading is a child with a deadline. Where the first one fails there is no second.
#![expect(clippy::disallowed_methods, reason = "a reading has its time")]

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::device_probe::Probe;
use crate::process::probe::Probes;
use rankrun_core::agent::message::JobOutcome;
use rankrun_core::device::reading::{DeviceCounters, DeviceReading, ReadingProblem, ReadingTarget};
use rankrun_core::posix::{Exit, Pid};
use rankrun_core::spec::{CliFlavor, LaunchSpec};

/// The report waits no longer for the second reading. With the half second that a killed probe may need it is below the
/// two seconds after which a wait for output is announced.
const REPORT_WAIT: Duration = Duration::from_millis(1_400);

/// How far the readings have come.
#[derive(Debug, Default)]
pub(super) enum DeviceReadings {
    /// Not begun, or the workers ended before the answer.
    #[default]
    Unread,
    /// At the start of the job.
    Starting { targets: Vec<ReadingTarget>, probe: Probes },
    /// The answer of the start.
    Started(Vec<(ReadingTarget, DeviceReading)>),
    /// After a failure, of the device of the failed worker.
    Ending { uuid: String, before: Box<DeviceReading>, probe: Probes },
    /// Nothing more is read.
    Finished,
}

impl DeviceReadings {
    /// Begins the first reading, once the workers run.
    fn start(&mut self, spec: &LaunchSpec) {
        // Under the name torchrun no device is chosen, and its report has no place for counters.
        if !matches!(self, Self::Unread) || spec.cli_flavor == CliFlavor::Torchrun {
            return;
        }
        let devices = spec.devices.devices.iter();
        let targets: Vec<_> = devices.filter_map(|device| ReadingTarget::of(&device.accelerator)).collect();
        if targets.is_empty() {
            return;
        }
        let probe = start_probe(&targets, spec.device_request.probe_timeout);
        *self = Self::Starting { targets, probe };
    }

    /// The workers have ended: a process of the launcher would count as theirs.
    pub(super) fn cut_off(&mut self) {
        if matches!(self, Self::Starting { .. }) {
            *self = Self::Unread;
        }
    }

    /// Begins the second reading of this device, if the first one has it.
    fn read_again(&mut self, uuid: &str) {
        let Self::Started(readings) = std::mem::replace(self, Self::Finished) else { return };
        let Some((target, before)) = readings.into_iter().find(|(target, _)| target.uuid == uuid) else {
            return;
        };
        let probe = start_probe(std::slice::from_ref(&target), REPORT_WAIT);
        *self = Self::Ending { uuid: target.uuid, before: Box::new(before), probe };
    }

    /// Handles the answers so far; returns both readings, once.
    pub(super) fn advance(&mut self, now: Instant) -> Option<DeviceCounters> {
        let is_answered = match self {
            Self::Starting { probe, .. } | Self::Ending { probe, .. } => probe.advance(now),
            Self::Unread | Self::Started(_) | Self::Finished => false,
        };
        if !is_answered {
            return None;
        }
        match std::mem::replace(self, Self::Finished) {
            Self::Starting { targets, probe } => match probe.into_readings() {
                Ok(readings) => {
                    tell_of_readings(&readings);
                    *self = Self::Started(targets.into_iter().zip(readings).collect());
                }
                Err(ReadingProblem { why, .. }) => {
                    tracing::info!("the error counters of the devices are not read: {why}");
                }
            },
            Self::Ending { uuid, before, probe } => {
                let after = probe.into_readings().and_then(|readings| {
                    let why = || "the answer has no device".to_owned();
                    let problem = || ReadingProblem { why: why(), is_unkillable: false };
                    readings.into_iter().next().ok_or_else(problem)
                });
                if let Err(ReadingProblem { why, .. }) = &after {
                    tracing::info!("the error counters of the device are not read after the failure: {why}");
                }
                return Some(DeviceCounters { uuid, before: *before, after });
            }
            Self::Unread | Self::Started(_) | Self::Finished => {}
        }
        None
    }

    /// Whether the report waits for an answer.
    pub(super) const fn is_report_waiting(&self) -> bool {
        matches!(self, Self::Ending { .. })
    }

    /// The descriptors that become readable when [`Self::advance`] has something to do.
    pub(super) fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.probe().into_iter().flat_map(Probes::as_fds)
    }

    /// When [`Self::advance`] has something to do, if no descriptor becomes readable before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.probe().and_then(Probes::deadline)
    }

    /// Records the exit of a reaped child; true if it was the probe.
    pub(super) fn on_reaped(&mut self, pid: Pid, exit: Exit) -> bool {
        match self {
            Self::Starting { probe, .. } | Self::Ending { probe, .. } => probe.on_reaped(pid, exit),
            Self::Unread | Self::Started(_) | Self::Finished => false,
        }
    }

    const fn probe(&self) -> Option<&Probes> {
        match self {
            Self::Starting { probe, .. } | Self::Ending { probe, .. } => Some(probe),
            Self::Unread | Self::Started(_) | Self::Finished => None,
        }
    }
}

fn start_probe(targets: &[ReadingTarget], limit: Duration) -> Probes {
    Probes::start(&[Probe::Readings(targets.to_vec())], limit, Instant::now())
}

/// Once for all devices: they are mostly alike.
fn tell_of_readings(readings: &[DeviceReading]) {
    let absent: BTreeSet<&str> =
        readings.iter().flat_map(|reading| &reading.absent).map(String::as_str).collect();
    let without = if absent.is_empty() { "" } else { "; without " };
    let absent = absent.into_iter().collect::<Vec<_>>().join(", ");
    tracing::info!("the error counters of the devices are read{without}{absent}");
}

impl Agent<'_> {
    /// After the workers have been started, so that none waits for it.
    pub(super) fn start_readings(&mut self) {
        self.device_readings.start(self.workers.spec());
    }

    /// The job has ended: reads the device of the worker that failed first. A job that was told to end has no time.
    pub(super) fn read_failed_device(&mut self, outcome: &JobOutcome) {
        self.device_readings.cut_off();
        let failure = outcome.failure.as_ref().filter(|_| outcome.stop_reason().is_none());
        let uuid = failure.and_then(|failure| self.workers.device_uuid(failure.first.local_rank));
        if let Some(uuid) = uuid {
            self.device_readings.read_again(&uuid);
        }
    }

    /// Keeps both readings for the failure report, once they are there.
    pub(super) fn advance_readings(&mut self) {
        if let Some(counters) = self.device_readings.advance(Instant::now()) {
            self.workers.set_counters(counters);
        }
    }
}
