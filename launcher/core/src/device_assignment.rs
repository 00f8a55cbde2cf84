//! The assignment of devices to workers: one discovery, one choice, and the variables of each worker.
//!
//! | file | what it does |
//! |---|---|
//! | `choose` | machine and request → the chosen devices, and the warnings about them |
//! | `worker_count` | the number of workers |
//! | `worker_devices` | chosen devices → the device, variables and CPUs of each worker |
//! | `cpu_workers` | workers on the CPUs, and the reason |
//! | `virtual_devices` | torch's `--virtual-local-rank` |
//! | `omp_threads` | `OMP_NUM_THREADS` of the workers |
//! | `device_lines` | one line for each worker that names its device |
//! | `presence` | whether a probe is worth starting |
//! | `hint` | hints that fit the request |
//!
//! Under the name torchrun nothing is chosen: the workers inherit the vendors' variables as they are. Devices are only
//! counted, where a word asks for it, or bound near to. Our own variables (`RANKRUN_DEVICES`, …) count there too.
//!
//! Nothing here probes: [`NodeFacts`] answers, before a launch from the probes and after a failure from the check.

mod choose;
mod cpu_workers;
mod device_lines;
mod error;
mod hint;
mod omp_threads;
mod presence;
mod virtual_devices;
mod worker_count;
mod worker_devices;

use std::path::Path;

use rankrun_contract::rank::LocalWorldSize;

pub use error::DeviceError;

use crate::device::choice::{ChosenDevice, DeviceChoice};
use crate::device::visibility::{AskCuda, InheritedVariables};
use crate::device::worker_device::WorkerDevice;
use crate::device::{DeviceType, Machine, Part, ProbeProblemKind, ProbeScope, Visibility};
use crate::facts::Facts;
use crate::notice::Notice;
use crate::spec::CliFlavor;
use crate::spec::device_request::{DeviceRequest, ProbeNeed, WorkerCount};
use cpu_workers::CpuCause;

/// The answers of this node; a probe is asked only if the assignment depends on its answer.
pub struct NodeFacts<'a> {
    /// The environment, the files and the CPUs.
    pub facts: &'a Facts,
    /// The machine as the probes find it.
    pub discover: &'a dyn Fn(ProbeScope) -> Machine,
    /// The CUDA driver's order of its devices.
    pub cuda_order: AskCuda<'a>,
}

/// The workers of this node and their devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAssignment {
    /// The number of workers on this node.
    pub workers: LocalWorldSize,
    /// The device of each worker, by local rank.
    pub worker_devices: Vec<WorkerDevice>,
    /// How much each worker sees of the chosen devices.
    pub visibility: Visibility,
    /// `OMP_NUM_THREADS`, unless the user set it: fewer workers have more CPUs each.
    pub omp_threads: Option<u32>,
    /// The line about [`Self::omp_threads`].
    pub omp_notice: Option<Notice>,
    /// Warnings and details about the choice.
    pub notices: Vec<Notice>,
    /// The device of each worker, or the reason for the CPUs.
    pub lines: Vec<Notice>,
}

/// Counts the workers and gives each its device.
///
/// # Errors
/// The request does not fit this machine, or a probe that it depends on fails.
pub fn assign_devices(
    request: &DeviceRequest,
    cli_flavor: CliFlavor,
    node: &NodeFacts<'_>,
) -> Result<DeviceAssignment, DeviceError> {
    let inherited = InheritedVariables::of(|name| node.facts.variable(name));
    let mut assigner = Assigner { request, cli_flavor, node, inherited, notices: Vec::new() };
    let mut assignment = assigner.assign().map_err(|error| hint::with_hint(error, request))?;
    assignment.notices = assigner.notices;
    (assignment.omp_threads, assignment.omp_notice) = omp_threads::default_omp_threads(
        cli_flavor,
        (assignment.workers, &assignment.worker_devices),
        node.facts,
    )
    .unzip();
    Ok(assignment)
}

