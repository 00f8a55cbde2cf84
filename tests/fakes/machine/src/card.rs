//! One card.

use std::fmt;
use std::str::FromStr;

/// The maker of a card, which decides the library that lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Vendor {
    /// NVIDIA.
    #[default]
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// Huawei.
    Ascend,
}

/// A card. Each field is a line of the file with the field's name and its value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Card {
    /// `vendor nvidia`
    pub vendor: Vendor,
    /// `name NVIDIA H100 80GB HBM3`
    pub name: String,
    /// `uuid GPU-00000000-1111-2222-3333-444444444444`; AMD: `GPU-` and 16 hex digits.
    pub uuid: String,
    /// `pci 0000:1b:00.0`
    pub pci: Pci,
    /// `numa 0`
    pub numa: Option<u32>,
    /// `cpus 0-3,8`: the CPUs near it, as a list.
    pub cpus: Option<String>,
    /// `memory 85899345920`: bytes.
    pub memory: u64,
    /// `used 1073741824`: bytes of it.
    pub used: u64,
    /// `capability 9.0`
    pub capability: Option<(u32, u32)>,
    /// `speed 90`: the CUDA driver's own judgement, the more the faster.
    pub speed: u32,
    /// `temperature 91`
    pub temperature: Option<u32>,
    /// `slowdown 90`: the temperature.
    pub slowdown: Option<u32>,
    /// `power 300000`: milliwatts.
    pub power: Option<u32>,
    /// `limit 500000`: milliwatts.
    pub limit: Option<u32>,
    /// `default-limit 700000`: milliwatts.
    pub default_limit: Option<u32>,
    /// `clock 1980`: MHz.
    pub clock: Option<u32>,
    /// `max-clock 1980`
    pub max_clock: Option<u32>,
    /// `memory-clock 2619`
    pub memory_clock: Option<u32>,
    /// `utilisation 97`: per cent.
    pub utilisation: Option<u32>,
    /// `throttle 0x20`: NVML's bits.
    pub throttle: Option<u64>,
    /// `ecc 0`: uncorrected errors.
    pub ecc: Option<u64>,
    /// `ecc-corrected 0`: corrected errors.
    pub ecc_corrected: Option<u64>,
    /// `serial 1650000000001`
    pub serial: Option<String>,
    /// `nvlink-errors 1 0 0 3 1`: of link 1, checksums in flow control and data, replays, recoveries; one line each.
    pub nvlink_errors: Vec<(u32, [u64; 4])>,
    /// `nvlink-down 1`: the number of a link; one line each.
    pub nvlinks_down: Vec<u32>,
    /// `retired 3`: pages.
    pub retired: Option<u32>,
    /// `retirement pending`
    pub retirement_pending: bool,
    /// `remapped 2`: rows.
    pub remapped: Option<u32>,
    /// `process 4711 1073741824`: pid and bytes, one line each.
    pub processes: Vec<(u32, u64)>,
    /// `mig MIG-… 10737418240`: UUID and bytes, one line each.
    pub mig: Vec<Mig>,
    /// `mig-mode on`: also a card without any instance.
    pub mig_mode: bool,
    /// `nvlink 1 4`: four links to the card at position 1; `nvlink switch 18`.
    pub nvlinks: Vec<NvLink>,
    /// `lost handle` or `lost calls`
    pub lost: Option<Lost>,
    /// `tiles 2`
    pub tiles: u32,
}

/// How a card is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It has no handle any more.
    Handle,
    /// It has a handle, and every question about it fails.
    Calls,
}

/// A MIG device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mig {
    /// `MIG-…`
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
}

/// `NVLink`s from a card to one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvLink {
    /// The position of the other card; `None` is a switch.
    pub to: Option<usize>,
    /// How many.
    pub count: u32,
}

/// A PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Pci {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device.
    pub device: u32,
    /// Function.
    pub function: u32,
}

impl fmt::Display for Pci {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for Pci {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u32>, _> =
            text.split([':', '.']).map(|part| u32::from_str_radix(part, 16)).collect();
        match numbers.as_deref() {
            Ok([domain, bus, device, function]) => {
                Ok(Self { domain: *domain, bus: *bus, device: *device, function: *function })
            }
            _ => Err(format!("no PCI address: `{text}`")),
        }
    }
}
