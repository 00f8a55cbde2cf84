//! The look at the devices after a failure: probes that run beside the agent's loop, and what is made of their answers.
#![expect(clippy::disallowed_methods, reason = "probes have a deadline")]

use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::unistd::Pid;
use rankrun_contract::rank::Generation;
use rustix::process::getuid;

use crate::agent::checkup::judge;
use crate::agent::message::Input;
use crate::agent::reseat::{self, Reseated, Words};
use crate::agent::workers::Workers;
use crate::device::probe::Probe;
use crate::device::{Ask, Machine};
use crate::process::Exit;
use crate::process::probe::Probes;
use crate::spec::{DeviceCheck, Unhealthy};

/// One look, from the first question to the last answer.
pub(super) struct Check {
    generation: Generation,
    settings: DeviceCheck,
    /// Those that have not answered all.
    probes: Option<(Asked, Probes)>,
    /// As it was found.
    machine: Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Devices,
    Order,
}

impl Check {
    /// Asks how the devices are.
    pub(super) fn start(generation: Generation, settings: DeviceCheck) -> Self {
        // Whoever is seated anew may have asked for an order by links, or for CPUs near the device.
        let again = settings.unhealthy == Unhealthy::Exclude;
        let ask = Ask { state: true, links: again, cpus: again };
        let probes = Probes::discovery(ask, settings.limit, Instant::now());
        Self { generation, settings, probes: Some((Asked::Devices, probes)), machine: Machine::default() }
    }

    /// Whether somebody is asked at present.
    pub(super) const fn is_running(&self) -> bool {
        self.probes.is_some()
    }

    /// What becomes readable when [`Self::advance`] has something to do.
    pub(super) fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.probes.iter().flat_map(|(_, probes)| probes.as_fds())
    }

    /// When [`Self::advance`] has something to do, if nothing becomes readable before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.probes.as_ref().and_then(|(_, probes)| probes.deadline())
    }

    /// Takes in that somebody has reaped this child, whoever it was.
    pub(super) fn reaped(&mut self, pid: Pid, exit: Exit) {
        if let Some((_, probes)) = &mut self.probes {
            probes.reaped(pid, exit);
        }
    }

    /// Takes in what has happened.
    pub(super) fn advance(&mut self, words: &Words, workers: &mut Workers) -> Option<Input> {
        let (asked, probes) = self.probes.take_if(|(_, probes)| probes.advance(Instant::now()))?;
        match asked {
            Asked::Devices => {
                self.machine = probes.into_machine();
                let checkup = judge(&self.machine, &workers.spec().seats, getuid().as_raw());
                Some(Input::DevicesChecked { generation: self.generation, checkup })
            }
            Asked::Order => self.reseat(words, workers, Some(probes.into_cuda_order())),
        }
    }

    /// Seats the workers on the devices that are left; perhaps later, when the CUDA driver has answered.
    pub(super) fn reseat(
        &mut self,
        words: &Words,
        workers: &mut Workers,
        order: Option<reseat::CudaOrder>,
    ) -> Option<Input> {
        let seating = match reseat::seats(words, &workers.spec().seats, self.machine.clone(), order) {
            Reseated::NeedsOrder => {
                let probes = Probes::start(&[Probe::CudaOrder], self.settings.limit, Instant::now());
                self.probes = Some((Asked::Order, probes));
                return None;
            }
            Reseated::Seated(seating) => {
                let count = seating.workers;
                workers.sit_down_next(*seating);
                Ok(count)
            }
            Reseated::Refused(why) => Err(why),
        };
        Some(Input::Reseated { generation: self.generation, seating })
    }
}
