//! One visible device per worker: `--virtual-local-rank` (contract 1.12).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rankrun_contract::rank::LocalRank;

use crate::device::WorkerDevice;
use crate::device_assignment::{DeviceError, NodeFacts};

const HIP: &str = "HIP_VISIBLE_DEVICES";
const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// Adds the variables that show each worker one device: the entry of the inherited list in its place, or without a
/// list the device of its number.
///
/// # Errors
/// The list is too short.
pub(super) fn add_list_entries(
    node: &NodeFacts<'_>,
    worker_devices: &mut [WorkerDevice],
) -> Result<(), DeviceError> {
    let hip = node.variable(HIP).filter(|list| !list.is_empty());
    let (variable, list) = match hip {
        Some(list) => (HIP, Some(list)),
        None => (CUDA, node.variable(CUDA)),
    };
    let list: Option<Vec<OsString>> = list.map(|list| split_list(list).collect());
    for (rank, worker) in (0..).zip(worker_devices) {
        let device = match &list {
            None => OsString::from(rank.to_string()),
            Some(list) => match list.get(LocalRank(rank).index()) {
                Some(device) => device.clone(),
                None => {
                    let value = node.variable(variable).unwrap_or_default().to_string_lossy().into_owned();
                    return Err(DeviceError::TooFewDevices { variable, value, local_rank: LocalRank(rank) });
                }
            },
        };
        worker.variables.push((CUDA, Some(device.clone())));
        if hip.is_some() {
            worker.variables.push((HIP, Some(device)));
        }
    }
    Ok(())
}

fn split_list(list: &OsStr) -> impl Iterator<Item = OsString> {
    list.as_bytes().split(|byte| *byte == b',').map(|item| OsStr::from_bytes(item.trim_ascii()).to_owned())
}
