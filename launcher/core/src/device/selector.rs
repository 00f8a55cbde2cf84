//! The grammar of `--devices`. Pure.
//!
//! ```text
//! LIST      = all | idle | none | ENTRY , ENTRY …
//! ENTRY     = NAME | -NAME
//! NAME      = 3 | 0-3 | 3-0 | GPU-… | MIG-… | 1:0 | 0000:1b:00.0 | 1b:00.0
//! ```
//!
//! A list is read from left to right: a name puts its devices at the end, an exclusion (`-NAME`, so also `-2-4`) takes
//! them out again, and a list that begins with an exclusion begins with all. Whether the devices exist is found out
//! later, in [`choice`](super::choice).

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use super::{DeviceType, PciAddress};

/// The value of `--devices`, parsed and not resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// `all`: every device that is visible.
    All,
    /// `none`: workers run on the CPUs.
    None,
    /// `idle`: the devices that no process uses.
    Idle,
    /// Entries in the order in which they were written; never empty.
    List(Vec<SelectorEntry>),
}

/// One entry of a list, a name or an exclusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectorEntry {
    /// `3`: counts within what is inherited.
    Index(u32),
    /// `0-3`, both ends included; `3-0` runs backwards.
    Range(u32, u32),
    /// `-2`, `-2-4`, `-GPU-…`: not this one. A list that begins with an exclusion begins with all.
    Except(Box<Self>),
    /// `GPU-…`, `MIG-…` or the beginning of one that fits one device only.
    Uuid(String),
    /// `1:0`: the first MIG device of GPU 1.
    Mig(u32, u32),
    /// A PCI address such as `0000:1b:00.0`.
    Pci(PciAddress),
}

impl SelectorEntry {
    /// Whether it names a device by what the device is, so that no order of counting matters.
    #[must_use]
    pub(crate) const fn is_identity(&self) -> bool {
        matches!(self, Self::Uuid(_) | Self::Mig(..) | Self::Pci(_))
    }
}

impl fmt::Display for SelectorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Range(first, last) => write!(f, "{first}-{last}"),
            Self::Except(entry) => write!(f, "-{entry}"),
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::Mig(gpu, instance) => write!(f, "{gpu}:{instance}"),
            Self::Pci(address) => write!(f, "{address}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::None => f.write_str("none"),
            Self::Idle => f.write_str("idle"),
            Self::List(entries) => {
                let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
                f.write_str(&entries.join(","))
            }
        }
    }
}

/// Reasons why a text is not a device list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The list has no text at all.
    #[error("the list is empty")]
    Empty,
    /// Nothing between two commas, or before the first or after the last.
    #[error("entry {place} of `{}` is empty", display_value(list))]
    EmptyEntry {
        /// The whole list as it was written.
        list: String,
        /// The position of the entry, from 1.
        place: usize,
    },
    /// An entry is a `-` without a name.
    #[error("`-` leaves out nothing")]
    LoneDash,
    /// A number that no device has.
    #[error("`{entry}` has a number that is out of range")]
    OutOfRange {
        /// The entry as it was written.
        entry: String,
    },
    /// An entry that the list has twice.
    #[error("`{entry}` is listed twice")]
    Repeated {
        /// The entry as it was written.
        entry: String,
    },
    /// `all`, `idle` or `none` beside other entries.
    #[error("`{word}` stands alone, and not in a list (`{}`)", display_value(list))]
    NotAlone {
        /// The word that must stand alone.
        word: String,
        /// The whole list as it was written.
        list: String,
    },
    /// `cuda:1,2`: PyTorch's way of writing one device.
    #[error("`{}` begins with a device type", display_value(list))]
    TypePrefix {
        /// The whole list as it was written.
        list: String,
        /// The type, where the word names just one.
        kind: Option<DeviceType>,
        /// The list without the device type.
        rest: String,
    },
    /// The entry has none of the known forms.
    #[error("`{}` names no device", display_value(entry))]
    Junk {
        /// The entry as it was written.
        entry: String,
    },
}

