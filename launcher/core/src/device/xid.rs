//! NVIDIA's Xid errors in the kernel log. NVML has no counter of them, only events for a process that waits. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::PciAddress;

/// Begins the driver's message, behind the fields of the record.
const PREFIX: &str = "NVRM: Xid (PCI:";
/// More of a message is not kept, in characters.
const MAX_TEXT: usize = 160;

/// One Xid error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    /// The number of its line in the kernel log.
    pub sequence: u64,
    /// The kind of error, such as 79.
    pub code: u32,
    /// The driver's words behind the number.
    pub text: String,
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xid {}", self.code)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, " ({})", self.text) }
    }
}

/// The card and its error, of a record of `/dev/kmsg` (Linux, `Documentation/ABI/testing/dev-kmsg`). `None` for all
/// others.
#[must_use]
pub fn parse_xid(record: &[u8]) -> Option<(PciAddress, Xid)> {
    let record = String::from_utf8_lossy(record);
    let (fields, message) = record.lines().next()?.split_once(';')?;
    let sequence = fields.split(',').nth(1)?.parse().ok()?;
    let (place, rest) = message.strip_prefix(PREFIX)?.split_once("): ")?;
    // `0000:1b:00`, and behind it the instance of a MIG device.
    let address = place.split(' ').next()?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (code, text) = rest.split_at(digits);
    let text = text.trim_start_matches([',', ' ']).chars().filter(|c| !c.is_control()).take(MAX_TEXT);
    Some((
        format!("{address}.0").parse().ok()?,
        Xid { sequence, code: code.parse().ok()?, text: text.collect() },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xid_has_card_number_and_words() {
        let lost = b"4,1339,5140900,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off \
                     the bus.\n SUBSYSTEM=pci\n";
        let (card, xid) = parse_xid(lost).expect("an Xid");
        assert_eq!((card.to_string().as_str(), xid.sequence, xid.code), ("0000:1b:00.0", 1339, 79));
        assert_eq!(xid.to_string(), "Xid 79 (pid='<unknown>', name=<unknown>, GPU has fallen off the bus.)");
        let of_mig = b"4,2,0,-;NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 43";
        let (card, xid) = parse_xid(of_mig).expect("an Xid");
        assert_eq!((card.bus, xid.to_string().as_str()), (0xc1, "Xid 43"));
    }

    #[test]
    fn other_records_and_junk_are_no_xid() {
        for record in [
            &b"6,1,0,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module"[..],
            b"6,1,0,-;said `NVRM: Xid (PCI:0000:1b:00): 79`",
            b"NVRM: Xid (PCI:0000:1b:00): 79",
            b"4,x,0,-;NVRM: Xid (PCI:0000:1b:00): 79",
            b"4,1,0,-;NVRM: Xid (PCI:0000:1b:00): 99999999999",
            b"4,1,0,-;NVRM: Xid (PCI:zz): 79",
            b"4,1,0,-;NVRM: Xid (PCI:0000:1b:00): ",
            b"\xff\xfe;",
            b"",
        ] {
            assert_eq!(parse_xid(record), None, "{}", String::from_utf8_lossy(record));
        }
    }

    #[test]
    fn long_text_is_cut_and_has_no_controls() {
        let record = format!("4,1,0,-;NVRM: Xid (PCI:0000:1b:00): 31, \x1b[2J{}", "x".repeat(5000));
        let (_, xid) = parse_xid(record.as_bytes()).expect("an Xid");
        assert!(xid.text.starts_with("[2Jxx") && xid.text.chars().count() == MAX_TEXT, "{xid}");
    }
}
