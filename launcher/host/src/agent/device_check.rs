//! The health check of the devices after a failure. Its probes are child processes that run beside the
//! agent's loop. It turns their answers into inputs for the state. `device_report` judges the devices;
//! `reassign` assigns them anew.
#![expect(clippy::disallowed_methods, reason = "probes have a deadline")]

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rankrun_contract::rank::Generation;
use rustix::process::getuid;

use crate::agent::workers::WorkerGroup;
use crate::device_probe::Probe;
use crate::process::probe::Probes;
use crate::system::System;
use rankrun_core::agent::device_report::report_devices;
use rankrun_core::agent::message::Input;
use rankrun_core::agent::reassign::{self, Reassignment};
use rankrun_core::device::{CudaOrder, Machine, ProbeScope};
use rankrun_core::facts::Facts;
use rankrun_core::posix::{Exit, Pid};
use rankrun_core::spec::Unhealthy;

/// One health check, from the first probe to the last answer.
pub(super) struct DeviceCheckRun {
    generation: Generation,
    /// How long a vendor's library may take to answer.
    probe_timeout: Duration,
    /// The probes that still run.
    probes: Option<(PendingProbe, Probes)>,
    /// The machine as the probes found it.
    machine: Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingProbe {
    Devices,
    Order,
}

impl DeviceCheckRun {
    /// Starts the probes of the devices.
    pub(super) fn start(generation: Generation, unhealthy: Unhealthy, probe_timeout: Duration) -> Self {
        // A new device assignment may need the order by links, or the CPUs near each device.
        let again = unhealthy == Unhealthy::Exclude;
        let ask = ProbeScope { state: true, links: again, cpus: again };
        let probes = Probes::discovery(ask, probe_timeout, Instant::now());
        Self {
            generation,
            probe_timeout,
            probes: Some((PendingProbe::Devices, probes)),
            machine: Machine::default(),
        }
    }

    /// The descriptors that become readable when [`Self::advance`] has something to do.
    pub(super) fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.probes.iter().flat_map(|(_, probes)| probes.as_fds())
    }

    /// When [`Self::advance`] has something to do, if no descriptor becomes readable before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.probes.as_ref().and_then(|(_, probes)| probes.deadline())
    }

    /// Records the exit of a reaped child; the child may be one of the probes.
    pub(super) fn on_reaped(&mut self, pid: Pid, exit: Exit) {
        if let Some((_, probes)) = &mut self.probes {
            probes.on_reaped(pid, exit);
        }
    }

    /// Processes the answers of probes; returns an input for the state once the check is complete.
    pub(super) fn advance(&mut self, workers: &mut WorkerGroup) -> Option<Input> {
        let (asked, probes) = self.probes.take_if(|(_, probes)| probes.advance(Instant::now()))?;
        match asked {
            PendingProbe::Devices => {
                self.machine = probes.into_machine();
                let checkup =
                    report_devices(&self.machine, &workers.spec().devices.workers, getuid().as_raw());
                Some(Input::DevicesProbed { generation: self.generation, report: checkup })
            }
            PendingProbe::Order => self.reassign(workers, Some(&probes.into_cuda_order())),
        }
    }

    /// Assigns the remaining devices to the workers. Returns `None` while the CUDA driver still has to
    /// answer.
    pub(super) fn reassign(&mut self, workers: &mut WorkerGroup, order: Option<&CudaOrder>) -> Option<Input> {
        let facts = Facts::new(workers.environment().to_vec(), Box::new(System::SILENT));
        let result = match reassign::reassign_devices(workers.spec(), &facts, &self.machine, order) {
            Reassignment::NeedsOrder => {
                let probes = Probes::start(&[Probe::CudaOrder], self.probe_timeout, Instant::now());
                self.probes = Some((PendingProbe::Order, probes));
                return None;
            }
            Reassignment::Assigned(choice) => {
                let count = choice.worker_count();
                workers.set_pending_devices(*choice);
                Ok(count)
            }
            Reassignment::Refused(why) => Err(why),
        };
        Some(Input::DevicesReassigned { generation: self.generation, result })
    }
}