impl SelectorError {
    /// The correction that the error suggests.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Empty => "if the value comes from a shell variable, check that it is set; `--devices all` takes every \
                            device, `--devices none` runs on CPUs"
                .to_owned(),
            Self::EmptyEntry { .. } => "write the devices with one comma between them, such as `0,2`".to_owned(),
            Self::LoneDash => "`-2` leaves out device 2".to_owned(),
            Self::OutOfRange { .. } => "`rankrun devices` shows the numbers".to_owned(),
            Self::Repeated { .. } => {
                "write each device once; `--oversubscribe` runs several workers on one device".to_owned()
            }
            Self::NotAlone { word, .. } if word == "all" => {
                "a list of exclusions begins with all: `-2` is every device but 2".to_owned()
            }
            Self::NotAlone { word, .. } => format!("write `--devices {word}`, or a list without it"),
            Self::TypePrefix { kind, rest, .. } => {
                let kind = kind.map(|kind| format!("--device-type {kind}"));
                let devices = (!rest.is_empty()).then(|| format!("--devices {rest}"));
                let options: Vec<String> = [kind, devices].into_iter().flatten().collect();
                format!("write it as `{}`", options.join(" "))
            }
            Self::Junk { entry } => suggest_entry(entry).unwrap_or_else(|| {
                "a device is an index (`3`), a range (`0-3`), an exclusion (`-2`), a UUID (`GPU-…`, `MIG-…`) or its \
                 beginning, a MIG device (`1:0`) or a PCI address (`0000:1b:00.0`)"
                    .to_owned()
            }),
        }
    }
}

/// The probable meaning of an entry that names no device.
fn suggest_entry(entry: &str) -> Option<String> {
    let small = entry.to_ascii_lowercase();
    if matches!(small.as_str(), "auto" | "any" | "every" | "*") {
        return Some(
            "`--devices all` takes every device; so does the launcher without `--devices`".to_owned(),
        );
    }
    if matches!(small.as_str(), "cpu" | "cpus" | "no" | "off" | "false") {
        return Some("`--devices none` runs on CPUs".to_owned());
    }
    if matches!(small.as_str(), "gpu-" | "mig-") {
        return Some("write more of the UUID; `rankrun devices` shows it".to_owned());
    }
    if let Some((host, index)) = entry.split_once(':').filter(|(host, _)| !host.contains('.')) {
        let is_host = host.bytes().any(|byte| byte.is_ascii_alphabetic());
        return is_host.then(|| {
            format!("leave `{host}:` out, as in `--devices {index}`: a launcher chooses the devices of its own node")
        });
    }
    let digits =
        ["gpu", "cuda", "device", "nvidia"].into_iter().find_map(|prefix| small.strip_prefix(prefix))?;
    let is_index = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_index.then(|| format!("write the index alone: `--devices {digits}`"))
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "" => return Err(SelectorError::Empty),
            "all" => return Ok(Self::All),
            "none" => return Ok(Self::None),
            "idle" => return Ok(Self::Idle),
            _ => {}
        }
        if let Some(error) = type_prefix_error(text.trim()) {
            return Err(error);
        }
        let mut entries = Vec::new();
        for (place, entry) in text.split(',').map(str::trim).enumerate() {
            if entry.is_empty() {
                return Err(SelectorError::EmptyEntry { list: text.to_owned(), place: place + 1 });
            }
            if matches!(entry, "all" | "none" | "idle") {
                return Err(SelectorError::NotAlone { word: entry.to_owned(), list: text.to_owned() });
            }
            // Messages repeat an entry.
            if entry.len() > MAX_DISPLAY_LENGTH || entry.chars().any(char::is_control) {
                return Err(SelectorError::Junk { entry: entry.to_owned() });
            }
            let parsed = parse_entry(entry)?;
            if entries.contains(&parsed) {
                return Err(SelectorError::Repeated { entry: entry.to_owned() });
            }
            entries.push(parsed);
        }
        Ok(Self::List(entries))
    }
}

