//! `--device-order`: sorts the devices that `choice` has chosen. Facts such as free memory, links and the driver's order
//! come from the snapshot of the machine. It neither adds nor drops a device. Pure.

#[cfg(test)]
mod tests;
mod topology;

use std::str::FromStr;

use super::choice::label;
use super::visibility::AskCuda;
use super::{CudaDevice, DeviceType, Machine, Part};

/// In which order the chosen devices become ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOrder {
    /// Ascending by PCI address, as `nvidia-smi` lists.
    Pci,
    /// The CUDA driver's own answer under `CUDA_DEVICE_ORDER=FASTEST_FIRST`.
    Fastest,
    /// As `--devices` or the inherited variable lists them; the default.
    AsListed,
    /// The device with the most free memory first.
    FreeMemory,
    /// Neighbours in rank are neighbours on the fastest link.
    Topology,
}

impl DeviceOrder {
    /// All orders, in the order of the help.
    pub const ALL: [Self; 5] = [Self::Pci, Self::Fastest, Self::AsListed, Self::FreeMemory, Self::Topology];

    /// The word on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pci => "pci",
            Self::Fastest => "fastest",
            Self::AsListed => "as-listed",
            Self::FreeMemory => "free-memory",
            Self::Topology => "topology",
        }
    }
}

/// The word is not a device order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no device order has this name")]
pub struct UnknownOrder;

impl FromStr for DeviceOrder {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|order| order.as_str() == text).ok_or(UnknownOrder)
    }
}

/// Why devices cannot be put into an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Only the CUDA driver knows the fastest device, and it does not answer; its words or the loader's.
    #[error("the CUDA driver does not say which device is fastest: {0}")]
    NoDriver(String),
    /// The CUDA driver answers, and does not name one of the devices.
    #[error("the CUDA driver does not name {0}")]
    Unnamed(String),
    /// No other vendor's driver has such an order.
    #[error("only the CUDA driver says which device is fastest, and these are {0} devices")]
    NotCuda(DeviceType),
    /// The PCI addresses of the devices are unknown.
    #[error("the PCI addresses of the devices are not known")]
    NoAddresses,
    /// The free memory of the devices is unknown.
    #[error("the free memory of the devices is not known")]
    NoMemory,
    /// The links between the devices are unknown.
    #[error("the links between the devices are not known")]
    NoLinks,
}

/// Sorts devices, given by position in [`Machine::accelerators`] and in the order of the list. Equal ones keep the
/// order of the list, and one of unknown address or free memory comes last.
///
/// # Errors
/// The probes did not find the facts that the order depends on.
pub fn sort_devices(
    order: DeviceOrder,
    listed: &[usize],
    machine: &Machine,
    cuda_order: AskCuda<'_>,
) -> Result<Vec<usize>, OrderError> {
    let device = |at: usize| &machine.accelerators[at];
    let mut arranged = listed.to_vec();
    if listed.len() < 2 {
        return Ok(arranged);
    }
    match order {
        DeviceOrder::AsListed => {}
        DeviceOrder::Pci => {
            if listed.iter().all(|at| device(*at).pci.is_none()) {
                return Err(OrderError::NoAddresses);
            }
            arranged.sort_by_key(|at| (device(*at).pci.is_none(), device(*at).pci));
        }
        DeviceOrder::FreeMemory => {
            let free = |at: usize| device(at).memory.and_then(|memory| memory.free);
            if listed.iter().all(|at| free(*at).is_none()) {
                return Err(OrderError::NoMemory);
            }
            // An unknown one is less than any known one.
            arranged.sort_by_key(|at| std::cmp::Reverse(free(*at)));
        }
        DeviceOrder::Fastest => {
            if device(listed[0]).kind != DeviceType::Cuda {
                return Err(OrderError::NotCuda(device(listed[0]).kind));
            }
            let places = fastest_first(listed, machine, &cuda_order().map_err(OrderError::NoDriver)?)?;
            arranged.sort_by_key(|at| places.iter().position(|place| place == at));
        }
        DeviceOrder::Topology => {
            return topology::sort_by_topology(listed, machine).ok_or(OrderError::NoLinks);
        }
    }
    Ok(arranged)
}

/// The listed devices in the driver's order; one that it does not name has no place in it.
fn fastest_first(
    listed: &[usize],
    machine: &Machine,
    driver: &[CudaDevice],
) -> Result<Vec<usize>, OrderError> {
    let named = driver.iter().filter_map(|device| {
        let is = |at: &&usize| machine.accelerators[**at].uuid.as_ref() == Some(&device.uuid);
        let is_there = |at: &&usize| {
            let accelerator = &machine.accelerators[**at];
            accelerator.part == Part::Whole && device.pci.is_some() && accelerator.pci == device.pci
        };
        listed.iter().find(is).or_else(|| listed.iter().find(is_there)).copied()
    });
    let places: Vec<usize> = named.collect();
    match listed.iter().find(|at| !places.contains(at)) {
        Some(at) => Err(OrderError::Unnamed(label(&machine.accelerators[*at]))),
        None => Ok(places),
    }
}
