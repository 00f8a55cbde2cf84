//! The assignment of devices to workers.

mod error;

pub use error::DeviceError;
