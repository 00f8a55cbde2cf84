//! The accelerators of this node: the choice among them, and the variables that give each worker its own. The room
//! `device_probe` of the host finds them.
//!
//! | file | what it does |
//! |---|---|
//! | `machine` | the result of discovery, as data that travels from the probes |
//! | [`visibility`] | the vendors' variables, read with each vendor's own rules (pure) |
//! | [`selector`] | the grammar of `--devices` (pure) |
//! | [`order`] | `--device-order` (pure) |
//! | `device_choice` | [`DeviceChoice`]: the devices of a launch, and the device of each worker |
//! | [`choice`] | machine, variables and request → the chosen devices, in order (pure) |
//! | `handover` | chosen devices → the device and variables of each worker (pure) |
//! | [`affinity`] | device → CPUs (`--numa-binding`, pure) |
//! | [`health`] | findings about the health of a device (pure) |
//! | [`reading`], [`xid`] | the error counters of a device at one moment, and their changes (pure) |
//! | `cpu_reason` | the reason why workers run on the CPUs (pure) |
//!
//! The identity of a device is its UUID or PCI address; an index is only one of its names. The launcher itself opens
//! no vendor's library: a library that hangs, crashes or lies does so in a child with a deadline.

pub mod affinity;
pub mod choice;
pub mod cores;
pub mod cpu_list;
pub(crate) mod cpu_reason;
mod device_choice;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
pub(crate) mod handover;
pub mod health;
mod machine;
pub mod order;
pub mod reading;
pub mod selector;
pub mod visibility;
pub mod xid;

pub use device_choice::{ChosenDevice, DeviceChoice, SelectionMethod, SettingNames, WorkerDevice};
pub use machine::{
    Accelerator, Condition, Cpu, CpuLayout, CudaDevice, CudaOrder, DeviceLink, DeviceProcess, DeviceState,
    LinkKind, Machine, Memory, Nic, NumaNode, Part, PciAddress, ProbeProblem, ProbeProblemKind, Throttle,
};

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The type of a device, in the words of `--device-type`. They are PyTorch's, except for `rocm`, which calls itself
/// `cuda` there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceType {
    /// NVIDIA GPUs, through the CUDA runtime.
    Cuda,
    /// AMD GPUs, through the ROCm runtime.
    Rocm,
    /// Intel GPUs, through the Level Zero runtime.
    Xpu,
    /// Habana Gaudi cards, through the SynapseAI runtime.
    Hpu,
    /// Huawei Ascend cards, through the CANN runtime.
    Npu,
    /// The GPU of Apple processors (Metal).
    Mps,
    /// The processors; workers have no device.
    Cpu,
}

impl DeviceType {
    /// All of them, accelerators first, in the order in which `auto` looks for them.
    pub const ALL: [Self; 7] =
        [Self::Cuda, Self::Rocm, Self::Xpu, Self::Hpu, Self::Npu, Self::Mps, Self::Cpu];

    /// The name of the type for `--device-type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Xpu => "xpu",
            Self::Hpu => "hpu",
            Self::Npu => "npu",
            Self::Mps => "mps",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The word is not a device type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no device type has this name")]
pub struct UnknownDeviceType;

impl FromStr for DeviceType {
    type Err = UnknownDeviceType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(UnknownDeviceType)
    }
}

/// The facts that discovery collects beyond the list of accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "three questions, each asked or not")]
pub struct ProbeScope {
    /// Whether to fill [`Accelerator::state`]: temperature, power, errors, processes.
    pub state: bool,
    /// Whether to fill [`Machine::links`] and [`Machine::nics`].
    pub links: bool,
    /// Whether to fill [`Machine::cpus`], the CPU layout.
    pub cpus: bool,
}

/// How much a worker sees of the chosen devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The whole list, in order; it takes the one that `LOCAL_RANK` names, as under torchrun.
    Whole,
    /// Its own device only; `LOCAL_RANK` is 0, as in torch's `--virtual-local-rank`.
    Own,
}
