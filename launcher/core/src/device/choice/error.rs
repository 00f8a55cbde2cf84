//! Errors of the device choice with their texts and hints. The steps of the choice create them; the command line and
//! the reassignment after a failure show them.

use std::ffi::OsString;

use crate::device::DeviceType;
use crate::device::order::{DeviceOrder, OrderError};

/// What to do about an order that the machine does not have.
pub const ORDER_HINT: &str = "`--device-order pci` or `as-listed` need nothing but the devices";

/// Reasons why no devices can be chosen. Present devices are listed one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// An index that is not there.
    #[error("no {kind} device has the index {index}{}{}", counted_within(*.within), listed(.available))]
    NoSuchIndex {
        /// The index in it that is not there.
        index: u32,
        /// The device type that the request is about.
        kind: DeviceType,
        /// The inherited variable within which it counts.
        within: Option<&'static str>,
        /// The devices that are present, one line each.
        available: Vec<String>,
    },
    /// A UUID, PCI address or MIG id that is not there.
    #[error("no {kind} device of this machine has the name `{entry}`{}", listed(.available))]
    NoSuchDevice {
        /// The entry as it was written.
        entry: String,
        /// The device type that the request is about.
        kind: DeviceType,
        /// The devices that are present, one line each.
        available: Vec<String>,
    },
    /// A device that an inherited variable hides.
    #[error("{device} is hidden by `{variable}={}`{}", .value.to_string_lossy(), listed(.available))]
    Hidden {
        /// The device that the entry names.
        device: String,
        /// The name of the inherited variable.
        variable: &'static str,
        /// The value of the inherited variable.
        value: OsString,
        /// The devices that are visible, one line each.
        available: Vec<String>,
    },
    /// The beginning of a UUID that fits several devices.
    #[error("`{entry}` fits {} devices{}", .fits.len(), listed(.fits))]
    Ambiguous {
        /// The entry as it was written.
        entry: String,
        /// Those that it fits, one line each.
        fits: Vec<String>,
    },
    /// A card in MIG mode, which programs do not see.
    #[error("{device} is in MIG mode, and its instances are the devices{}", listed(.instances))]
    InMigMode {
        /// The entry as it was written.
        entry: String,
        /// The card, as its label names it.
        device: String,
        /// The MIG instances of the card, one line each.
        instances: Vec<String>,
    },
    /// A device that is named twice.
    #[error("`{entry}` names {device} again")]
    Repeated {
        /// The entry that names it again.
        entry: String,
        /// The device, as its label names it.
        device: String,
    },
    /// An exclusion of a device that is not in the list.
    #[error("`{entry}` leaves out {device}, which the list before it does not have")]
    ExcludesNothing {
        /// The entry as it was written.
        entry: String,
        /// The device, as its label names it.
        device: String,
    },
    /// No device is left of the requested ones.
    #[error("no {kind} device is left{}", listed(.because))]
    NothingLeft {
        /// The device type that the request is about.
        kind: DeviceType,
        /// Why, one line for each device.
        because: Vec<String>,
    },
    /// The machine has no such devices.
    #[error("there is no {}{}", .kind.map_or_else(|| "accelerator".to_owned(), |kind| format!("{kind} device")), listed(.because))]
    NoDevices {
        /// The type that was asked for.
        kind: Option<DeviceType>,
        /// The probes' troubles, one line each.
        because: Vec<String>,
        /// The types of which there are devices.
        instead: Vec<DeviceType>,
    },
    /// An inherited variable hides all of them.
    #[error("`{variable}={}` hides every {kind} device", .value.to_string_lossy())]
    AllHidden {
        /// The device type that the request is about.
        kind: DeviceType,
        /// The name of the inherited variable.
        variable: &'static str,
        /// The value of the inherited variable.
        value: OsString,
    },
    /// Devices of several vendors, and no option or variable selects one of them.
    #[error("this machine has devices of several types{}", listed(.available))]
    SeveralTypes {
        /// The device types that are present.
        kinds: Vec<DeviceType>,
        /// How many there are of each, one line each.
        available: Vec<String>,
    },
    /// A list with devices of several vendors.
    #[error("`{first}` is a {first_kind} device and `{second}` a {second_kind} device")]
    MixedVendors {
        /// The first entry of the list.
        first: String,
        /// The device type of the first entry.
        first_kind: DeviceType,
        /// An entry with a device of another type.
        second: String,
        /// The device type of the second entry.
        second_kind: DeviceType,
    },
    /// CPUs are not chosen by `--devices`.
    #[error("accelerators cannot be chosen where the device type is `cpu`")]
    NotForCpus,
    /// A device that the health check found dead.
    #[error("{device} is unhealthy: {because}")]
    Unhealthy {
        /// The device, as its label names it.
        device: String,
        /// The finding of the health check.
        because: String,
    },
    /// Every device that was asked for is dead.
    #[error("every chosen device is unhealthy{}", listed(.because))]
    AllUnhealthy {
        /// Device and reason, one line each.
        because: Vec<String>,
    },
    /// The request depends on the runtime's own order of the devices, which is unknown here.
    #[error("the order in which the runtime counts {kind} devices is not known: {because}")]
    OrderUnknown {
        /// The device type that the request is about.
        kind: DeviceType,
        /// The reason why the order is unknown.
        because: String,
    },
    /// The vendor's variable has no name for a device.
    #[error("`{variable}` cannot name {device}: {because}")]
    Nameless {
        /// The device, as its label names it.
        device: String,
        /// The vendor's variable that would have to name it.
        variable: &'static str,
        /// The reason why it has no name there.
        because: &'static str,
    },
    /// A device that is lost, of which nothing is known that names it.
    #[error("`{variable}` cannot name {device}: it does not answer, and its UUID is not known")]
    Lost {
        /// The device, as its label names it.
        device: String,
        /// The vendor's variable that would have to name it.
        variable: &'static str,
        /// The index of the device for `--devices`.
        index: Option<u32>,
    },
    /// The devices cannot be put into the order that was asked for.
    #[error("the order `{}`: {error}", order.as_str())]
    Order {
        /// The order that was asked for.
        order: DeviceOrder,
        /// The reason why the machine has no such order.
        error: OrderError,
    },
}

