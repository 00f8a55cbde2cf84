//! Assigns the remaining devices after some have died: the launch's device request, on the machine as the check found
//! it. A user that asked for a device order or a number of workers gets exactly that, or an error that says why not.

use std::cell::Cell;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use crate::agent::device_report;
use crate::device::choice::number;
use crate::device::{CudaOrder, DeviceChoice, Machine, WorkerDevice};
use crate::device_assignment::assign_devices;
use crate::facts::Facts;
use crate::spec::{LaunchSpec, StdinPolicy};

/// The result of a new assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reassignment {
    /// The new devices of the workers.
    Assigned(Box<DeviceChoice>),
    /// The assignment is impossible for this reason.
    Refused(String),
    /// The CUDA driver's device order is needed first.
    NeedsOrder,
}

/// Assigns the devices of `machine` by the launch's request. Where the devices have other indices than before, an
/// option may mean another device, so the assignment is refused.
#[must_use]
pub fn reassign_devices(
    spec: &LaunchSpec,
    facts: &Facts,
    machine: &Machine,
    order: Option<&CudaOrder>,
) -> Reassignment {
    if !has_same_indices(&spec.devices.workers, machine) {
        return Reassignment::Refused("the devices that are left have other numbers now".to_owned());
    }
    let needs_order = Cell::new(false);
    let cuda_order = || {
        order.cloned().unwrap_or_else(|| {
            needs_order.set(true);
            Err("it was not asked".to_owned())
        })
    };
    let discover = |_| machine.clone();
    let node = facts.node_facts(&discover, &cuda_order);
    let assigned = assign_devices(&spec.device_request, spec.cli_flavor, &node);
    if needs_order.get() {
        return Reassignment::NeedsOrder;
    }
    match assigned {
        Ok((choice, _)) => match find_missing_rank(spec, choice.worker_count()) {
            Some(refusal) => Reassignment::Refused(refusal),
            None => Reassignment::Assigned(Box::new(choice)),
        },
        Err(error) => Reassignment::Refused(error.to_string()),
    }
}

/// An option that names a worker that there would not be any more, in a sentence.
fn find_missing_rank(spec: &LaunchSpec, workers: LocalWorldSize) -> Option<String> {
    let by_stdin = match spec.stdin {
        StdinPolicy::Only(rank) => Some(("--stdin", rank)),
        StdinPolicy::All | StdinPolicy::None => None,
    };
    // With other nodes the number of ranks is not known here.
    let rules = if spec.rendezvous.is_shared() { &[][..] } else { spec.restart.rules.as_slice() };
    let by_rule = |rank| ("--restart-rules", LocalRank(rank));
    let named = rules.iter().filter_map(|rule| rule.when.rank).map(|rank| by_rule(rank.0));
    let mut named = named.chain(by_stdin).chain(spec.external_worker.map(|rank| ("--leave-out", rank)));
    let (option, rank) = named.find(|(_, rank)| rank.0 >= workers.get())?;
    Some(format!(
        "`{option}` names local rank {rank}, and the local ranks of {workers} would be 0 to {}",
        workers.get() - 1,
        workers =
            if workers == LocalWorldSize::ONE { "1 worker".to_owned() } else { format!("{workers} workers") },
    ))
}

fn has_same_indices(before: &[WorkerDevice], machine: &Machine) -> bool {
    before.iter().all(|worker| {
        let Some(identity) = &worker.identity else { return true };
        device_report::find_accelerator(machine, identity)
            .is_none_or(|found| number(found) == number(&identity.accelerator))
    })
}

#[cfg(test)]
#[path = "reassign_tests.rs"]
mod tests;
