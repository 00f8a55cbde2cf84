//! The device options of a launch, each with its origin. Plain data: [`assign_devices`](crate::device_assignment)
//! reads it before the launch, and again after a device has died.

use std::time::Duration;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::setting::{Origin, Setting};
use super::{CliFlavor, Unhealthy};
use crate::device::affinity::NumaBinding;
use crate::device::cores::CoreSelection;
use crate::device::order::DeviceOrder;
use crate::device::selector::Selector;
use crate::device::{DeviceType, ProbeScope, SettingNames, Visibility};

/// `--probe-timeout` by default.
pub const DEFAULT_PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// The devices and the number of workers that the user asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// `--nproc-per-node`
    pub worker_count: WorkerCount,
    /// `--devices`: the list as it was written, and its meaning.
    pub devices: Option<Setting<(String, Selector)>>,
    /// `--device-type`
    pub device_type: Option<Setting<DeviceType>>,
    /// `--device-order`
    pub order: Option<Setting<DeviceOrder>>,
    /// `--device-visibility`
    pub visibility: Option<Setting<Visibility>>,
    /// `--numa-binding`
    pub binding: Option<Setting<NumaBinding>>,
    /// `--bind-cores`: the value as it was written, and its meaning.
    pub bind_cores: Option<Setting<(String, CoreSelection)>>,
    /// `--check-devices` and `--exclude-unhealthy`: the effect of a dead device; `None` without a check.
    pub check: Option<Setting<Unhealthy>>,
    /// `--oversubscribe`: several workers may share a device. The place that says so.
    pub oversubscribe: Option<Origin>,
    /// `--virtual-local-rank`: each worker sees one entry of the inherited list.
    pub virtual_local_rank: bool,
    /// `--quiet`: no line for each worker.
    pub quiet: bool,
    /// `--probe-timeout`: how long a driver's library may take.
    pub probe_timeout: Duration,
    /// The tasks of a scheduler on this node, where there are several.
    pub node_tasks: Option<NodeTasks>,
    /// Of the workers of this node, the only one that this launcher starts: a scheduler started a launcher for each.
    pub only_worker: Option<LocalRank>,
}

/// The number of workers that the user asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerCount {
    /// No option gives it.
    Default,
    /// A number.
    Number(LocalWorldSize),
    /// `cpu`: one for each permitted CPU.
    Cpus,
    /// `auto`: one for each device, or for each CPU where there is no device.
    Auto,
    /// One for each device of a type; `gpu` has two.
    Devices {
        /// The option or variable that asks for it.
        origin: Origin,
        /// The word as it was written.
        word: String,
        /// The device types that the word means.
        kinds: Vec<DeviceType>,
    },
}

/// Several tasks of a scheduler on this node: each starts a launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTasks {
    /// The variable that counts the tasks.
    pub variable: &'static str,
    /// The number of tasks on this node.
    pub count: u32,
    /// The command that starts one launcher on each node.
    pub fix: String,
}

/// Whether the devices are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeNeed {
    /// The launch does not depend on them.
    None,
    /// The job runs on the CPUs, also on a machine with accelerators.
    OnlyCpus,
    /// Each worker gets its device in its environment, if there is one. The launch does not depend on the answer.
    Optional,
    /// The launch depends on the answer.
    Required,
}

impl Default for DeviceRequest {
    fn default() -> Self {
        Self {
            worker_count: WorkerCount::Default,
            devices: None,
            device_type: None,
            order: None,
            visibility: None,
            binding: None,
            bind_cores: None,
            check: None,
            oversubscribe: None,
            virtual_local_rank: false,
            quiet: false,
            probe_timeout: DEFAULT_PROBE_TIMEOUT,
            node_tasks: None,
            only_worker: None,
        }
    }
}

impl DeviceRequest {
    /// The options that ask for devices, by the places that give them.
    pub(crate) fn origins_of_choice(&self) -> Vec<&Origin> {
        let Self { devices, device_type, order, binding, visibility, check, oversubscribe, .. } = self;
        [
            devices.as_ref().map(|devices| &devices.origin),
            device_type.as_ref().map(|kind| &kind.origin),
            order.as_ref().map(|order| &order.origin),
            binding.as_ref().map(|binding| &binding.origin),
            visibility.as_ref().map(|visibility| &visibility.origin),
            check.as_ref().map(|check| &check.origin),
            oversubscribe.as_ref(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// What gave the list and the order, where something did.
    #[must_use]
    pub fn setting_names(&self) -> SettingNames {
        let options = SettingNames::default();
        let devices = self.devices.as_ref().map(|devices| devices.origin.name());
        let order = self.order.as_ref().map(|order| order.origin.name());
        SettingNames { devices: devices.unwrap_or(options.devices), order: order.unwrap_or(options.order) }
    }

    /// Whether an option of our own asks for devices, so that the launcher chooses them.
    #[must_use]
    pub(crate) const fn chooses_devices(&self) -> bool {
        self.devices.is_some()
            || self.device_type.is_some()
            || self.order.is_some()
            || self.visibility.is_some()
            || self.check.is_some()
            || self.oversubscribe.is_some()
    }

    /// Whether the job runs on the CPUs, whatever devices there are.
    #[must_use]
    pub(crate) fn is_for_cpus(&self) -> bool {
        match (&self.devices, &self.device_type) {
            (Some(devices), _) => devices.value.1 == Selector::None,
            (None, Some(kind)) => kind.value == DeviceType::Cpu,
            (None, None) => false,
        }
    }

    /// Whether the devices are probed. `has_sign` says whether there is any sign of an accelerator.
    #[must_use]
    pub(crate) fn probe_need(&self, cli_flavor: CliFlavor, has_sign: bool) -> ProbeNeed {
        if self.is_for_cpus() {
            return ProbeNeed::OnlyCpus;
        }
        if self.chooses_devices() || self.binding.is_some() {
            return ProbeNeed::Required;
        }
        match (&self.worker_count, cli_flavor) {
            (WorkerCount::Auto | WorkerCount::Devices { .. }, _)
            | (WorkerCount::Default, CliFlavor::Rankrun) => ProbeNeed::Required,
            (WorkerCount::Number(_), CliFlavor::Rankrun) if has_sign => ProbeNeed::Optional,
            (WorkerCount::Number(_) | WorkerCount::Cpus | WorkerCount::Default, _) => ProbeNeed::None,
        }
    }

    /// The facts that the probes collect beyond the list of accelerators.
    #[must_use]
    pub(crate) fn probe_scope(&self) -> ProbeScope {
        let needs_idle = self.devices.as_ref().is_some_and(|devices| devices.value.1 == Selector::Idle);
        let needs_links = self.order.as_ref().is_some_and(|order| order.value == DeviceOrder::Topology);
        ProbeScope {
            state: self.check.is_some() || needs_idle,
            links: needs_links,
            cpus: self.binding.is_some(),
        }
    }
}
