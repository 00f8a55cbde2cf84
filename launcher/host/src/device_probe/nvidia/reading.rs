//! The error counters of chosen cards by NVML, and their Xid errors in the kernel log.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
};
use nvml_wrapper::{Device, Nvml};

use crate::device_probe::nvidia::identity::{CardQuery, sanitize_name};
use crate::device_probe::nvidia::links::MOST_LINKS;
use crate::device_probe::nvidia::{error_text, open_library, raw};
use rankrun_core::device::reading::{DeviceReading, LinkState, NvlinkErrors, NvlinkReading, ReadingTarget};
use rankrun_core::device::xid::{Xid, parse_xid};
use rankrun_core::device::{Condition, PciAddress};

/// The kernel log, a record for each read.
const KERNEL_LOG: &str = "/dev/kmsg";
/// The kernel's longest record has fewer bytes (`PRINTK_MESSAGE_MAX`).
const MAX_RECORD: usize = 8192;
/// Larger logs have other records than these lost; the newest are at the end.
const MAX_RECORDS: usize = 200_000;
/// The newest errors of a card are kept.
const MAX_XIDS: usize = 16;

/// Errors of all links together, in the order of [`NvlinkErrors`].
const TOTALS: [u32; 4] = [
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
];

/// The reading of each device, in their order.
///
/// # Errors
/// The reason why the library gives none, in words.
pub(crate) fn read_devices(targets: &[ReadingTarget]) -> Result<Vec<DeviceReading>, String> {
    let nvml = open_library()?;
    let log = if targets.iter().any(|target| target.pci.is_some()) {
        read_kernel_log(KERNEL_LOG)
    } else {
        Ok(BTreeMap::new())
    };
    let readings = targets.iter().map(|target| {
        let reading = read_device(&nvml, &target.uuid);
        target.pci.map_or(reading.clone(), |pci| with_xids(reading, pci, log.as_ref()))
    });
    let readings = readings.collect();
    // As in `probe_nvml`.
    std::mem::forget(nvml);
    Ok(readings)
}

/// Collects the counters of a card, and those that are absent.
#[derive(Debug, Default)]
struct CounterQuery {
    answers: CardQuery,
    absent: Vec<String>,
}

impl CounterQuery {
    fn optional<T>(&mut self, name: &str, answer: Result<T, NvmlError>) -> Option<T> {
        if let Err(error) = &answer
            && !error_text::is_loss(error)
        {
            self.absent.push(format!("{name}: {}", error_text::error_message(error)));
        }
        self.answers.optional(answer)
    }
}

fn read_device(nvml: &Nvml, uuid: &str) -> DeviceReading {
    let device = match nvml.device_by_uuid(uuid) {
        Ok(device) => device,
        Err(error) => return reading_without_handle(&error),
    };
    let mut query = CounterQuery::default();
    let ecc = |error| device.total_ecc_errors(error, EccCounter::Volatile);
    let reading = DeviceReading {
        serial: query.optional("serial", device.serial()).and_then(|serial| sanitize_name(&serial)),
        power: query.optional("power", device.power_usage()).map(u64::from),
        corrected_ecc: query.optional("corrected ECC errors", ecc(MemoryError::Corrected)),
        uncorrected_ecc: query.optional("uncorrected ECC errors", ecc(MemoryError::Uncorrected)),
        rows: query.optional("remapped rows", raw::remapped_rows(&device)),
        nvlinks: read_nvlinks(&device, &mut query),
        ..DeviceReading::default()
    };
    let lost = match query.answers.condition() {
        Condition::Answers => None,
        Condition::Lost { why } => Some(why),
    };
    DeviceReading { lost, absent: query.absent, ..reading }
}

/// The reading of a card of which NVML gives no handle. The card was listed before: now it is gone, or NVML cannot tell.
fn reading_without_handle(error: &NvmlError) -> DeviceReading {
    let why = error_text::error_message(error);
    if error_text::is_loss(error) || matches!(error, NvmlError::NotFound) {
        return DeviceReading { lost: Some(why), ..DeviceReading::default() };
    }
    DeviceReading { absent: vec![format!("the device: {why}")], ..DeviceReading::default() }
}

/// The links of a card. Newer drivers count the errors of all links together, and not of each.
fn read_nvlinks(device: &Device<'_>, query: &mut CounterQuery) -> NvlinkReading {
    let mut links = link_states(device, query);
    let mut problem = None;
    for (number, state) in &mut links {
        if let LinkState::Up(errors) = state {
            *errors = link_errors(device, *number).map_err(|error| problem = Some(error)).ok();
        }
    }
    let has_counts = links.values().any(|state| matches!(state, LinkState::Up(Some(_))));
    let total = match problem {
        Some(error) if !has_counts && error_text::is_absence(&error) => {
            query.optional("NVLink errors", total_of_links(device))
        }
        Some(error) => query.optional("NVLink errors", Err(error)),
        None => None,
    };
    NvlinkReading { links, total }
}

