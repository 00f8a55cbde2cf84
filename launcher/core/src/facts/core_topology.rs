//! The kernel's files about CPUs: `/sys/devices/system/cpu/cpuN`.

use std::path::PathBuf;

use super::{Facts, FileKind};
use crate::device::cores::CoreTopology;
use crate::device::cpu_list::parse_cpu_list;

/// A list of the CPUs of one core is shorter.
const MAX_BYTES: u64 = 4096;

impl CoreTopology for Facts {
    /// A CPU whose core the kernel does not show is a core of its own.
    fn core_of(&self, cpu: u32) -> Option<u32> {
        let folder = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}"));
        if self.world.kind(&folder) == FileKind::Missing {
            return None;
        }
        let text = self.world.read_file(&folder.join("topology/thread_siblings_list"), MAX_BYTES).ok();
        let siblings = text.and_then(|text| parse_cpu_list(std::str::from_utf8(&text).ok()?).ok());
        Some(siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(cpu))
    }
}
