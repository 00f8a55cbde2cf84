//! The devices of a launch and of its workers: one [`DeviceChoice`], from the variables to the placement. Plain data.

use std::ffi::OsString;
use std::fmt;

use rankrun_contract::device as contract;
use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::choice::{ChoiceWarning, label, noun, number};
use super::order::DeviceOrder;
use super::{Accelerator, DeviceType, Visibility};
use crate::plain::plain;

/// The devices of a launch: [`visible`](super::choice::visible) makes it, [`select`](super::choice::select) narrows it
/// to the chosen devices, and `assign` gives each worker its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The type of the devices; [`DeviceType::Cpu`] if there is no accelerator or none was wanted.
    pub kind: DeviceType,
    /// In the order of the ranks; empty for CPUs and MPS-less machines.
    pub devices: Vec<ChosenDevice>,
    /// The inherited variable that narrows or orders the visible devices, with its value.
    pub variable: Option<(&'static str, OsString)>,
    /// Why the runtime counts in an order that is not known here, so that an index may mean another device.
    pub order_unknown: Option<String>,
    /// Whether the inherited variables already name exactly these devices, so that they pass unchanged.
    pub is_untouched: bool,
    /// Variables that define the meaning of the device names (`CUDA_DEVICE_ORDER=PCI_BUS_ID`); set together with the
    /// names.
    pub pinned: Vec<(&'static str, OsString)>,
    /// The types of the accelerators that are there and that the user does not want the workers to see
    /// (`--devices none`, `--device-type cpu`).
    pub hidden: Vec<DeviceType>,
    /// Warnings for the user, each printed once.
    pub warnings: Vec<ChoiceWarning>,
    /// How much each worker sees of the devices: as requested, or [`Visibility::Own`] if one list cannot express them.
    pub visibility: Visibility,
    /// The reason why the visibility differs from the requested one.
    pub forced_own_reason: Option<&'static str>,
    /// The device of each worker, by local rank.
    pub workers: Vec<WorkerDevice>,
    /// The reason why the workers run on the CPUs, if the launcher prints it.
    pub cpu_reason: Option<String>,
    /// `OMP_NUM_THREADS`, unless the user set it: fewer workers have more CPUs each.
    pub omp_threads: Option<u32>,
}

/// One device of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenDevice {
    /// Its position in [`super::Machine::accelerators`]; of its first tile for an Intel card that is seen as one
    /// device.
    pub position: usize,
    /// The device, as a process sees it.
    pub accelerator: Accelerator,
    /// The index that `--devices` names it by; a MIG device that no list names has none.
    pub index: Option<u32>,
    /// The entry of the inherited list that names it.
    pub entry: Option<String>,
    /// Whether the user wrote a UUID for it, typed or in the inherited list.
    pub by_uuid: bool,
    /// The option or variable that chose it.
    pub how: SelectionMethod,
    /// How its vendor's variable names it beside [`DeviceChoice::pinned`]; empty where the vendor has no variable.
    pub name: String,
}

impl DeviceChoice {
    /// These devices of one type, which no variable narrows.
    pub(super) const fn of(kind: DeviceType, devices: Vec<ChosenDevice>) -> Self {
        Self {
            kind,
            devices,
            variable: None,
            order_unknown: None,
            is_untouched: true,
            pinned: Vec::new(),
            hidden: Vec::new(),
            warnings: Vec::new(),
            visibility: Visibility::Whole,
            forced_own_reason: None,
            workers: Vec::new(),
            cpu_reason: None,
            omp_threads: None,
        }
    }

    /// The CPUs, with the types of the accelerators that the workers must not see.
    #[must_use]
    pub fn cpus(hidden: Vec<DeviceType>) -> Self {
        Self { is_untouched: hidden.is_empty(), hidden, ..Self::of(DeviceType::Cpu, Vec::new()) }
    }

    /// The number of workers.
    #[must_use]
    pub fn worker_count(&self) -> LocalWorldSize {
        let count = u32::try_from(self.workers.len()).ok().and_then(LocalWorldSize::new);
        count.unwrap_or(LocalWorldSize::ONE)
    }

    /// The inherited list, if there is one; a variable that only orders the devices is none.
    #[must_use]
    pub fn list(&self) -> Option<&(&'static str, OsString)> {
        self.variable.as_ref().filter(|(variable, _)| *variable != "CUDA_DEVICE_ORDER")
    }
}

impl ChosenDevice {
    /// A device that no option and no variable names.
    #[must_use]
    pub const fn new(position: usize, accelerator: Accelerator) -> Self {
        Self {
            position,
            index: Some(accelerator.index),
            accelerator,
            entry: None,
            by_uuid: false,
            how: SelectionMethod::Default,
            name: String::new(),
        }
    }

    /// The type and index: `GPU 3`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", noun(&self.accelerator), number(&self.accelerator))
    }

    /// How it was chosen, such as `--devices 3` or `CUDA_VISIBLE_DEVICES entry 3`.
    #[must_use]
    pub fn chosen_by(&self, names: &SettingNames) -> String {
        match &self.how {
            SelectionMethod::Default => "default".to_owned(),
            SelectionMethod::Ordered { how, order } if **how == SelectionMethod::Default => {
                format!("{} {}", names.order, order.as_str())
            }
            how => plain(&how.describe(names)),
        }
    }
}