/// So many bytes of a value are shown in a message.
const MAX_DISPLAY_LENGTH: usize = 200;

/// A value as a message can show it: on one line, not too long, and nothing in it commands a terminal.
#[must_use]
pub(crate) fn display_value(value: &str) -> String {
    let end = value.floor_char_boundary(MAX_DISPLAY_LENGTH);
    let mut shown: String = value[..end]
        .chars()
        .flat_map(|letter| {
            let escaped = letter.is_control().then(|| letter.escape_default());
            escaped.into_iter().flatten().chain((!letter.is_control()).then_some(letter))
        })
        .collect();
    if end < value.len() {
        shown.push('…');
    }
    shown
}

/// `cuda:1,2`, `gpu:1`, `cuda`: returns the error that shows the right form.
fn type_prefix_error(list: &str) -> Option<SelectorError> {
    let kind = |prefix: &str| match prefix {
        // Several vendors' programs call theirs so.
        "gpu" | "device" => Some(None),
        "hip" | "amd" => Some(Some(DeviceType::Rocm)),
        "nvidia" => Some(Some(DeviceType::Cuda)),
        prefix => prefix.parse().ok().map(Some),
    };
    let first = list.split(',').next()?.trim();
    let prefix = first.split_once(':').map_or(first, |(prefix, _)| prefix);
    let kind = kind(prefix)?;
    let prefix_and_colon = format!("{prefix}:");
    let rest: Vec<&str> = list
        .split(',')
        .map(str::trim)
        .map(|entry| entry.strip_prefix(&prefix_and_colon).unwrap_or(entry))
        .filter(|entry| *entry != prefix && !entry.is_empty())
        .collect();
    Some(SelectorError::TypePrefix { list: list.to_owned(), kind, rest: rest.join(",") })
}

fn parse_entry(entry: &str) -> Result<SelectorEntry, SelectorError> {
    match entry.strip_prefix('-') {
        Some("") => Err(SelectorError::LoneDash),
        Some(name) => Ok(SelectorEntry::Except(Box::new(parse_name(name, entry)?))),
        None => parse_name(entry, entry),
    }
}

/// A name without its exclusion mark; `entry` is with it.
fn parse_name(name: &str, entry: &str) -> Result<SelectorEntry, SelectorError> {
    let junk = || SelectorError::Junk { entry: entry.to_owned() };
    if is_uuid(name) {
        return Ok(SelectorEntry::Uuid(name.to_owned()));
    }
    if name.contains('.') {
        return name.parse().map(SelectorEntry::Pci).map_err(|_| junk());
    }
    let pair = |first: &str, second: &str| Ok((number(first, entry)?, number(second, entry)?));
    if let Some((gpu, instance)) = name.split_once(':') {
        return pair(gpu, instance).map(|(gpu, instance)| SelectorEntry::Mig(gpu, instance));
    }
    if let Some((first, last)) = name.split_once('-') {
        return pair(first, last).map(|(first, last)| SelectorEntry::Range(first, last));
    }
    number(name, entry).map(SelectorEntry::Index)
}

/// `GPU-` or `MIG-` and at least one character of the UUID behind it.
fn is_uuid(name: &str) -> bool {
    let Some((prefix, rest)) = name.split_at_checked(4) else { return false };
    // The older names of MIG devices have slashes: `MIG-GPU-<uuid>/1/0`.
    let of_uuid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'/';
    matches!(prefix.to_ascii_uppercase().as_str(), "GPU-" | "MIG-")
        && !rest.is_empty()
        && rest.bytes().all(of_uuid)
}

/// A plain decimal number: no sign, no blank.
fn number(text: &str, entry: &str) -> Result<u32, SelectorError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SelectorError::Junk { entry: entry.to_owned() });
    }
    text.parse().map_err(|_| SelectorError::OutOfRange { entry: entry.to_owned() })
}
