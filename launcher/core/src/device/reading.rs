//! The error counters of a device at one moment, and their changes between two. Pure; the probes read them.
//!
//! Sources: *NVML API Reference*, "Device Queries" and "NvLink Methods"; NVIDIA's *XID Errors*.

mod nvlink;

use serde::{Deserialize, Serialize};

use super::xid::Xid;
use super::{Accelerator, DeviceType, Part, PciAddress};

pub use nvlink::{LinkState, NvlinkErrors, NvlinkReading};

/// A device whose counters are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingTarget {
    /// `GPU-…`
    pub uuid: String,
    /// Its address in the kernel log. Without one the log is not read.
    pub pci: Option<PciAddress>,
}

impl ReadingTarget {
    /// `None` for a device without counters of its own: another vendor's, or a part of a card (MIG).
    #[must_use]
    pub fn of(accelerator: &Accelerator) -> Option<Self> {
        let is_card = accelerator.kind == DeviceType::Cuda && accelerator.part == Part::Whole;
        let uuid = accelerator.uuid.clone().filter(|_| is_card)?;
        Some(Self { uuid, pci: accelerator.pci })
    }
}

/// The counters of one device. `None` is what the driver or the card does not know.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceReading {
    /// The number on the board.
    pub serial: Option<String>,
    /// The power draw in milliwatts.
    pub power: Option<u64>,
    /// Corrected ECC errors since the driver was loaded.
    pub corrected_ecc: Option<u64>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected_ecc: Option<u64>,
    /// Remapped rows of its memory.
    pub rows: Option<RemappedRows>,
    /// Its `NVLink`s; without any for a card that has none.
    pub nvlinks: NvlinkReading,
    /// Its Xid errors in the kernel log, the oldest first.
    pub xids: Option<Vec<Xid>>,
    /// Why it does not answer, in the library's words.
    pub lost: Option<String>,
    /// The counters that could not be read, each with the reason.
    pub absent: Vec<String>,
}

impl DeviceReading {
    /// The power draw in watts, with the digits that the driver gives.
    #[must_use]
    pub fn watts(&self) -> Option<f64> {
        self.power
            .and_then(|milliwatts| u32::try_from(milliwatts).ok())
            .map(|power| f64::from(power) / 1000.0)
    }
}

/// Rows of memory that the card has replaced by spare ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RemappedRows {
    /// So many, for corrected and uncorrected errors.
    pub rows: u32,
    /// More rows wait for a reset of the card.
    pub is_pending: bool,
    /// A row could not be replaced.
    pub has_failed: bool,
}

/// The readings of the device of a failed worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Its UUID.
    pub uuid: String,
    /// At the start of the job.
    pub before: DeviceReading,
    /// After the failure, or why it could not be read.
    pub after: Result<DeviceReading, ReadingProblem>,
}

/// Why a device could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadingProblem {
    /// The source and its trouble, in words.
    pub why: String,
    /// SIGKILL does not end the probe: it is stuck in the driver. Other problems happen with good cards too. Without
    /// persistence mode the driver unloads with the last process, and is slow at the next.
    pub is_unkillable: bool,
}

impl DeviceCounters {
    /// What has changed, each in words.
    #[must_use]
    pub fn changes(&self) -> Vec<String> {
        let Ok(after) = &self.after else { return Vec::new() };
        let before = &self.before;
        let count = |name: &str, before: Option<u64>, after: Option<u64>| {
            let (before, after) = before.zip(after).filter(|(before, after)| before < after)?;
            Some(format!("{name} {before} → {after}"))
        };
        let rows = |reading: &DeviceReading| reading.rows.map(|rows| u64::from(rows.rows));
        let has_begun = |is: fn(&RemappedRows) -> bool| {
            before.rows.zip(after.rows).is_some_and(|(before, after)| !is(&before) && is(&after))
        };
        let mut changes: Vec<String> =
            after.lost.iter().map(|why| format!("does not answer: {why}")).collect();
        changes.extend(count("ECC uncorrected", before.uncorrected_ecc, after.uncorrected_ecc));
        changes.extend(count("ECC corrected", before.corrected_ecc, after.corrected_ecc));
        changes.extend(count("remapped rows", rows(before), rows(after)));
        if has_begun(|rows| rows.is_pending) {
            changes.push("bad rows wait for a reset to be remapped".to_owned());
        }
        if has_begun(|rows| rows.has_failed) {
            changes.push("a bad row could not be remapped".to_owned());
        }
        changes.extend(before.nvlinks.changes(&after.nvlinks));
        changes.extend(self.new_xids().iter().map(|xid| xid.to_string()));
        changes
    }

