//! What may surprise about a choice, in words.

use std::ffi::OsString;
use std::fmt;

use crate::device::DeviceType;

/// What may surprise about a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// Entries of an inherited list that the vendor's rules drop.
    Dropped {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: OsString,
        /// What is dropped, and the vendor's rule.
        because: String,
    },
    /// An inherited list whose order the vendor does not honour.
    NoOrder {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: OsString,
        /// The vendor's rule.
        because: &'static str,
    },
    /// The runtime counts the devices in an order of its own: the driver decides which device a worker gets.
    OrderUnknown {
        /// The type of the devices.
        kind: DeviceType,
        /// Why it is not known.
        because: String,
    },
    /// A dead device is left out (`--exclude-unhealthy`).
    LeftOut {
        /// Which, as [`label`](super::label) writes it.
        device: String,
        /// What is wrong with it.
        because: String,
    },
    /// A chosen device has less than half the memory of the largest of the chosen.
    SmallMemory {
        /// Which.
        device: String,
        /// Both sizes, as [`small_memory`](crate::device::health::small_memory) says it.
        because: String,
    },
    /// A card in MIG mode without instances, which nothing can run on.
    NoInstances {
        /// Which.
        device: String,
    },
    /// The vendor supports only certain groups of its devices together.
    Unsupported {
        /// The type of the devices.
        kind: DeviceType,
        /// The vendor's rule.
        because: &'static str,
    },
    /// Workers on CPUs that see accelerators all the same.
    StillVisible {
        /// The type of the accelerators.
        kind: DeviceType,
        /// Why they cannot be hidden.
        because: &'static str,
    },
}

impl Warning {
    /// Whether one of these is about the same inherited variable: several vendors read some.
    pub(super) fn is_told(&self, told: &[Self]) -> bool {
        let variable = |warning: &Self| match warning {
            Self::Dropped { variable, .. } | Self::NoOrder { variable, .. } => Some(*variable),
            _ => None,
        };
        variable(self).is_some_and(|name| told.iter().any(|other| variable(other) == Some(name)))
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped { variable, value, because } => {
                write!(f, "`{variable}={}`: {because}", value.to_string_lossy())
            }
            Self::NoOrder { variable, value, because } => {
                write!(f, "`{variable}={}`: {because}", value.to_string_lossy())
            }
            Self::OrderUnknown { kind, because } => write!(
                f,
                "the order in which the runtime counts {kind} devices is not known here: {because}; the driver decides \
                 which device a worker gets"
            ),
            Self::LeftOut { device, because } => write!(f, "{device} is left out: {because}"),
            Self::SmallMemory { device, because } => write!(f, "{device} has {because}"),
            Self::NoInstances { device } => {
                write!(f, "{device} is in MIG mode and has no instances: nothing can run on it")
            }
            Self::Unsupported { because, .. } => f.write_str(because),
            Self::StillVisible { kind, because } => {
                write!(f, "the {kind} devices stay visible to the workers: {because}")
            }
        }
    }
}
