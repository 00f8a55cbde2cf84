//! The devices of a model. Pure.

use rankrun_contract::device::Device;

use crate::diagnostic::{Details, Diagnostic};

/// Why a list of devices cannot hold replicas of one model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The list is empty.
    #[error("{}the device list of the model is empty", Details(self))]
    None,
    /// A device occurs twice.
    #[error("{}the device `{device}` is named twice", Details(self))]
    Repeated {
        /// The repeated device.
        device: Device,
    },
    /// The ordinal is not below the number of devices.
    #[error(
        "{}device `{device}` does not exist: this process sees {available} of kind `{}`",
        Details(self), device.kind()
    )]
    OutOfRange {
        /// The missing device.
        device: Device,
        /// Number of available devices of its kind.
        available: usize,
    },
    /// Devices of different kinds, such as CPU and CUDA.
    #[error("{}the devices are of different kinds: `{first}` and `{other}`", Details(self))]
    MixedKinds {
        /// The first device.
        first: Device,
        /// The first device of another kind.
        other: Device,
    },
}

impl DeviceError {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::None => "name at least one, such as `cpu:0`",
            Self::Repeated { .. } => "name each device once",
            Self::OutOfRange { .. } => {
                "devices are counted from 0 as this process sees them; check CUDA_VISIBLE_DEVICES"
            }
            Self::MixedKinds { .. } => "use devices of one kind",
        }
    }
}

impl Diagnostic for DeviceError {
    fn hint(&self) -> Option<&str> {
        Some(Self::hint(self))
    }
}

/// The devices of a model, in the order in which they get parts of a batch. The first one holds
/// the model's own parameters and gradients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceIds(Vec<Device>);

impl DeviceIds {
    /// A list of devices, of which `available` exist of the kind of the first one.
    ///
    /// # Errors
    /// The list is empty, repeats a device or mixes kinds, or a device does not exist.
    pub fn new(devices: Vec<Device>, available: usize) -> Result<Self, DeviceError> {
        let first = devices.first().ok_or(DeviceError::None)?;
        for (at, device) in devices.iter().enumerate() {
            let device = || device.clone();
            if device().kind() != first.kind() {
                return Err(DeviceError::MixedKinds { first: first.clone(), other: device() });
            }
            if devices[..at].contains(&device()) {
                return Err(DeviceError::Repeated { device: device() });
            }
            if device().index() >= available {
                return Err(DeviceError::OutOfRange { device: device(), available });
            }
        }
        Ok(Self(devices))
    }

    /// Several replicas on one device: for tests of splitting on a machine with one device.
    #[must_use]
    pub fn repeated(device: &Device, replicas: std::num::NonZero<usize>) -> Self {
        Self(vec![device.clone(); replicas.get()])
    }

    /// The devices, at least one.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(text: &str) -> Vec<Device> {
        text.split_whitespace().map(|device| device.parse().unwrap()).collect()
    }

    fn device_error_text(text: &str, available: usize) -> String {
        DeviceIds::new(devices(text), available).unwrap_err().to_string()
    }

    #[test]
    fn devices_keep_user_order() {
        let ids = DeviceIds::new(devices("cuda:3 cuda:0 2"), 4).unwrap();
        assert_eq!(ids.devices(), [Device::Cuda(3), Device::Cuda(0), Device::Cuda(2)]);
    }

    #[test]
    fn missing_duplicate_or_mixed_device_is_named() {
        assert_eq!(device_error_text("", 2), "the device list of the model is empty");
        assert_eq!(device_error_text("0 1 cuda:0", 2), "the device `cuda:0` is named twice");
        assert_eq!(
            device_error_text("0 2", 2),
            "device `cuda:2` does not exist: this process sees 2 of kind `cuda`"
        );
        assert_eq!(
            device_error_text("cuda:0 cpu:0", 2),
            "the devices are of different kinds: `cuda:0` and `cpu:0`"
        );
    }
}
