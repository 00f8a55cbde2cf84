//! The device of a failed worker as data, with its error counters.

use serde::Serialize;

use rankrun_core::device::WorkerDevice;
use rankrun_core::device::reading::{DeviceCounters, DeviceReading, NvlinkErrors};
use rankrun_core::device::xid::Xid;

use super::some;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct DeviceRecord {
    kind: &'static str,
    index: u32,
    name: Option<String>,
    uuid: Option<String>,
    serial: Option<String>,
    pci: Option<String>,
    numa_node: Option<u32>,
    counters: Option<CountersRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct CountersRecord {
    before: ReadingRecord,
    after: Option<ReadingRecord>,
    /// Why there is no reading after the failure.
    problem: Option<String>,
    /// The links that were up before and are down after.
    nvlinks_down: Option<Vec<u32>>,
    xids: Option<Vec<XidRecord>>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ReadingRecord {
    ecc_uncorrected: Option<u64>,
    ecc_corrected: Option<u64>,
    remapped_rows: Option<u32>,
    remap_pending: Option<bool>,
    remap_failed: Option<bool>,
    /// The links that are up.
    nvlinks: Option<Vec<LinkRecord>>,
    nvlink_total: Option<NvlinkRecord>,
    power_watts: Option<f64>,
    lost: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct LinkRecord {
    link: u32,
    errors: Option<NvlinkRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct NvlinkRecord {
    crc_flit: u64,
    crc_data: u64,
    replay: u64,
    recovery: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct XidRecord {
    code: u32,
    text: String,
}

/// `None` where the launcher did not look for devices.
pub(super) fn device_record(
    device: &WorkerDevice,
    counters: Option<&DeviceCounters>,
) -> Option<DeviceRecord> {
    let accelerator = device.identity.as_ref().map(|identity| &identity.accelerator);
    device.is_known_to_runtime.then(|| DeviceRecord {
        kind: device.kind.as_str(),
        index: device.ordinal,
        name: accelerator.map(|it| it.name.clone()).filter(|name| !name.is_empty()),
        uuid: accelerator.and_then(|it| it.uuid.clone()),
        serial: counters.and_then(|counters| counters.before.serial.clone()),
        pci: accelerator.and_then(|it| it.pci).map(|pci| pci.to_string()),
        numa_node: accelerator.and_then(|it| it.numa_node),
        counters: counters.map(counters_record),
    })
}

fn counters_record(counters: &DeviceCounters) -> CountersRecord {
    let xid = |xid: &Xid| XidRecord { code: xid.code, text: xid.text.clone() };
    CountersRecord {
        before: reading_record(&counters.before),
        after: counters.after.as_ref().ok().map(reading_record),
        problem: counters.after.as_ref().err().map(|problem| problem.why.clone()),
        nvlinks_down: some(counters.nvlinks_down()),
        xids: some(counters.new_xids().into_iter().map(xid).collect()),
    }
}

fn reading_record(reading: &DeviceReading) -> ReadingRecord {
    let rows = reading.rows;
    let links = reading.nvlinks.up();
    let links = links.map(|(link, errors)| LinkRecord { link, errors: errors.map(nvlink_record) });
    ReadingRecord {
        ecc_uncorrected: reading.uncorrected_ecc,
        ecc_corrected: reading.corrected_ecc,
        remapped_rows: rows.map(|rows| rows.rows),
        remap_pending: rows.map(|rows| rows.is_pending),
        remap_failed: rows.map(|rows| rows.has_failed),
        nvlinks: some(links.collect()),
        nvlink_total: reading.nvlinks.total.map(nvlink_record),
        power_watts: reading.watts(),
        lost: reading.lost.clone(),
    }
}

const fn nvlink_record(errors: NvlinkErrors) -> NvlinkRecord {
    let NvlinkErrors { crc_flit, crc_data, replay, recovery } = errors;
    NvlinkRecord { crc_flit, crc_data, replay, recovery }
}
