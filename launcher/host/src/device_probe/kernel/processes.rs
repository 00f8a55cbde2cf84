//! Processes on AMD's cards, as KFD lists them (Linux `kfd_process.c`).

use std::fs;
use std::os::unix::fs::MetadataExt;

use rankrun_core::device::DeviceProcess;

use crate::device_probe::kernel::tree::Tree;

const PROCESSES: &str = "/sys/class/kfd/kfd/proc";
/// The number of the machine's own pid namespace (Linux `PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";
/// The most processes that are reported.
const MOST_PROCESSES: usize = 256;

/// The processes that have memory of the card with this `gpu_id`.
pub(super) fn processes_on_gpu(tree: &Tree<'_>, gpu: u32) -> Vec<DeviceProcess> {
    // KFD uses the machine's pids: in a container the same number is another process.
    let same_numbers =
        tree.link_target("/proc/self/ns/pid").is_some_and(|namespace| namespace == INITIAL_PID_NAMESPACE);
    let process = |pid: u32| {
        let bytes = |file: &str| tree.number::<u64>(&format!("{PROCESSES}/{pid}/{file}_{gpu}"));
        let memory = bytes("vram").filter(|bytes| *bytes > 0)?;
        let own = format!("/proc/{pid}");
        let name = if same_numbers { tree.name(&format!("{own}/comm")) } else { None };
        let uid =
            if same_numbers { fs::metadata(tree.resolve(&own)).ok().map(|found| found.uid()) } else { None };
        Some(DeviceProcess { pid, name, uid, memory: Some(memory) })
    };
    let pids = tree.numbered(PROCESSES, "").unwrap_or_default();
    pids.into_iter().filter_map(process).take(MOST_PROCESSES).collect()
}
