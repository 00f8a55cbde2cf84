//! Which devices, in which order. Pure: machine, inherited variables and request → [`Choice`].
//!
//! The steps, each in its file: the type of the devices (`kind`), what the inherited variables leave of them
//! ([`visibility`](super::visibility)), what `--devices` takes of that (`typed`), the dead ones out, the order
//! ([`order`](super::order)), and how the vendor's variables name what is chosen (`names`).

mod error;
mod label;
mod warning;

use std::ffi::OsString;
use std::fmt;

pub use error::ChoiceError;
pub use label::{label, line};
pub use warning::Warning;

use super::order::DeviceOrder;
use super::selector::Selector;
use super::visibility::Inherited;
use super::{Accelerator, CudaDevice, DeviceType, Machine};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// `--devices`
    pub devices: Option<Selector>,
    /// `--device-type`, or the type that `--nproc-per-node gpu` and its like name.
    pub kind: Option<DeviceType>,
    /// `--device-order`
    pub order: Option<DeviceOrder>,
    /// `--exclude-unhealthy`: a dead device is left out instead of refused.
    pub exclude_unhealthy: bool,
}

/// Everything that the choice depends on.
pub struct Question<'a> {
    /// What is there.
    pub machine: &'a Machine,
    /// What the launcher inherited.
    pub inherited: &'a Inherited,
    /// What was asked for.
    pub request: &'a Request,
    /// Devices that are dead, by position in [`Machine::accelerators`], with the reason; only where somebody looked.
    pub unhealthy: &'a [(usize, String)],
    /// The driver's `FASTEST_FIRST`, asked only where the answer depends on it, and at most once: a child is started
    /// for it.
    pub cuda_order: &'a dyn Fn() -> Result<Vec<CudaDevice>, String>,
}

/// The chosen devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Their type; [`DeviceType::Cpu`] where there is no accelerator or none was wanted.
    pub kind: DeviceType,
    /// In the order of the ranks; empty for CPUs and MPS-less machines.
    pub devices: Vec<Chosen>,
    /// Whether the inherited variables already say exactly this, so that they pass untouched.
    pub untouched: bool,
    /// Variables that say how the names of the devices are to be read (`CUDA_DEVICE_ORDER=PCI_BUS_ID`); written
    /// wherever the names are.
    pub pinned: Vec<(&'static str, OsString)>,
    /// The types of the accelerators that are there and that the user does not want the workers to see
    /// (`--devices none`, `--device-type cpu`).
    pub hidden: Vec<DeviceType>,
    /// What to say once.
    pub warnings: Vec<Warning>,
}

/// One chosen device.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// Which one.
    pub accelerator: Accelerator,
    /// Why it is there.
    pub how: How,
    /// How its vendor's variable names it beside [`Choice::pinned`]; empty where the vendor has no variable.
    pub name: String,
}

/// How a device was chosen, for the line that tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// Nothing was said: all there are.
    Default,
    /// By an inherited variable, with the entry that named it where there is one.
    Inherited {
        /// Its name.
        variable: &'static str,
        /// The entry.
        entry: Option<String>,
    },
    /// By `--devices`; the entry as it was written.
    Typed {
        /// The entry.
        entry: String,
        /// The inherited variable within which it counts.
        within: Option<&'static str>,
    },
    /// One of the above, and then put in its place by `--device-order`.
    Ordered {
        /// What chose it.
        how: Box<Self>,
        /// What put it there.
        order: DeviceOrder,
    },
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("all devices"),
            Self::Inherited { variable, entry: None } => f.write_str(variable),
            Self::Inherited { variable, entry: Some(entry) } => write!(f, "{variable} entry {entry}"),
            Self::Typed { entry, within: None } => write!(f, "--devices {entry}"),
            Self::Typed { entry, within: Some(variable) } => write!(f, "--devices {entry} within {variable}"),
            Self::Ordered { how, order } => write!(f, "{how}, --device-order {}", order.word()),
        }
    }
}

/// Chooses.
///
/// # Errors
/// What was typed does not fit this machine.
pub fn choose(question: &Question<'_>) -> Result<Choice, ChoiceError> {
    let _ = question;
    Ok(Choice {
        kind: DeviceType::Cpu,
        devices: Vec::new(),
        untouched: true,
        pinned: Vec::new(),
        hidden: Vec::new(),
        warnings: Vec::new(),
    })
}