/// The links of which NVML knows the state, without their errors.
fn link_states(device: &Device<'_>, query: &mut CounterQuery) -> BTreeMap<u32, LinkState> {
    let mut states = BTreeMap::new();
    for number in 0..MOST_LINKS {
        match device.link_wrapper_for(number).is_active() {
            Ok(true) => _ = states.insert(number, LinkState::Up(None)),
            Ok(false) => _ = states.insert(number, LinkState::Down),
            Err(NvmlError::FailedToLoadSymbol(_)) => break,
            Err(error) if error_text::is_loss(&error) => {
                query.answers.optional::<()>(Err(error));
                break;
            }
            // A link that is not wired answers with an error, and may come before one that is.
            Err(_) => {}
        }
    }
    states
}

fn link_errors(device: &Device<'_>, number: u32) -> Result<NvlinkErrors, NvmlError> {
    let link = device.link_wrapper_for(number);
    Ok(NvlinkErrors {
        crc_flit: link.error_counter(ErrorCounter::DlCrcFlit)?,
        crc_data: link.error_counter(ErrorCounter::DlCrcData)?,
        replay: link.error_counter(ErrorCounter::DlReplay)?,
        recovery: link.error_counter(ErrorCounter::DlRecovery)?,
    })
}

fn total_of_links(device: &Device<'_>) -> Result<NvlinkErrors, NvmlError> {
    let samples = device.field_values_for(&TOTALS.map(FieldId))?;
    let mut totals = [0; 4];
    for (total, sample) in totals.iter_mut().zip(samples) {
        *total = match sample?.value? {
            SampleValue::U32(count) => count.into(),
            SampleValue::U64(count) => count,
            SampleValue::I64(count) => u64::try_from(count).map_err(|_| NvmlError::Unknown)?,
            SampleValue::F64(_) => return Err(NvmlError::Unknown),
        };
    }
    let [crc_flit, crc_data, replay, recovery] = totals;
    Ok(NvlinkErrors { crc_flit, crc_data, replay, recovery })
}

/// The Xid errors of each card, the oldest first.
type XidLog = BTreeMap<PciAddress, Vec<Xid>>;

fn with_xids(reading: DeviceReading, pci: PciAddress, log: Result<&XidLog, &io::Error>) -> DeviceReading {
    match log {
        Ok(log) => DeviceReading { xids: Some(log.get(&pci).cloned().unwrap_or_default()), ..reading },
        Err(error) => {
            let absent =
                [reading.absent.clone(), vec![format!("Xid errors: `{KERNEL_LOG}`: {error}")]].concat();
            DeviceReading { absent, ..reading }
        }
    }
}

fn read_kernel_log(path: impl AsRef<Path>) -> io::Result<XidLog> {
    let mut file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let mut log = XidLog::new();
    let mut record = [0; MAX_RECORD];
    for _ in 0..MAX_RECORDS {
        match file.read(&mut record) {
            Ok(length @ 1..) => {
                let Some((card, xid)) = parse_xid(&record[..length]) else { continue };
                let xids = log.entry(card).or_default();
                xids.push(xid);
                xids.drain(..xids.len().saturating_sub(MAX_XIDS));
            }
            // The record was overwritten meanwhile; the next read gives the oldest that is left.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Ok(0) | Err(_) => break,
        }
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is one record, and ends where the kernel log would block.
    #[test]
    fn kernel_log_gives_xids_of_each_card() {
        let path = std::env::temp_dir().join(format!("rankrun-kernel-log-{}", std::process::id()));
        std::fs::write(&path, "4,7,1,-;NVRM: Xid (PCI:0000:1b:00): 48, DBE").unwrap();
        let log = read_kernel_log(&path);
        std::fs::remove_file(&path).unwrap();
        let card = |text: &str| text.parse::<PciAddress>().unwrap();
        let read = |text| with_xids(DeviceReading::default(), card(text), log.as_ref());
        assert_eq!(read("0000:1b:00.0").xids.unwrap()[0].to_string(), "Xid 48 (DBE)");
        assert_eq!(read("0000:1c:00.0").xids, Some(Vec::new()));

        let log = read_kernel_log(&path);
        let reading = with_xids(DeviceReading::default(), card("0000:1b:00.0"), log.as_ref());
        assert_eq!(reading.xids, None);
        assert!(reading.absent[0].starts_with("Xid errors: `/dev/kmsg`: No such file"), "{reading:?}");
    }

    /// Without persistence mode the driver loads again for the second reading, and may fail at that.
    #[test]
    fn card_without_handle_is_lost_only_by_words_that_say_so() {
        for error in [NvmlError::GpuLost, NvmlError::NotFound] {
            let reading = reading_without_handle(&error);
            assert_eq!(reading.lost, Some(error_text::error_message(&error)));
        }
        let errors =
            [NvmlError::Unknown, NvmlError::Timeout, NvmlError::NoPermission, NvmlError::DriverNotLoaded];
        for error in errors {
            let reading = reading_without_handle(&error);
            assert_eq!(reading.lost, None);
            assert_eq!(reading.absent, [format!("the device: {}", error_text::error_message(&error))]);
        }
    }

    #[test]
    fn absent_counter_is_named_and_lost_card_is_not_absence() {
        let mut query = CounterQuery::default();
        assert_eq!(query.optional::<u32>("power", Err(NvmlError::NotSupported)), None);
        assert_eq!(query.optional::<u32>("serial", Err(NvmlError::GpuLost)), None);
        assert_eq!(query.absent, ["power: Not Supported"]);
        assert_eq!(query.answers.condition(), Condition::Lost { why: "GPU is lost".to_owned() });
    }
}
