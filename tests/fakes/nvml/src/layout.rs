//! The library's structures, as far as the fake writes them (*NVML API Reference*, "Device Structs").

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong};

use fake_machine::Pci;

/// `nvmlPciInfo_t`
#[repr(C)]
pub(crate) struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    text: [c_char; 32],
}

impl PciInfo {
    pub(crate) fn of(pci: Pci) -> Self {
        let Pci { domain, bus, device, function } = pci;
        let text = format!("{domain:08X}:{bus:02X}:{device:02X}.{function}");
        let legacy = format!("{domain:04X}:{bus:02X}:{device:02X}.{function}");
        Self {
            legacy: chars(&legacy),
            domain,
            bus,
            device,
            device_id: 0,
            subsystem_id: 0,
            text: chars(&text),
        }
    }
}

fn chars<const ROOM: usize>(text: &str) -> [c_char; ROOM] {
    let mut chars = [0; ROOM];
    for (to, byte) in chars.iter_mut().zip(text.bytes()).take(ROOM - 1) {
        *to = c_char::from_ne_bytes([byte]);
    }
    chars
}

/// `nvmlMemory_t`
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

impl MemoryV2 {
    pub(crate) const VERSION: c_uint = size_of::<Self>() as c_uint | 2 << 24;
}

/// `nvmlUtilization_t`
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

/// `nvmlProcessInfo_t`
#[repr(C)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: c_uint,
    pub(crate) memory: c_ulonglong,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

/// `nvmlFieldValue_t`
#[repr(C)]
pub(crate) struct FieldValue {
    pub(crate) field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency: c_longlong,
    pub(crate) value_type: c_uint,
    pub(crate) answer: c_int,
    pub(crate) value: c_ulonglong,
}
