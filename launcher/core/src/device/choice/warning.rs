//! Warnings of the device choice with their texts. The steps create them; the choice returns them beside the devices.

use std::ffi::OsString;
use std::fmt;

use crate::device::DeviceType;

/// A property of the choice that may surprise the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChoiceWarning {
    /// Entries of an inherited list that the vendor's rules drop.
    Dropped {
        /// The name of the inherited variable.
        variable: &'static str,
        /// The value of the inherited variable.
        value: OsString,
        /// The dropped entries, and the vendor's rule.
        because: String,
    },
    /// An inherited list with an order that the vendor does not honour.
    NoOrder {
        /// The name of the inherited variable.
        variable: &'static str,
        /// The value of the inherited variable.
        value: OsString,
        /// The vendor's rule for the order.
        because: &'static str,
    },
    /// The runtime counts the devices in an order of its own: the driver decides which device a worker gets.
    OrderUnknown {
        /// The device type that the warning is about.
        kind: DeviceType,
        /// The reason why the order is unknown.
        because: String,
    },
    /// A dead device is left out (`--exclude-unhealthy`).
    ExcludedDevice {
        /// The device, as [`label`](super::label) writes it.
        device: String,
        /// The finding of the health check.
        because: String,
    },
    /// A chosen device has less than half the memory of the largest of the chosen.
    SmallMemory {
        /// The device, as its label names it.
        device: String,
        /// Both memory sizes, in the words of [`small_memory_findings`](crate::device::health::small_memory_findings).
        because: String,
    },
    /// A card in MIG mode without instances, which nothing can run on.
    NoInstances {
        /// The device, as its label names it.
        device: String,
    },
    /// The vendor supports only certain groups of its devices together.
    Unsupported {
        /// The device type that the warning is about.
        kind: DeviceType,
        /// The vendor's rule for the order.
        because: &'static str,
    },
    /// Workers on CPUs that see accelerators all the same.
    StillVisible {
        /// The device type of the accelerators.
        kind: DeviceType,
        /// The reason why they cannot be hidden.
        because: &'static str,
    },
}

impl ChoiceWarning {
    /// Whether one of these is about the same inherited variable: several vendors read some.
    pub(super) fn is_among(&self, reported: &[Self]) -> bool {
        let variable = |warning: &Self| match warning {
            Self::Dropped { variable, .. } | Self::NoOrder { variable, .. } => Some(*variable),
            _ => None,
        };
        variable(self).is_some_and(|name| reported.iter().any(|other| variable(other) == Some(name)))
    }
}

impl fmt::Display for ChoiceWarning {
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
            Self::ExcludedDevice { device, because } => write!(f, "{device} is left out: {because}"),
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