impl fmt::Display for ChosenDevice {
    /// Writes the device as `GPU 3 NVIDIA H100 (0000:1b:00.0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&label(&self.accelerator)))
    }
}

/// How a device was chosen, for the line that tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectionMethod {
    /// Nothing was said: all there are.
    Default,
    /// By an inherited variable, with the entry that named it where there is one.
    Inherited {
        /// The name of the inherited variable.
        variable: &'static str,
        /// The entry of its list, if there is one.
        entry: Option<String>,
    },
    /// By `--devices`; the entry as it was written.
    Typed {
        /// The entry as it was written.
        entry: String,
        /// The inherited variable within which it counts.
        within: Option<&'static str>,
    },
    /// One of the above, moved to its place by `--device-order`.
    Ordered {
        /// The option or variable that chose it.
        how: Box<Self>,
        /// The order that gave it its place.
        order: DeviceOrder,
    },
}

/// What gave the list and the order of the devices: an option, a variable, or a key of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingNames {
    /// The name of the list.
    pub devices: String,
    /// The name of the order.
    pub order: String,
}

impl Default for SettingNames {
    fn default() -> Self {
        Self { devices: "--devices".to_owned(), order: "--device-order".to_owned() }
    }
}

impl SelectionMethod {
    pub(crate) fn describe(&self, names: &SettingNames) -> String {
        let devices = &names.devices;
        match self {
            Self::Default => "all devices".to_owned(),
            Self::Inherited { variable, entry: None } => (*variable).to_owned(),
            Self::Inherited { variable, entry: Some(entry) } => format!("{variable} entry {entry}"),
            Self::Typed { entry, within: None } => format!("{devices} {entry}"),
            Self::Typed { entry, within: Some(variable) } => format!("{devices} {entry} within {variable}"),
            Self::Ordered { how, order } => {
                format!("{}, {} {}", how.describe(names), names.order, order.as_str())
            }
        }
    }
}

/// The device that a worker computes on, and how it gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerDevice {
    /// The type of the device; without meaning if `is_known_to_runtime` is false.
    pub kind: DeviceType,
    /// The device's number among those that the worker sees. CPUs: tells replicas apart, binds nothing.
    pub ordinal: u32,
    /// Which of the node's devices it is, where that was found out.
    pub identity: Option<ChosenDevice>,
    /// Whether devices were probed. Without a probe the worker may still use an accelerator, and no device is named.
    pub is_known_to_runtime: bool,
    /// Variables that give it the device: to set, or with `None` to take away.
    pub variables: Vec<(&'static str, Option<OsString>)>,
    /// The CPUs that it is bound to (`--numa-binding`), in ascending order; by none it has the launcher's.
    pub cpus: Option<Vec<u32>>,
}

impl WorkerDevice {
    /// A worker on the CPUs; the number tells replicas apart, it binds nothing.
    #[must_use]
    pub const fn cpu(local_rank: LocalRank) -> Self {
        Self {
            kind: DeviceType::Cpu,
            ordinal: local_rank.0,
            identity: None,
            is_known_to_runtime: true,
            variables: Vec::new(),
            cpus: None,
        }
    }

    /// The value of `RANKRUN_DEVICE`; `None` if the launcher did not probe.
    #[must_use]
    pub(crate) fn contract_device(&self) -> Option<contract::Device> {
        let index = usize::try_from(self.ordinal).ok().filter(|_| self.is_known_to_runtime)?;
        contract::Device::new(self.kind.as_str(), index)
    }
}

impl fmt::Display for WorkerDevice {
    /// Writes the device as workers see it: `cuda:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_known_to_runtime {
            return f.write_str("not looked at");
        }
        write!(f, "{}:{}", self.kind, self.ordinal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Part, fake};

    /// The line of a worker has its parts in columns.
    #[test]
    fn device_title_begins_its_name_in_messages() {
        let parts = [
            (DeviceType::Cuda, Part::Whole, "GPU 1"),
            (DeviceType::Cuda, Part::MigInstance { gpu: 2 }, "MIG device 2:1"),
            (DeviceType::Xpu, Part::Tile { card: 0, tile: 1 }, "tile 1"),
            (DeviceType::Hpu, Part::Whole, "HPU 1"),
            (DeviceType::Npu, Part::Whole, "NPU 1"),
        ];
        for (kind, part, title) in parts {
            let accelerator = Accelerator { part, ..fake::card(kind, 1, "H100\u{1b}[31m", 0x1b) };
            let device = ChosenDevice::new(0, accelerator);
            assert_eq!(device.title(), title);
            assert_eq!(device.to_string(), format!("{title} H100 (0000:1b:00.0)"));
        }
    }

    #[test]
    fn each_device_type_is_known_to_worker_runtime() {
        for kind in DeviceType::ALL {
            let device = WorkerDevice { kind, ordinal: 3, ..WorkerDevice::cpu(LocalRank(3)) };
            let known = device.contract_device().unwrap();
            assert_eq!(known.to_string(), device.to_string());
            assert!(!matches!(known, contract::Device::Other { .. }), "{known}");
            assert_eq!(WorkerDevice { is_known_to_runtime: false, ..device }.contract_device(), None);
        }
    }
}
