//! `OMP_NUM_THREADS` of the workers.

use std::collections::BTreeSet;

use rankrun_contract::rank::LocalWorldSize;

use crate::device::worker_device::WorkerDevice;
use crate::facts::Facts;
use crate::notice::Notice;
use crate::spec::CliFlavor;

const OMP_VARIABLE: &str = "OMP_NUM_THREADS";

/// Threads of each worker with the line about them, if several workers share the CPUs and the user did not set the
/// variable.
pub(super) fn default_omp_threads(
    cli_flavor: CliFlavor,
    (workers, worker_devices): (LocalWorldSize, &[WorkerDevice]),
    facts: &Facts,
) -> Option<(u32, Notice)> {
    if workers == LocalWorldSize::ONE || facts.variable(OMP_VARIABLE).is_some() {
        return None;
    }
    if cli_flavor == CliFlavor::Torchrun {
        return Some((1, Notice::SingleOmpThread));
    }
    let (cpus, threads) = bound_share(worker_devices).unwrap_or_else(|| {
        let cpus = facts.world().affinity_cpu_count();
        (cpus, u32::try_from(cpus).map_or(u32::MAX, |cpus| cpus / workers.get()))
    });
    let threads = threads.max(1);
    Some((threads, Notice::OmpThreads { threads, cpus, workers }))
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
