//! The rows of the failure report on the device of the worker. Pure.

use rankrun_core::device::WorkerDevice;
use rankrun_core::device::reading::DeviceCounters;

/// `cuda:0, GPU 3 NVIDIA H100 (0000:1b:00.0), NUMA node 1`
pub(super) fn identity(device: &WorkerDevice) -> String {
    let mut text = device.to_string();
    if let Some(failure) = &device.identity {
        text.push_str(&format!(", {failure}"));
        if let Some(node) = failure.accelerator.numa_node {
            text.push_str(&format!(", NUMA node {node}"));
        }
    }
    text
}

/// `ECC uncorrected 0 → 2, 3 NVLink replay errors (serial 165, GPU-1)`; `None` if nothing has changed, or if the second
/// reading failed in a way that says nothing of the card.
pub(super) fn counters(counters: &DeviceCounters) -> Option<String> {
    if let Err(problem) = &counters.after {
        return problem.is_unkillable.then(|| format!("not read after the failure: {}", problem.why));
    }
    let changes = counters.changes();
    if changes.is_empty() {
        return None;
    }
    let serial =
        counters.before.serial.as_ref().map_or_else(String::new, |serial| format!("serial {serial}, "));
    Some(format!("{} ({serial}{})", changes.join(", "), counters.uuid))
}
