//! Assigns the remaining devices after some have died: the command line is parsed again on the machine as it
//! is now. A user that asked for a device order or a number of workers gets exactly that, or an error that
//! says why not. `device_check` provides the machine; the agent starts the next generation with the result.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rankrun_contract::rank::LocalWorldSize;

use crate::agent::device_report;
use crate::cli::{self, Command};
use crate::device::choice::number;
use crate::device::{CudaDevice, Machine, ProbeScope, Visibility};
use crate::facts::{Facts, FileKind, Permission, StandardStream, System, World};
use crate::notice::Notice;
use crate::spec::{LaunchSpec, WorkerDevice};

/// The CUDA driver's order of its devices, or why it is unknown.
pub(super) type CudaOrder = Result<Vec<CudaDevice>, String>;

/// The command line and environment that the launcher was started with.
#[derive(Debug, Clone, Default)]
pub struct Invocation {
    /// The command line, including the program name.
    pub argv: Vec<OsString>,
    /// The complete environment, including variables that no worker sees.
    pub environment: Vec<(OsString, OsString)>,
}

/// The device assignment from the next generation on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAssignment {
    /// The number of workers on this node.
    pub workers: LocalWorldSize,
    /// The device of each worker, by local rank.
    pub worker_devices: Vec<WorkerDevice>,
    /// The visibility variables for the workers.
    pub visibility: Visibility,
    /// `OMP_NUM_THREADS`: fewer workers have more CPUs each.
    pub omp_threads: Option<u32>,
    /// Lines for the user about the assignment.
    pub device_lines: Vec<String>,
}

/// The result of a new assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reassignment {
    Seated(Box<DeviceAssignment>),
    /// The assignment is impossible for this reason.
    Refused(String),
    /// The CUDA driver's device order is needed first.
    NeedsOrder,
}

/// Parses the command line again. `before` is the assignment so far. Where the devices have other indices
/// now, an option may mean another device, so the assignment is refused.
pub(super) fn reassign_devices(
    invocation: &Invocation,
    before: &[WorkerDevice],
    machine: Machine,
    order: Option<CudaOrder>,
) -> Reassignment {
    if !has_same_indices(before, &machine) {
        return Reassignment::Refused("the devices that are left have other numbers now".to_owned());
    }
    let needs_order = Rc::new(Cell::new(false));
    let seen = ProbedMachine { machine, order, needs_order: Rc::clone(&needs_order) };
    let read =
        parse_assignment(&invocation.argv, &Facts::new(invocation.environment.clone(), Box::new(seen)));
    match read {
        _ if needs_order.get() => Reassignment::NeedsOrder,
        Ok(assignment) => Reassignment::Seated(Box::new(assignment)),
        Err(why) => Reassignment::Refused(why),
    }
}

fn parse_assignment(argv: &[OsString], facts: &Facts) -> Result<DeviceAssignment, String> {
    match cli::interpret(argv, facts) {
        Ok(Command::Launch(launch)) => {
            let is_device_line =
                |notice: &&Notice| matches!(notice, Notice::Seat { .. } | Notice::OnCpus { .. });
            let lines = launch.notices.iter().filter(is_device_line).map(ToString::to_string).collect();
            let LaunchSpec { workers, worker_devices, visibility, defaults, .. } = launch.spec;
            Ok(DeviceAssignment {
                workers,
                worker_devices,
                visibility,
                omp_threads: defaults.omp_threads,
                device_lines: lines,
            })
        }
        Ok(_) => Err("the command line means something else now".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn has_same_indices(before: &[WorkerDevice], machine: &Machine) -> bool {
    before.iter().all(|worker_device| {
        let Some(card) = &worker_device.device.identity else { return true };
        device_report::find_accelerator(machine, &worker_device.device, card)
            .is_none_or(|found| number(found) == card.index)
    })
}

/// This machine with the devices that the check found: no second discovery.
struct ProbedMachine {
    machine: Machine,
    order: Option<CudaOrder>,
    needs_order: Rc<Cell<bool>>,
}

impl World for ProbedMachine {
    fn probe_devices(&self, _: ProbeScope, _: Duration) -> Machine {
        self.machine.clone()
    }

    fn cuda_order(&self, _: Duration) -> CudaOrder {
        self.order.clone().unwrap_or_else(|| {
            self.needs_order.set(true);
            Err("it was not asked".to_owned())
        })
    }

    fn working_folder(&self) -> Option<PathBuf> {
        System::SILENT.working_folder()
    }

    fn affinity_cpu_count(&self) -> usize {
        System::SILENT.affinity_cpu_count()
    }

    fn kind(&self, path: &Path) -> FileKind {
        System::SILENT.kind(path)
    }

    fn has_permission(&self, permission: Permission, path: &Path) -> bool {
        System::SILENT.has_permission(permission, path)
    }

    fn list_names(&self, folder: &Path, most: usize) -> Vec<String> {
        System::SILENT.list_names(folder, most)
    }

    fn read_first_bytes(&self, path: &Path, most: usize) -> Vec<u8> {
        System::SILENT.read_first_bytes(path, most)
    }

    fn read_file(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        System::SILENT.read_file(path, most)
    }

    fn resolve_links(&self, path: &Path) -> PathBuf {
        System::SILENT.resolve_links(path)
    }

    fn is_terminal(&self, stream: StandardStream) -> bool {
        System::SILENT.is_terminal(stream)
    }

    fn user_id(&self) -> u32 {
        System::SILENT.user_id()
    }

    fn process_id(&self) -> u32 {
        System::SILENT.process_id()
    }

    fn descends_from(&self, process: u32) -> bool {
        System::SILENT.descends_from(process)
    }

    fn fresh_uuid(&self) -> uuid::Uuid {
        System::SILENT.fresh_uuid()
    }

    fn allowed_cpus(&self) -> Vec<u32> {
        System::SILENT.allowed_cpus()
    }
}

#[cfg(test)]
#[path = "reassign_tests.rs"]
mod tests;
