//! The result of device discovery. Plain data: the probes, which are child processes, write it as JSON, and the
//! launcher reads it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::DeviceType;

/// The devices of this node, as probed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// By type in the order of [`DeviceType::ALL`], then by index. No CPUs.
    pub accelerators: Vec<Accelerator>,
    /// The processors, where they were asked for.
    pub cpus: Option<CpuLayout>,
    /// Each pair of accelerators once, where they were asked for.
    pub links: Vec<DeviceLink>,
    /// Network cards, where links were asked for.
    pub nics: Vec<Nic>,
    /// Failed questions with their reasons; also each library that is not installed.
    pub troubles: Vec<ProbeProblem>,
    /// Sources that failed and that another one replaces: the launcher prints a warning and continues.
    #[serde(default)]
    pub made_good: Vec<ProbeProblem>,
}

/// One accelerator, or a part of one that programs see as a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accelerator {
    /// The vendor and runtime of the device.
    pub kind: DeviceType,
    /// Its number in the order of its vendor's own tool (`nvidia-smi`, the KFD nodes, PCI order, …), from 0 without
    /// gaps among the accelerators of one type, [`Part::MigInstance`] aside. For a MIG instance its number on its
    /// GPU.
    pub index: u32,
    /// The product name that its vendor reports.
    pub name: String,
    /// `GPU-…` or `MIG-…`; for AMD `GPU-` and 16 hex digits, where the card has a number.
    pub uuid: Option<String>,
    /// Where it is plugged in; that of the card for a part of one.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// The device's memory, where it is known.
    pub memory: Option<Memory>,
    /// Whether it is a whole card or a part of one.
    pub part: Part,
    /// Whether it is an integrated GPU, with hardly any memory of its own: there for the screen, and used for a job
    /// only when named explicitly.
    #[serde(default)]
    pub integrated: bool,
    /// Habana's module id: the fixed position on the board.
    pub module_id: Option<u32>,
    /// Whether the device answers its driver.
    pub condition: Condition,
    /// How it is, where that was asked for.
    pub state: Option<Box<DeviceState>>,
}

/// The share of a card that an entry of the list stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The device is a whole card.
    Whole,
    /// A card in MIG mode: programs see its instances, which are entries of their own behind it, and not the card.
    MigParent,
    /// The device is one MIG instance.
    MigInstance {
        /// The index of the instance's card.
        gpu: u32,
    },
    /// One tile of an Intel card, where each tile is a device.
    Tile {
        /// The card among Intel's, from 0.
        card: u32,
        /// The tile's number on its card.
        tile: u32,
    },
}

/// Memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The memory of the device, in bytes.
    pub total: u64,
    /// The memory that no process uses, in bytes, where that is known.
    pub free: Option<u64>,
}

/// Whether a device answers its driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The device answers its driver.
    Answers,
    /// The library or the kernel lists it, and it does not answer.
    Lost {
        /// The library's words, such as `GPU is lost`.
        why: String,
    },
}

/// How a device is at this moment; each fact only where the library gave it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceState {
    /// CUDA's compute capability, major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// The temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// The temperature in degrees Celsius at which it slows itself down.
    pub slowdown_temperature: Option<u32>,
    /// The power draw in milliwatts, now.
    pub power: Option<u64>,
    /// The limit in force, in milliwatts.
    pub power_limit: Option<u64>,
    /// The limit that it came with, in milliwatts.
    pub default_power_limit: Option<u64>,
    /// Clock of the multiprocessors now, in MHz.
    pub clock: Option<u32>,
    /// The highest that it can have, in MHz.
    pub max_clock: Option<u32>,
    /// Clock of the memory now, in MHz.
    pub memory_clock: Option<u32>,
    /// Per cent of the last moment in which it computed.
    pub utilisation: Option<u32>,
    /// Why it does not run at full speed.
    pub throttle: Vec<Throttle>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected_ecc: Option<u64>,
    /// Pages or rows of memory that are retired.
    pub retired: Option<u32>,
    /// Retired memory waits for a reset.
    pub retirement_pending: bool,
    /// The processes that use the device.
    pub processes: Vec<DeviceProcess>,
}

/// Why a device does not run at full speed (NVML's clocks event reasons).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// No process uses the device.
    Idle,
    /// The user fixed its application clocks.
    ApplicationClocks,
    /// The power limit in software (power cap).
    PowerCap,
    /// The hardware slows it down: heat, power brake, or a bad supply.
    HardwareSlowdown,
    /// It runs as slowly as the slowest of its sync group.
    SyncBoost,
    /// The driver slows it down since it is hot.
    SoftwareThermal,
    /// The hardware slows it down since it is hot.
    HardwareThermal,
    /// The external power brake of the board.
    PowerBrake,
    /// The clocks that the display needs.
    DisplayClocks,
}

