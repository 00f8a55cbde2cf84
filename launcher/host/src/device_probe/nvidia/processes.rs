//! The processes on a card by NVML, with their users from `/proc` and their memory. `--devices idle` and `rankrun
//! devices` use them.

use std::fs::File;
use std::io::Read;

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use crate::device_probe::nvidia::identity::CardQuery;
use rankrun_core::device::DeviceProcess;

/// More processes than share a card; a higher count is not a valid answer.
const MOST_PROCESSES: u32 = 4096;

/// More bytes than `/proc/<pid>/status` has.
const MOST_STATUS: u64 = 16 * 1024;

/// The processes that compute or draw on it, each once.
pub(super) fn probe_processes(device: &Device<'_>, answers: &mut CardQuery) -> Vec<DeviceProcess> {
    let compute =
        list_limited(device.running_compute_processes_count(), || device.running_compute_processes());
    let graphics =
        list_limited(device.running_graphics_processes_count(), || device.running_graphics_processes());
    let both = [compute, graphics].into_iter().filter_map(|answer| answers.optional(answer)).flatten();
    let mut processes = deduplicate_by_pid(both.map(|process| (process.pid, memory(&process))));
    for process in &mut processes {
        (process.name, process.uid) = read_proc_status(process.pid);
    }
    processes
}

fn list_limited(
    count: Result<u32, NvmlError>,
    ask: impl FnOnce() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Vec<ProcessInfo>, NvmlError> {
    match count? {
        0 => Ok(Vec::new()),
        1..=MOST_PROCESSES => ask(),
        _ => Err(NvmlError::NoData),
    }
}

fn memory(process: &ProcessInfo) -> Option<u64> {
    match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    }
}

/// Each pid at its first place, with the memory that is known of it.
fn deduplicate_by_pid(processes: impl Iterator<Item = (u32, Option<u64>)>) -> Vec<DeviceProcess> {
    let mut once: Vec<DeviceProcess> = Vec::new();
    for (pid, memory) in processes {
        match once.iter_mut().find(|process| process.pid == pid) {
            Some(process) => process.memory = process.memory.max(memory),
            None => once.push(DeviceProcess { pid, name: None, uid: None, memory }),
        }
    }
    once
}

/// The command name and the user id of the process, where `/proc` shows them.
fn read_proc_status(pid: u32) -> (Option<String>, Option<u32>) {
    let mut bytes = Vec::new();
    let read = File::open(format!("/proc/{pid}/status"))
        .and_then(|file| file.take(MOST_STATUS).read_to_end(&mut bytes));
    if read.is_err() {
        return (None, None);
    }
    parse_proc_status(&String::from_utf8_lossy(&bytes))
}

/// `Name:` and the real one of `Uid:`.
fn parse_proc_status(status: &str) -> (Option<String>, Option<u32>) {
    let field = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let name = field("Name:").map(|name| name.chars().filter(|c| !c.is_control()).collect::<String>());
    let uid = field("Uid:").and_then(|ids| ids.split_whitespace().next()?.parse().ok());
    (name.filter(|name| !name.is_empty()), uid)
}

#[cfg(test)]
mod tests {
    use crate::device_probe::nvidia::processes::*;

    #[test]
    fn process_in_both_lists_is_listed_once() {
        let listed = [(7, None), (9, Some(5)), (7, Some(100)), (9, None)];
        let once = deduplicate_by_pid(listed.into_iter());
        let found: Vec<_> = once.iter().map(|process| (process.pid, process.memory)).collect();
        assert_eq!(found, [(7, Some(100)), (9, Some(5))]);
    }

    #[test]
    fn excessive_process_count_is_not_queried() {
        let never = || panic!("it must not be asked");
        assert!(list_limited(Ok(u32::MAX), never).is_err());
        assert_eq!(list_limited(Ok(0), never).unwrap(), []);
    }

    #[test]
    fn proc_status_gives_process_name_and_uid() {
        let text = "Name:\tpython3 \u{1b}[31m\nUmask:\t0022\nState:\tR\nUid:\t1000\t0\t0\t0\nGid:\t1\n";
        assert_eq!(parse_proc_status(text), (Some("python3 [31m".to_owned()), Some(1000)));
        assert_eq!(parse_proc_status("nonsense"), (None, None));
        assert_eq!(parse_proc_status("Name:\t\nUid:\t-1\n"), (None, None));
    }

    #[test]
    fn own_process_has_name_and_uid() {
        let (name, uid) = read_proc_status(std::process::id());
        assert!(name.is_some());
        assert!(uid.is_some());
        assert_eq!(read_proc_status(u32::MAX), (None, None));
    }
}
