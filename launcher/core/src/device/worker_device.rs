//! The device of one worker: what it is, and how the worker gets it. Pure.

use std::ffi::OsString;
use std::fmt;

use rankrun_contract::device as contract;
use rankrun_contract::rank::LocalRank;

use super::{DeviceType, PciAddress};

/// The device that a worker computes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The type of the device; without meaning if `is_known_to_runtime` is false.
    pub kind: DeviceType,
    /// The device's number among those that the worker sees. CPUs: tells replicas apart, binds nothing.
    pub ordinal: u32,
    /// Which of the node's devices it is, where that was found out.
    pub identity: Option<DeviceIdentity>,
    /// Whether devices were probed. Without a probe the worker may still use an accelerator, and no device is named.
    pub is_known_to_runtime: bool,
}

/// One of the node's devices, in words for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Its number as its vendor's tool counts; `1:0` for the first MIG device of GPU 1.
    pub index: String,
    /// The noun for its number: `GPU`, `MIG device`, `tile`, `HPU`, `NPU`.
    pub noun: &'static str,
    /// The product name of the device.
    pub name: String,
    /// The UUID of the device, if known.
    pub uuid: Option<String>,
    /// The PCI address of the device, if known.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// How it was chosen, such as `--devices 3` or `CUDA_VISIBLE_DEVICES entry 3`.
    pub chosen_by: String,
}

impl DeviceIdentity {
    /// The type and index: `GPU 3`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.noun, self.index)
    }
}

impl fmt::Display for DeviceIdentity {
    /// Writes the device as `GPU 3 NVIDIA H100 (0000:1b:00.0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title())?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        self.pci.map_or(Ok(()), |pci| write!(f, " ({pci})"))
    }
}

impl Device {
    /// One of several workers on the CPUs.
    #[must_use]
    pub const fn cpu(replica: u32) -> Self {
        Self { kind: DeviceType::Cpu, ordinal: replica, identity: None, is_known_to_runtime: true }
    }

    /// The value of `RANKRUN_DEVICE`; `None` if the launcher did not probe.
    #[must_use]
    pub fn contract_device(&self) -> Option<contract::Device> {
        let index = usize::try_from(self.ordinal).ok().filter(|_| self.is_known_to_runtime)?;
        contract::Device::new(self.kind.as_str(), index)
    }
}

impl fmt::Display for Device {
    /// Writes the device as workers see it: `cuda:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_known_to_runtime {
            return f.write_str("not looked at");
        }
        write!(f, "{}:{}", self.kind, self.ordinal)
    }
}

/// The device and the CPUs of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerDevice {
    /// The device that the worker computes on.
    pub device: Device,
    /// Variables that give it the device: to set, or with `None` to take away.
    pub variables: Vec<(&'static str, Option<OsString>)>,
    /// The CPUs that it is bound to (`--numa-binding`), in ascending order; by none it has the launcher's.
    pub cpus: Option<Vec<u32>>,
}

impl WorkerDevice {
    /// A worker on the CPUs; the number tells replicas apart, it binds nothing.
    #[must_use]
    pub const fn cpu(local_rank: LocalRank) -> Self {
        Self { device: Device::cpu(local_rank.0), variables: Vec::new(), cpus: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_type_is_known_to_worker_runtime() {
        for kind in DeviceType::ALL {
            let device = Device { kind, ordinal: 3, identity: None, is_known_to_runtime: true };
            let known = device.contract_device().unwrap();
            assert_eq!(known.to_string(), device.to_string());
            assert!(!matches!(known, contract::Device::Other { .. }), "{known}");
            assert_eq!(Device { is_known_to_runtime: false, ..device }.contract_device(), None);
        }
    }
}
