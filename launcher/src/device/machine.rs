//! What discovery found. Plain data: the probes, which are children, write it as JSON, and the launcher reads it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::DeviceType;

/// The devices of this node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// By type in the order of [`DeviceType::ALL`], then by index. No CPUs.
    pub accelerators: Vec<Accelerator>,
    /// The processors, where they were asked for.
    pub cpus: Option<CpuLayout>,
    /// Each pair of accelerators once, where they were asked for.
    pub links: Vec<Link>,
    /// Network cards, where links were asked for.
    pub nics: Vec<Nic>,
    /// What could not be found out, and why; also each library that is simply not there.
    pub troubles: Vec<Trouble>,
    /// Sources that failed and that another one stands in for: news to the user, and no reason to stop.
    #[serde(default)]
    pub made_good: Vec<Trouble>,
}

/// One accelerator, or a part of one that programs see as a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accelerator {
    /// What it is.
    pub kind: DeviceType,
    /// Its number in the order of its vendor's own tool (`nvidia-smi`, the KFD nodes, PCI order, …), from 0 without
    /// gaps among the accelerators of one type that are no [`Part::MigInstance`]. For a MIG instance its number on
    /// its GPU.
    pub index: u32,
    /// What its vendor calls it.
    pub name: String,
    /// `GPU-…` or `MIG-…`; for AMD `GPU-` and 16 hex digits, where the card has a number.
    pub uuid: Option<String>,
    /// Where it is plugged in; that of the card for a part of one.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// Its memory.
    pub memory: Option<Memory>,
    /// Whole or a part.
    pub part: Part,
    /// Whether it is the graphics of the processor, with no memory of its own to speak of: there for the screen, and
    /// taken for a job only where somebody names it.
    #[serde(default)]
    pub integrated: bool,
    /// Habana's module id: the fixed position on the board.
    pub module_id: Option<u32>,
    /// Whether it answers.
    pub condition: Condition,
    /// How it is, where that was asked for.
    pub state: Option<Box<State>>,
}

/// What an entry of the list is of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All of it.
    Whole,
    /// A card in MIG mode: programs see its instances, which are entries of their own behind it, and not the card.
    MigParent,
    /// One MIG device.
    MigInstance {
        /// The index of its card.
        gpu: u32,
    },
    /// One tile of an Intel card, where each tile is a device.
    Tile {
        /// The card among Intel's, from 0.
        card: u32,
        /// The tile on it.
        tile: u32,
    },
}

/// Memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What nobody uses, where that is known.
    pub free: Option<u64>,
}

/// Whether a device answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It does.
    Answers,
    /// The library or the kernel lists it, and it does not answer.
    Lost {
        /// The library's words, such as `GPU is lost`.
        why: String,
    },
}

/// How a device is at this moment; each fact only where the library gave it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct State {
    /// CUDA's compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// The temperature in degrees Celsius at which it slows itself down.
    pub slowdown_temperature: Option<u32>,
    /// Milliwatts.
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
    /// Who uses it.
    pub processes: Vec<DeviceProcess>,
}

/// Why a device does not run at full speed (NVML's clocks event reasons).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// Nobody uses it.
    Idle,
    /// The user fixed its clocks.
    ApplicationClocks,
    /// Its power limit.
    PowerCap,
    /// The hardware slows it down: heat, power brake, or a bad supply.
    HardwareSlowdown,
    /// It runs as slow as the others of its sync group.
    SyncBoost,
    /// The driver slows it down since it is hot.
    SoftwareThermal,
    /// The hardware slows it down since it is hot.
    HardwareThermal,
    /// The board's power brake.
    PowerBrake,
    /// The display.
    DisplayClocks,
}

/// A process on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// Its pid, in the machine's own numbering.
    pub pid: u32,
    /// Its name, where `/proc` shows it.
    pub name: Option<String>,
    /// Whose it is, where `/proc` shows it.
    pub uid: Option<u32>,
    /// Bytes of the device's memory.
    pub memory: Option<u64>,
}

/// Where a device is plugged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
    /// Function of the device.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    /// As in sysfs: `0000:1b:00.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// A text that is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PCI address looks like `0000:1b:00.0`")]
pub struct NoPciAddress;

impl FromStr for PciAddress {
    type Err = NoPciAddress;

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
        parse().ok_or(NoPciAddress)
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
pub struct Link {
    /// One of them.
    pub a: usize,
    /// The other.
    pub b: usize,
    /// The best way between them.
    pub kind: LinkKind,
}

/// A way between two devices, best first, as `nvidia-smi topo -m` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// So many `NVLink`s: `NV#`.
    Nvlink(u32),
    /// AMD's own links: `XGMI`.
    Xgmi,
    /// At most one PCIe bridge.
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

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// The name of its RDMA device (`mlx5_0`), or else of its interface.
    pub name: String,
    /// Where it is plugged in.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// The way to each accelerator, by position in [`Machine::accelerators`]; never `NVLink`.
    pub links: Vec<LinkKind>,
}

/// The processors.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuLayout {
    /// The NUMA nodes in ascending order.
    pub nodes: Vec<NumaNode>,
    /// Every CPU that is online, in ascending order.
    pub cpus: Vec<Cpu>,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its CPUs in ascending order.
    pub cpus: Vec<u32>,
}

/// A logical CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub id: u32,
    /// Its socket (`physical_package_id`).
    pub package: i32,
    /// The logical CPUs of its core, itself too, in ascending order.
    pub siblings: Vec<u32>,
    /// The logical CPUs that share its highest-level data or unified cache, itself too, in ascending order.
    pub cache: Vec<u32>,
}

/// What could not be found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The type of the devices that may be missing.
    pub kind: DeviceType,
    /// What was asked: `NVML`, `the CUDA driver`, `/sys/class/kfd`.
    pub source: String,
    /// What went wrong.
    pub what: TroubleKind,
}

impl fmt::Display for Trouble {
    /// The source and what is wrong with it: `NVML did not answer within 30 seconds`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        match &self.what {
            TroubleKind::Missing(why) => write!(f, "{source} is not there: {why}"),
            TroubleKind::Failed(why) => write!(f, "{source} failed: {why}"),
            TroubleKind::Hung(1) => write!(f, "{source} did not answer within 1 second"),
            TroubleKind::Hung(seconds) => write!(f, "{source} did not answer within {seconds} seconds"),
            TroubleKind::Crashed(how) => write!(f, "{source} crashed: {how}"),
        }
    }
}

/// What went wrong in a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// It is not on this machine, which is no error; the loader's words.
    Missing(String),
    /// It is there and answers with an error.
    Failed(String),
    /// It did not answer in so many seconds.
    Hung(u64),
    /// It took the probe down; how that ended.
    Crashed(String),
}

/// A CUDA device in the driver's own order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Where it is plugged in.
    pub pci: Option<PciAddress>,
    /// Its name.
    pub name: String,
}