/// A process that uses a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// Its pid, in the machine's own numbering.
    pub pid: u32,
    /// Its name, where `/proc` shows it.
    pub name: Option<String>,
    /// The user id of the process, where `/proc` shows it.
    pub uid: Option<u32>,
    /// The device memory of the process, in bytes.
    pub memory: Option<u64>,
}

/// Where a device is plugged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The PCI domain of the device.
    pub domain: u32,
    /// The bus number in the domain.
    pub bus: u8,
    /// The device number on the bus.
    pub device: u8,
    /// The function number of the device.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// The text is not a PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PCI address looks like `0000:1b:00.0`")]
pub struct PciAddressError;

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// `0000:1b:00.0`, NVML's `00000000:1B:00.0`, and without the domain.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = |text: &str, most: usize| match text.len() {
            0 => None,
            length if length > most || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) => None,
            _ => u32::from_str_radix(text, 16).ok(),
        };
        let byte = |text: &str| hex(text, 2).and_then(|number| u8::try_from(number).ok());
        let parse = || {
            let (address, function) = text.rsplit_once('.')?;
            let (rest, device) = address.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let device = byte(device).filter(|device| *device < 32)?;
            let function = byte(function).filter(|function| *function < 8)?;
            Some(Self { domain: hex(domain, 8)?, bus: byte(bus)?, device, function })
        };
        parse().ok_or(PciAddressError)
    }
}

impl Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How two accelerators are joined, by their positions in [`Machine::accelerators`]; `a` < `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLink {
    /// The position of one device of the pair.
    pub a: usize,
    /// The position of the other device of the pair.
    pub b: usize,
    /// The best link between the two devices.
    pub kind: LinkKind,
}

/// A way between two devices, best first, as `nvidia-smi topo -m` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// So many `NVLink`s, `NV#` in `nvidia-smi`.
    Nvlink(u32),
    /// AMD's own links between cards, `XGMI`.
    Xgmi,
    /// The path crosses at most one PCIe bridge.
    Pix,
    /// Several PCIe bridges, and no host bridge.
    Pxb,
    /// A PCIe host bridge: through the CPU.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// From one NUMA node to another.
    Sys,
}

/// A network card, by its interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// The name of its RDMA device (`mlx5_0`), or else of its interface.
    pub name: String,
    /// The PCI address of the card.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// The way to each accelerator, by position in [`Machine::accelerators`]; never `NVLink`.
    pub links: Vec<LinkKind>,
}

/// The CPUs of the machine, and how they share caches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuLayout {
    /// The NUMA nodes in ascending order.
    pub nodes: Vec<NumaNode>,
    /// Every CPU that is online, in ascending order.
    pub cpus: Vec<Cpu>,
}

/// A NUMA node and its CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// The number of the node in sysfs.
    pub id: u32,
    /// The node's CPUs in ascending order.
    pub cpus: Vec<u32>,
}

/// A logical CPU and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The number of the CPU in sysfs.
    pub id: u32,
    /// The number of its socket (`physical_package_id`).
    pub package: i32,
    /// The logical CPUs of its core, itself too, in ascending order.
    pub siblings: Vec<u32>,
    /// The logical CPUs that share its highest-level data or unified cache, itself too, in ascending order.
    pub cache: Vec<u32>,
}

/// A question that a probe could not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeProblem {
    /// The type of the devices that may be missing.
    pub kind: DeviceType,
    /// The source that was asked: `NVML`, `the CUDA driver`, `/sys/class/kfd`.
    pub source: String,
    /// The kind of the problem, with details.
    pub what: ProbeProblemKind,
}

impl fmt::Display for ProbeProblem {
    /// The source and its failure: `NVML did not answer within 30 seconds`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        match &self.what {
            ProbeProblemKind::Missing(why) => write!(f, "{source} is not there: {why}"),
            ProbeProblemKind::Failed(why) => write!(f, "{source} failed: {why}"),
            ProbeProblemKind::Hung(1) => write!(f, "{source} did not answer within 1 second"),
            ProbeProblemKind::Hung(seconds) => write!(f, "{source} did not answer within {seconds} seconds"),
            ProbeProblemKind::Crashed(how) => write!(f, "{source} crashed: {how}"),
        }
    }
}

/// The kind of failure of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeProblemKind {
    /// The library is not on this machine, which is not an error; the loader's words.
    Missing(String),
    /// The library is present and answers with an error.
    Failed(String),
    /// It did not answer within this number of seconds.
    Hung(u64),
    /// It took the probe down; how that ended.
    Crashed(String),
}

/// The CUDA driver's devices in its own order, or the reason why there is no answer, in words.
pub type CudaOrder = Result<Vec<CudaDevice>, String>;

/// A CUDA device in the driver's own order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// The UUID: `GPU-…` or `MIG-…`, as CUDA shows it.
    pub uuid: String,
    /// The PCI address of the device.
    pub pci: Option<PciAddress>,
    /// The product name of the device.
    pub name: String,
}
