//! The questions of `rankrun devices` and `rankrun topo`.

use std::time::Duration;

use crate::device::DeviceType;

/// A question about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspect {
    /// What is asked.
    pub subject: Subject,
    /// How the answer is given; [`Manner::Watch`] only of devices.
    pub manner: Manner,
    /// `--probe-timeout`: how long a driver's library may take.
    pub limit: Duration,
}

/// What is asked about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// `devices`
    Devices {
        /// `--device-type`: only these.
        kind: Option<DeviceType>,
        /// `-i`: only these, by index, UUID or PCI address; empty for all.
        ids: Vec<String>,
    },
    /// `topo`
    Topo,
}

impl Subject {
    /// The word that asks it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Devices { .. } => "devices",
            Self::Topo => "topo",
        }
    }
}

/// How an answer about the machine is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// For people.
    Text,
    /// `--json`
    Json,
    /// `--watch`: again and again, so long after the last time.
    Watch(Duration),
}
