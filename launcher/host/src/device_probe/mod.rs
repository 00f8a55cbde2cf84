//! Asks the vendors' libraries and the kernel which accelerators there are.
//!
//! A probe is a child: this program itself, started with [`PROBE_ARGUMENT`], which looks, writes JSON on its standard
//! output and ends. So a library that hangs is killed at the deadline, one that crashes takes nothing with it, and the
//! launcher never has a driver in its own memory.

pub(crate) mod cuda_driver;
pub(crate) mod kernel;
pub mod merge;
pub(crate) mod nvidia;

use std::path::Path;

use rankrun_core::device::reading::{DeviceReading, ReadingTarget};
use rankrun_core::device::{CudaOrder, Machine, ProbeScope};

/// Stands first on the command line of a probe, glued to what it is asked. In no help: for the launcher itself alone.
pub const PROBE_ARGUMENT: &str = "--rankrun-probe=";

/// The question that one probe answers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// NVIDIA's cards through NVML, or through the CUDA driver where there is no NVML.
    Nvidia(ProbeScope),
    /// Everything that the kernel shows by itself: other vendors' cards, CPUs, network cards, PCI paths.
    Kernel(ProbeScope),
    /// The CUDA driver's order of its devices under `CUDA_DEVICE_ORDER=FASTEST_FIRST`.
    CudaOrder,
    /// The error counters of these devices.
    Readings(Vec<ReadingTarget>),
    /// The power draw of the devices with these UUIDs.
    Power(Vec<String>),
}

/// The answer of a probe, as JSON on its output.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Probe::Nvidia`] and [`Probe::Kernel`]: their part of the machine.
    Machine(Machine),
    /// To [`Probe::CudaOrder`]: the driver's devices, or its words.
    CudaOrder(CudaOrder),
    /// To [`Probe::Readings`]: one for each device in their order, or the library's words.
    Readings(Result<Vec<DeviceReading>, String>),
    /// To [`Probe::Power`]: milliwatts for each device in their order, or the library's words.
    Power(Result<Vec<Option<u32>>, String>),
}

/// Looks, in this process; called in the child alone.
#[must_use]
pub fn run_probe(probe: Probe) -> Answer {
    match probe {
        Probe::Nvidia(ask) => Answer::Machine(nvidia::probe_nvml(ask)),
        Probe::Kernel(ask) => Answer::Machine(kernel::probe_kernel(Path::new("/"), ask)),
        Probe::CudaOrder => Answer::CudaOrder(cuda_driver::cuda_devices_in_order()),
        Probe::Readings(targets) => Answer::Readings(nvidia::read_devices(&targets)),
        Probe::Power(uuids) => Answer::Power(nvidia::read_power(&uuids)),
    }
}