    /// The numbers of the `NVLink`s that were up at the first reading and are down.
    #[must_use]
    pub fn nvlinks_down(&self) -> Vec<u32> {
        self.after.as_ref().map_or_else(|_| Vec::new(), |after| self.before.nvlinks.down_in(&after.nvlinks))
    }

    /// The Xid errors since the first reading. The kernel numbers the lines of its log.
    #[must_use]
    pub fn new_xids(&self) -> Vec<&Xid> {
        let after = self.after.as_ref().ok().and_then(|after| after.xids.as_ref());
        let Some((before, after)) = self.before.xids.as_ref().zip(after) else { return Vec::new() };
        let last = before.iter().map(|xid| xid.sequence).max();
        after.iter().filter(|xid| Some(xid.sequence) > last).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::fake;

    fn counters(before: DeviceReading, after: DeviceReading) -> DeviceCounters {
        DeviceCounters { uuid: "GPU-1".to_owned(), before, after: Ok(after) }
    }

    fn xid(sequence: u64, code: u32) -> Xid {
        Xid { sequence, code, text: String::new() }
    }

    /// One link with these errors.
    fn links(errors: NvlinkErrors) -> NvlinkReading {
        NvlinkReading { links: [(0, LinkState::Up(Some(errors)))].into(), total: None }
    }

    #[test]
    fn counters_that_grow_are_changes() {
        let before = DeviceReading {
            corrected_ecc: Some(4),
            uncorrected_ecc: Some(0),
            rows: Some(RemappedRows::default()),
            nvlinks: links(NvlinkErrors { replay: 7, ..NvlinkErrors::default() }),
            xids: Some(vec![xid(5, 13)]),
            ..DeviceReading::default()
        };
        assert_eq!(counters(before.clone(), before.clone()).changes(), [""; 0]);
        let after = DeviceReading {
            uncorrected_ecc: Some(2),
            rows: Some(RemappedRows { rows: 1, is_pending: true, has_failed: true }),
            nvlinks: links(NvlinkErrors { crc_data: 1, replay: 10, ..NvlinkErrors::default() }),
            xids: Some(vec![xid(5, 13), xid(9, 79)]),
            ..before.clone()
        };
        let expected = [
            "ECC uncorrected 0 → 2",
            "remapped rows 0 → 1",
            "bad rows wait for a reset to be remapped",
            "a bad row could not be remapped",
            "1 NVLink data CRC error",
            "3 NVLink replay errors",
            "Xid 79",
        ];
        assert_eq!(counters(before, after).changes(), expected);
    }

    /// A reset sets counters back; a lost card has none any more.
    #[test]
    fn counter_that_falls_or_is_unknown_is_not_a_change() {
        let known =
            DeviceReading { uncorrected_ecc: Some(3), xids: Some(Vec::new()), ..DeviceReading::default() };
        let reset = DeviceReading { uncorrected_ecc: Some(0), ..known.clone() };
        assert_eq!(counters(known.clone(), reset).changes(), [""; 0]);
        let unknown = DeviceReading { xids: Some(vec![xid(0, 48)]), ..DeviceReading::default() };
        assert_eq!(counters(DeviceReading::default(), unknown.clone()).changes(), [""; 0]);
        assert_eq!(
            counters(known.clone(), unknown).changes(),
            ["Xid 48"],
            "the first line of a log has number 0"
        );
        let lost = DeviceReading { lost: Some("GPU is lost".to_owned()), ..DeviceReading::default() };
        assert_eq!(counters(known.clone(), lost).changes(), ["does not answer: GPU is lost"]);
        let problem = ReadingProblem { why: "no answer".to_owned(), is_unkillable: true };
        let hung = DeviceCounters { after: Err(problem), ..counters(known.clone(), known) };
        assert_eq!(hung.changes(), [""; 0]);
    }

    #[test]
    fn only_whole_cuda_cards_have_counters() {
        let card = |kind| Accelerator { uuid: Some("GPU-1".to_owned()), ..fake::card(kind, 0, "A", 0x1b) };
        let gpu = card(DeviceType::Cuda);
        let target = ReadingTarget::of(&gpu).expect("it has counters");
        assert_eq!((target.uuid.as_str(), target.pci), ("GPU-1", gpu.pci));
        assert_eq!(ReadingTarget::of(&card(DeviceType::Rocm)), None);
        assert_eq!(ReadingTarget::of(&Accelerator { uuid: None, ..gpu.clone() }), None);
        let instance = Accelerator { part: Part::MigInstance { gpu: 0 }, ..gpu };
        assert_eq!(ReadingTarget::of(&instance), None);
    }
}
