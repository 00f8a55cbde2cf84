//! The assignment of devices to workers: one discovery, one choice, and the variables of each worker. Pure.
//!
//! | file | what it does |
//! |---|---|
//! | `choose` | machine and request → the chosen devices, and the warnings about them |
//! | `worker_count` | the number of workers |
//! | `numa_binding`, `bind_cores` | the CPUs that each worker is bound to |
//! | `cpu_workers` | workers on the CPUs, and the reason |
//! | `virtual_devices` | torch's `--virtual-local-rank` |
//! | `omp_threads` | `OMP_NUM_THREADS` of the workers |
//! | `device_lines` | one line for each worker that names its device |
//! | `hint` | hints that fit the request |
//!
//! Under the name torchrun nothing is chosen: the workers inherit the vendors' variables as they are. Devices are only
//! counted, where a word asks for it, or bound near to. Our own variables (`RANKRUN_DEVICES`, …) count there too.
//!
//! Nothing here probes: [`NodeFacts`] answers, before a launch from the probes and after a failure from the check.

mod bind_cores;
mod choose;
mod cpu_workers;
mod device_lines;
mod error;
mod hint;
mod numa_binding;
mod omp_threads;
mod virtual_devices;
mod worker_count;

use std::ffi::{OsStr, OsString};

pub use device_lines::device_lines;
pub use error::DeviceError;
pub use omp_threads::omp_notice;

use crate::device::cores::CoreTopology;
use crate::device::handover::assign;
use crate::device::visibility::{AskCuda, InheritedVariables};
use crate::device::{
    ChosenDevice, DeviceChoice, DeviceType, Machine, Part, ProbeProblemKind, ProbeScope, Visibility,
};
use crate::notice::Notice;
use crate::spec::CliFlavor;
use crate::spec::device_request::{DeviceRequest, ProbeNeed, WorkerCount};

/// The facts of this node. A probe is asked only if the assignment depends on its answer.
pub struct NodeFacts<'a> {
    /// The environment of the launcher.
    pub environment: &'a [(OsString, OsString)],
    /// The user id of the launcher.
    pub user_id: u32,
    /// The number of CPUs that the launcher may use.
    pub cpu_count: usize,
    /// These CPUs in ascending order; none where the kernel does not tell.
    pub allowed_cpus: Vec<u32>,
    /// The device types with a device node of their driver. A library alone does not mean a card: computers without one
    /// often share the image of computers with cards.
    pub device_nodes: Vec<DeviceType>,
    /// Whether there is any sign of an accelerator. A sign is not a proof; without one a probe would find no device.
    pub has_accelerator_sign: bool,
    /// The physical cores of the CPUs.
    pub topology: &'a dyn CoreTopology,
    /// The machine as the probes find it.
    pub discover: &'a dyn Fn(ProbeScope) -> Machine,
    /// The CUDA driver's order of its devices.
    pub cuda_order: AskCuda<'a>,
}

impl NodeFacts<'_> {
    fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }
}

/// Counts the workers and gives each its device. Returns also the warnings and details about the choice.
///
/// # Errors
/// The request does not fit this machine, or a probe that it depends on fails.
pub fn assign_devices(
    request: &DeviceRequest,
    cli_flavor: CliFlavor,
    node: &NodeFacts<'_>,
) -> Result<(DeviceChoice, Vec<Notice>), DeviceError> {
    let inherited = InheritedVariables::of(|name| node.variable(name));
    let mut assigner = Assigner { request, cli_flavor, node, inherited, notices: Vec::new() };
    assigner.refuse_two_bindings()?;
    let mut choice = assigner.assign().map_err(|error| hint::with_hint(error, request))?;
    if let Some(only) = request.only_worker {
        choice.workers = choice.workers.into_iter().skip(only.index()).take(1).collect();
    }
    assigner.bind_to_cores(&mut choice)?;
    choice.omp_threads = assigner.default_omp_threads(&choice.workers);
    Ok((choice, assigner.notices))
}

struct Assigner<'a> {
    request: &'a DeviceRequest,
    cli_flavor: CliFlavor,
    node: &'a NodeFacts<'a>,
    inherited: InheritedVariables,
    notices: Vec<Notice>,
}

impl Assigner<'_> {
    fn assign(&mut self) -> Result<DeviceChoice, DeviceError> {
        let has_sign = self.node.has_accelerator_sign;
        match self.request.probe_need(self.cli_flavor, has_sign) {
            ProbeNeed::None => self.without_probe(has_sign),
            ProbeNeed::OnlyCpus => {
                self.refuse_count_of_devices()?;
                self.on_cpus(DeviceChoice::cpus(self.unprobed_types()), None)
            }
            ProbeNeed::Optional => {
                let machine = self.discover();
                let choice = match self.find_problem(&machine, &[]) {
                    Some((_, error)) => Err(error),
                    None => self.choose(&machine),
                };
                match choice {
                    Ok(choice) => self.on_devices(&machine, choice),
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

    /// The types of the accelerators that workers on the CPUs must not see. Device nodes tell which there are, so that
    /// no driver needs to answer.
    fn unprobed_types(&self) -> Vec<DeviceType> {
        let has_node = |kind: &DeviceType| self.node.device_nodes.contains(kind);
        let others = [DeviceType::Rocm, DeviceType::Npu].into_iter().filter(has_node);
        let types = self.node.has_accelerator_sign.then_some(DeviceType::Cuda).into_iter();
        types.chain(others).collect()
    }

    fn with_probe(&mut self) -> Result<DeviceChoice, DeviceError> {
        let kinds = requested_kinds(self.request)?;
        let machine = self.discover();
        match self.find_problem(&machine, &kinds) {
            Some((_, error)) if self.depends_on_devices() => Err(error),
            Some((kind, error)) if self.node.device_nodes.contains(&kind) => Err(error),
            Some((_, error)) => {
                if !self.explains_cpus() {
                    let text = format!("{error}; no accelerator shows itself, so the CPUs are taken");
                    self.notices.push(Notice::Device { text });
                }
                let reason = format!("{error}; there is no device node");
                self.on_cpus(DeviceChoice::cpus(Vec::new()), Some(reason))
            }
            None => {
                let choice = self.choose(&machine)?;
                self.on_devices(&machine, choice)
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
        self.request.visibility.as_ref().map_or(by_torch, |visibility| visibility.value)
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

    fn on_devices(&mut self, machine: &Machine, choice: DeviceChoice) -> Result<DeviceChoice, DeviceError> {
        let workers = self.workers(&choice)?;
        if choice.kind == DeviceType::Cpu {
            if !choice.is_untouched {
                return self.on_cpus(choice, None);
            }
            let useless = hint::options_without_effect(self.request);
            self.notices.extend(useless.map(|text| Notice::Device { text }));
            let reason = self.reason_of_choice(machine, &choice.warnings);
            return self.on_cpus(choice, reason);
        }
        self.refuse_sharing(&choice, workers)?;
        let visibility = (!self.passes_variables(&choice)).then(|| self.requested_visibility());
        let mut choice = assign(choice, &self.inherited, workers.get(), visibility);
        // One worker that sees its one device needs no explanation.
        let is_surprising = choice.workers.len() > 1 || choice.devices.len() > 1;
        if let Some(reason) = choice.forced_own_reason.filter(|_| is_surprising) {
            let text = format!("each worker sees its own device alone, as LOCAL_RANK 0: {reason}");
            self.notices.push(Notice::Device { text });
        }
        self.pass_list_entries(&mut choice)?;
        self.bind_to_cpus(machine, &mut choice)?;
        self.add_findings(&choice);
        Ok(choice)
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