impl ChoiceError {
    /// Whether the list of devices is at fault, so that the text needs the list in front.
    #[must_use]
    pub const fn is_about_list(&self) -> bool {
        matches!(
            self,
            Self::NoSuchIndex { .. }
                | Self::NoSuchDevice { .. }
                | Self::Hidden { .. }
                | Self::Ambiguous { .. }
                | Self::InMigMode { .. }
                | Self::Repeated { .. }
                | Self::ExcludesNothing { .. }
                | Self::NothingLeft { .. }
                | Self::MixedVendors { .. }
        )
    }

    /// Advice for the user, one line.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoSuchIndex { within: Some(variable), .. } => {
                format!("an index counts within `{variable}`; a UUID or PCI address names a device by itself")
            }
            Self::NoSuchDevice { entry, .. } if entry.contains(':') && !entry.contains('.') => {
                "`1:0` is the first MIG device of GPU 1; a range is written `0-3`".to_owned()
            }
            Self::NoSuchIndex { .. } | Self::NoSuchDevice { .. } => {
                "`rankrun devices` shows them all".to_owned()
            }
            Self::Hidden { variable, .. } | Self::AllHidden { variable, .. } => {
                format!("unset `{variable}`, or choose within it")
            }
            Self::Ambiguous { .. } => "write more of the UUID".to_owned(),
            Self::InMigMode { entry, instances, .. } => hint_for_mig(entry, instances.is_empty()),
            Self::Repeated { .. } => {
                "write each device once; `--oversubscribe` runs several workers on one device".to_owned()
            }
            Self::ExcludesNothing { .. } => {
                "exclusions come after what they are taken from; a list that begins with one begins with all"
                    .to_owned()
            }
            Self::NothingLeft { .. } => {
                "`rankrun devices` shows each device and its processes; `--devices none` runs on CPUs"
                    .to_owned()
            }
            Self::NoDevices { instead, .. } => hint_for_none(instead),
            Self::SeveralTypes { kinds, .. } => types(kinds),
            Self::MixedVendors { first_kind, .. } => {
                format!("choose one type, such as `--device-type {first_kind}`, and its devices alone")
            }
            Self::NotForCpus => "leave one of the two away".to_owned(),
            Self::Lost { index: Some(index), .. } => {
                format!(
                    "`--exclude-unhealthy` goes on without it, and so does `-{index}` at the end of `--devices`"
                )
            }
            Self::Unhealthy { .. } | Self::Lost { index: None, .. } => {
                "`--exclude-unhealthy` goes on without it".to_owned()
            }
            Self::AllUnhealthy { .. } => "`rankrun devices` shows their state".to_owned(),
            Self::OrderUnknown { kind: DeviceType::Cuda, .. } => {
                "set `CUDA_DEVICE_ORDER=PCI_BUS_ID`, or name the devices by UUID in `CUDA_VISIBLE_DEVICES`"
                    .to_owned()
            }
            Self::OrderUnknown { kind: DeviceType::Xpu, .. } => {
                "set `ZE_ENABLE_PCI_ID_DEVICE_ORDER=1`".to_owned()
            }
            Self::OrderUnknown { .. } | Self::Nameless { .. } => {
                "without `--devices` and `--device-order` the inherited variables pass as they are".to_owned()
            }
            Self::Order { .. } => ORDER_HINT.to_owned(),
        };
        Some(hint)
    }
}

fn hint_for_mig(entry: &str, has_no_instance: bool) -> String {
    if has_no_instance {
        "create instances with `nvidia-smi mig`, or choose another device".to_owned()
    } else if entry.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("name its instances, as in `--devices {entry}:0`")
    } else {
        "`1:0` is the first MIG device of GPU 1".to_owned()
    }
}

/// No device of the requested type is present; `instead` are the present types.
fn hint_for_none(instead: &[DeviceType]) -> String {
    if instead.is_empty() {
        return "`rankrun devices` shows what was looked for; `--device-type cpu` runs the workers on the CPUs"
            .to_owned();
    }
    format!("devices of another type are here: {}", type_options(instead))
}

fn types(kinds: &[DeviceType]) -> String {
    format!("say which with {}", type_options(kinds))
}

fn type_options(kinds: &[DeviceType]) -> String {
    let options: Vec<String> = kinds.iter().map(|kind| format!("`--device-type {kind}`")).collect();
    options.join(" or ")
}

fn counted_within(variable: Option<&str>) -> String {
    variable.map(|variable| format!(" within `{variable}`")).unwrap_or_default()
}

fn listed(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}
