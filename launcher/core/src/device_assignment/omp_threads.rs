//! `OMP_NUM_THREADS` of the workers.

use std::collections::BTreeSet;

use super::Assigner;
use crate::device::{DeviceChoice, WorkerDevice};
use crate::notice::Notice;
use crate::spec::CliFlavor;

const OMP_VARIABLE: &str = "OMP_NUM_THREADS";

impl Assigner<'_> {
    /// Threads of each worker, if several workers share the CPUs or the user shares the cores among them, and the user
    /// did not set the variable.
    pub(super) fn default_omp_threads(&self, workers: &[WorkerDevice]) -> Option<u32> {
        let has_cores = self.request.bind_cores.is_some();
        if (workers.len() == 1 && !has_cores) || self.node.variable(OMP_VARIABLE).is_some() {
            return None;
        }
        Some(match self.cli_flavor {
            CliFlavor::Torchrun if !has_cores => 1,
            CliFlavor::Torchrun | CliFlavor::Rankrun => cpu_share(workers, self.node.cpu_count).1,
        })
    }
}

/// The line about [`DeviceChoice::omp_threads`].
#[must_use]
pub fn omp_notice(cli_flavor: CliFlavor, choice: &DeviceChoice, cpu_count: usize) -> Option<Notice> {
    let threads = choice.omp_threads.filter(|_| choice.workers.len() > 1)?;
    Some(match (cli_flavor, threads) {
        (CliFlavor::Torchrun, 1) => Notice::SingleOmpThread,
        _ => {
            let (cpus, _) = cpu_share(&choice.workers, cpu_count);
            Notice::OmpThreads { threads, cpus, workers: choice.worker_count() }
        }
    })
}

/// The number of CPUs of all workers, and of each, at least 1.
fn cpu_share(workers: &[WorkerDevice], cpu_count: usize) -> (usize, u32) {
    let (cpus, share) = bound_share(workers).unwrap_or_else(|| {
        let share = cpu_count.checked_div(workers.len());
        (cpu_count, share.and_then(|share| u32::try_from(share).ok()).unwrap_or(u32::MAX))
    });
    (cpus, share.max(1))
}

/// If each worker is bound to CPUs: the number of all these CPUs, and the smallest share of one worker.
fn bound_share(worker_devices: &[WorkerDevice]) -> Option<(usize, u32)> {
    let sets: Vec<&[u32]> =
        worker_devices.iter().map(|worker| worker.cpus.as_deref()).collect::<Option<_>>()?;
    let all: BTreeSet<u32> = sets.iter().flat_map(|set| set.iter().copied()).collect();
    let share = |set: &&[u32]| {
        let sharers = sets.iter().filter(|other| other.iter().any(|cpu| set.contains(cpu))).count();
        set.len().checked_div(sharers)
    };
    let least = sets.iter().filter_map(share).min()?;
    Some((all.len(), u32::try_from(least).unwrap_or(u32::MAX)))
}
