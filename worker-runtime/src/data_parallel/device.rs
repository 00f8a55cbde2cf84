//! Which devices a model is copied to. Pure.

use std::fmt;
use std::str::FromStr;

/// A device of this process, such as `cuda:1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What it is: `cpu`, `cuda` and so on.
    pub kind: String,
    /// Which one of them, as this process counts what it sees.
    pub index: usize,
}

impl Device {
    /// One of the CUDA devices that this process sees.
    #[must_use]
    pub fn cuda(index: usize) -> Self {
        Self { kind: "cuda".to_owned(), index }
    }

    /// The host. Its devices are threads: there are as many as one names.
    #[must_use]
    pub fn cpu(index: usize) -> Self {
        Self { kind: "cpu".to_owned(), index }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.index)
    }
}

/// `cuda:1`; a number alone is a CUDA device, as in torch's `device_ids`.
impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let (kind, index) = text.split_once(':').unwrap_or(("cuda", text));
        let is_name = kind.starts_with(|first: char| first.is_ascii_lowercase())
            && kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        // `parse` takes a sign, too.
        let is_number = index.bytes().all(|byte| byte.is_ascii_digit());
        match index.parse() {
            Ok(index) if is_name && is_number => Ok(Self { kind: kind.to_owned(), index }),
            _ => Err(DeviceError::Unreadable { text: text.to_owned() }),
        }
    }
}

/// Why devices cannot have replicas of one model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Not one.
    #[error("there is no device to put the model on")]
    None,
    /// Twice the same.
    #[error("the device `{device}` is named twice")]
    Repeated {
        /// It.
        device: Device,
    },
    /// More than there are.
    #[error("there is no device `{device}`: this process sees {available} of `{}`", device.kind)]
    OutOfRange {
        /// It.
        device: Device,
        /// How many there are of its kind.
        available: usize,
    },
    /// A model's replicas are of one kind.
    #[error("the devices are of different kinds: `{first}` and `{other}`")]
    MixedKinds {
        /// The first device.
        first: Device,
        /// The first of another kind.
        other: Device,
    },
    /// No device's name.
    #[error("`{text}` is no device")]
    Unreadable {
        /// What was read.
        text: String,
    },
}

impl DeviceError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::None => "name at least one, such as `cpu:0`",
            Self::Repeated { .. } => "name each device once: two replicas on one are no faster",
            Self::OutOfRange { .. } => {
                "devices are counted from 0 as this process sees them; look at CUDA_VISIBLE_DEVICES"
            }
            Self::MixedKinds { .. } => "use devices of one kind",
            Self::Unreadable { .. } => "write its kind and its index, such as `cuda:0`",
        }
    }
}

/// The devices of a model, in the order in which they get its parts of a batch. The first one has the model's own parameters and
/// gradients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceIds(Vec<Device>);

impl DeviceIds {
    /// These devices, in this order, of which `available` are there of the kind of the first one.
    ///
    /// # Errors
    /// There is none, one is named twice, they are of different kinds, or one is not there.
    pub fn new(devices: Vec<Device>, available: usize) -> Result<Self, DeviceError> {
        let first = devices.first().ok_or(DeviceError::None)?;
        for (at, device) in devices.iter().enumerate() {
            let device = || device.clone();
            if device().kind != first.kind {
                return Err(DeviceError::MixedKinds { first: first.clone(), other: device() });
            }
            if devices[..at].contains(&device()) {
                return Err(DeviceError::Repeated { device: device() });
            }
            if device().index >= available {
                return Err(DeviceError::OutOfRange { device: device(), available });
            }
        }
        Ok(Self(devices))
    }

    /// So many replicas on one device: for tests, in which a model is to be split on a machine that has one.
    #[must_use]
    pub fn shared(device: &Device, replicas: std::num::NonZero<usize>) -> Self {
        Self(vec![device.clone(); replicas.get()])
    }

    /// The devices, of which there is at least one.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(text: &str) -> Vec<Device> {
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn refused(text: &str, available: usize) -> String {
        DeviceIds::new(devices(text), available).unwrap_err().to_string()
    }

    #[test]
    fn the_order_is_that_of_the_user() {
        let ids = DeviceIds::new(devices("cuda:3 cuda:0 2"), 4).unwrap();
        assert_eq!(ids.devices(), [Device::cuda(3), Device::cuda(0), Device::cuda(2)]);
    }

    #[test]
    fn what_is_not_there_twice_or_of_another_kind_is_named() {
        assert_eq!(refused("", 2), "there is no device to put the model on");
        assert_eq!(refused("0 1 cuda:0", 2), "the device `cuda:0` is named twice");
        assert_eq!(refused("0 2", 2), "there is no device `cuda:2`: this process sees 2 of `cuda`");
        assert_eq!(refused("cuda:0 cpu:0", 2), "the devices are of different kinds: `cuda:0` and `cpu:0`");
    }

    #[test]
    fn a_name_is_a_kind_and_an_index() {
        for text in ["", "cuda", "cuda:", ":0", "cuda:-1", "+1", "cuda:1:2", "CUDA:0", "0x1", "1cuda:0"] {
            let error = text.parse::<Device>().unwrap_err();
            assert_eq!(error.to_string(), format!("`{text}` is no device"));
        }
        assert_eq!("cpu:7".parse(), Ok(Device::cpu(7)));
        assert_eq!(Device::cpu(7).to_string(), "cpu:7");
    }
}