/// The CPUs as the choice, with the accelerators that the workers must not see. Device nodes tell which there are, so
/// that no driver needs to answer.
fn cpus_without_accelerators(facts: &Facts) -> DeviceChoice {
    let exists = |path: &str| facts.exists(Path::new(path));
    let nodes = [(DeviceType::Rocm, exists("/dev/kfd")), (DeviceType::Npu, exists("/dev/davinci_manager"))];
    let others = nodes.into_iter().filter(|(_, exists)| *exists).map(|(kind, _)| kind);
    DeviceChoice::cpus([DeviceType::Cuda].into_iter().chain(others).collect())
}

struct Assigner<'a> {
    request: &'a DeviceRequest,
    cli_flavor: CliFlavor,
    node: &'a NodeFacts<'a>,
    inherited: InheritedVariables,
    notices: Vec<Notice>,
}

impl Assigner<'_> {
    fn assign(&mut self) -> Result<DeviceAssignment, DeviceError> {
        let facts = self.node.facts;
        let has_sign = || presence::has_accelerator_sign(facts.world(), facts.variable("LD_LIBRARY_PATH"));
        match self.request.probe_need(self.cli_flavor, has_sign) {
            ProbeNeed::None => self.without_probe(has_sign()),
            ProbeNeed::OnlyCpus => {
                self.refuse_count_of_devices()?;
                let hide = has_sign().then(|| cpus_without_accelerators(facts));
                self.on_cpus(hide.as_ref(), CpuCause::Requested)
            }
            ProbeNeed::Optional => {
                let machine = self.discover();
                let choice = match self.find_problem(&machine, &[]) {
                    Some((_, error)) => Err(error),
                    None => self.choose(&machine),
                };
                match choice {
                    Ok(choice) => self.on_devices(&machine, &choice),
                    Err(error) => {
                        let text = format!("{error}; the workers are not told which device is theirs");
                        self.notices.push(Notice::Device { text });
                        self.without_probe(true)
                    }
                }
            }
            ProbeNeed::Required => self.with_probe(),
        }
    }

    fn with_probe(&mut self) -> Result<DeviceAssignment, DeviceError> {
        let kinds = requested_kinds(self.request)?;
        let machine = self.discover();
        match self.find_problem(&machine, &kinds) {
            Some((_, error)) if self.depends_on_devices() => Err(error),
            Some((kind, error)) if presence::has_node(self.node.facts.world(), kind) => Err(error),
            Some((_, error)) => {
                if !self.explains_cpus() {
                    let text = format!("{error}; no accelerator shows itself, so the CPUs are taken");
                    self.notices.push(Notice::Device { text });
                }
                self.on_cpus(None, CpuCause::LibraryFailed(&error))
            }
            None => {
                let choice = self.choose(&machine)?;
                self.on_devices(&machine, &choice)
            }
        }
    }

    /// `--devices none` with `--nproc-per-node gpu`.
    fn refuse_count_of_devices(&self) -> Result<(), DeviceError> {
        if let (WorkerCount::Devices { origin, word, .. }, Some(devices)) =
            (&self.request.worker_count, &self.request.devices)
        {
            return Err(DeviceError::Contradiction {
                one: origin.clone(),
                value: word.clone(),
                other: devices.origin.clone(),
                other_value: devices.value.0.clone(),
            });
        }
        requested_kinds(self.request).map(drop)
    }

    /// `--device-visibility`, or torchrun's option for the same.
    fn requested_visibility(&self) -> Visibility {
        let by_torch = if self.request.virtual_local_rank { Visibility::Own } else { Visibility::Whole };
        self.request.visibility.unwrap_or(by_torch)
    }

    /// Whether accelerators were asked for, and not only taken where there are some.
    const fn depends_on_devices(&self) -> bool {
        let is_counted = matches!(self.request.worker_count, WorkerCount::Default | WorkerCount::Auto);
        !is_counted || self.request.chooses_devices() || self.request.binding.is_some()
    }

    /// The first library of these types that did not answer; of any type if `kinds` is empty.
    fn find_problem(&self, machine: &Machine, kinds: &[DeviceType]) -> Option<(DeviceType, DeviceError)> {
        let is_requested = |kind: &DeviceType| kinds.is_empty() || kinds.contains(kind);
        let mut problems = machine.troubles.iter().filter(|problem| is_requested(&problem.kind));
        let problem = problems.find(|problem| !matches!(problem.what, ProbeProblemKind::Missing(_)))?;
        Some((problem.kind, DeviceError::Trouble { trouble: problem.clone() }))
    }

    fn discover(&mut self) -> Machine {
        let machine = (self.node.discover)(self.request.probe_scope());
        let replaced = machine.made_good.iter().map(|problem| Notice::Device {
            text: format!("{problem}; the CUDA driver answers in its place"),
        });
        self.notices.extend(replaced);
        let missing = machine.troubles.iter();
        let missing = missing.filter(|problem| matches!(problem.what, ProbeProblemKind::Missing(_)));
        self.notices.extend(missing.map(|problem| Notice::Detail {
            text: format!("looking for {} devices: {problem}", problem.kind),
            torch_line: None,
        }));
        machine
    }

    fn on_devices(
        &mut self,
        machine: &Machine,
        choice: &DeviceChoice,
    ) -> Result<DeviceAssignment, DeviceError> {
        let workers = self.workers(choice)?;
        if choice.kind == DeviceType::Cpu {
            let useless = hint::options_without_effect(self.request).filter(|_| choice.is_untouched);
            self.notices.extend(useless.map(|text| Notice::Device { text }));
            return if choice.is_untouched {
                self.on_cpus(None, CpuCause::Choice(machine, &choice.warnings))
            } else {
                self.on_cpus(Some(choice), CpuCause::Requested)
            };
        }
        self.refuse_sharing(choice, workers)?;
        let (mut worker_devices, visibility) = if self.passes_variables(choice) {
            self.inherited_devices(choice, workers)?
        } else {
            self.chosen_devices(choice, workers)
        };
        self.bind_to_cpus(machine, choice, &mut worker_devices)?;
        self.add_findings(choice);
        let lines = match self.cli_flavor {
            CliFlavor::Rankrun if !self.request.quiet => device_lines::device_lines(&worker_devices),
            CliFlavor::Rankrun | CliFlavor::Torchrun => Vec::new(),
        };
        Ok(assignment(workers, worker_devices, visibility, lines))
    }

    /// Whether the vendors' variables pass unchanged, but for torch's `--virtual-local-rank`.
    fn passes_variables(&self, choice: &DeviceChoice) -> bool {
        if self.request.chooses_devices() {
            return false;
        }
        let is_gpu = |chosen: &ChosenDevice| {
            let kind = chosen.accelerator.kind;
            matches!(kind, DeviceType::Cuda | DeviceType::Rocm) && chosen.accelerator.part == Part::Whole
        };
        (self.request.virtual_local_rank && choice.devices.iter().all(is_gpu)) || self.is_passive()
    }
}

/// The device types that the request allows; any type if the list is empty.
///
/// # Errors
/// The request allows none.
fn requested_kinds(request: &DeviceRequest) -> Result<Vec<DeviceType>, DeviceError> {
    match (&request.worker_count, &request.device_type) {
        (WorkerCount::Devices { origin, word, kinds }, Some(kind)) if !kinds.contains(&kind.value) => {
            Err(DeviceError::Contradiction {
                one: origin.clone(),
                value: word.clone(),
                other: kind.origin.clone(),
                other_value: kind.value.to_string(),
            })
        }
        (_, Some(kind)) => Ok(vec![kind.value]),
        (WorkerCount::Devices { kinds, .. }, None) => Ok(kinds.clone()),
        (_, None) => Ok(Vec::new()),
    }
}

/// An assignment without notices and `OMP_NUM_THREADS`, which [`assign_devices`] adds.
const fn assignment(
    workers: LocalWorldSize,
    worker_devices: Vec<WorkerDevice>,
    visibility: Visibility,
    lines: Vec<Notice>,
) -> DeviceAssignment {
    DeviceAssignment {
        workers,
        worker_devices,
        visibility,
        omp_threads: None,
        omp_notice: None,
        notices: Vec::new(),
        lines,
    }
}
