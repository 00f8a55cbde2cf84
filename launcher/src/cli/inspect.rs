//! The words behind `rankrun devices` and `rankrun topo`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::Command;
use super::error::{CliError, Origin, UsageError};
use super::option::OptionRow;
use super::python_text::parse_float;
use crate::device::DeviceType;
use crate::spec::Persona;

/// The word that asks for the devices, only in the first place and only under our own name.
pub(super) const DEVICES: &str = "devices";
/// The word that asks for the links between them, likewise.
pub(super) const TOPO: &str = "topo";

/// As `watch` does.
const DEFAULT_EVERY: Duration = Duration::from_secs(2);
/// Looking all the time keeps a driver busy.
const SHORTEST: f64 = 0.1;
/// A day.
const LONGEST: f64 = 86_400.0;

static JSON: OptionRow = OptionRow::flag("json", "For programs");
static TYPE: OptionRow = OptionRow::choice(
    "device-type",
    &["cuda", "rocm", "xpu", "hpu", "npu", "mps", "cpu"],
    "Only these devices",
);

/// A question about this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspect {
    /// `devices`
    Devices {
        /// `--device-type`: only these.
        kind: Option<DeviceType>,
        /// How the answer is given.
        manner: Manner,
    },
    /// `topo`
    Topo {
        /// How the answer is given; never [`Manner::Watch`].
        manner: Manner,
    },
}

impl Inspect {
    /// The word that asks it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Devices { .. } => DEVICES,
            Self::Topo { .. } => TOPO,
        }
    }
}

/// How an answer about the machine is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// For people.
    Text,
    /// `--json`
    Json,
    /// `--watch`: again and again, so long after the last time.
    Watch(Duration),
}

/// Whether the words ask about the machine.
pub(super) fn asks(words: &[OsString]) -> bool {
    words.first().is_some_and(|word| word == DEVICES || word == TOPO)
}

/// Reads them; the first is the one that [`asks`] knows.
pub(super) fn interpret(words: &[OsString]) -> Result<Command, CliError> {
    read(words).map_err(|error| CliError::Usage { persona: Persona::Rankrun, error })
}

fn read(words: &[OsString]) -> Result<Command, UsageError> {
    let is_topo = words.first().is_some_and(|word| word == TOPO);
    let (mut kind, mut json, mut every) = (None, false, None);
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        let (name, value) = split(word);
        match (name, value) {
            (b"-h" | b"--help", None) => {
                let text =
                    if is_topo { include_str!("help_topo.txt") } else { include_str!("help_devices.txt") };
                return Ok(Command::Print(text.to_owned()));
            }
            (b"--json", None) => json = true,
            (b"--json", Some(value)) => {
                return Err(UsageError::UnwantedValue { option: &JSON, value: lossy(value) });
            }
            (b"--watch", value) if !is_topo => every = Some(value.map_or(Ok(DEFAULT_EVERY), parse_every)?),
            (b"--device-type" | b"--device_type", value) if !is_topo => {
                let value = value.or_else(|| words.next().map(OsString::as_os_str));
                kind = Some(parse_kind(value.ok_or(UsageError::MissingValue { option: &TYPE })?)?);
            }
            _ => return Err(UsageError::UnknownTo { command: command(is_topo), word: lossy(word) }),
        }
    }
    let manner = match (json, every) {
        (false, None) => Manner::Text,
        (true, None) => Manner::Json,
        (false, Some(every)) => Manner::Watch(every),
        (true, Some(_)) => return Err(UsageError::WatchedJson),
    };
    Ok(Command::Inspect(if is_topo { Inspect::Topo { manner } } else { Inspect::Devices { kind, manner } }))
}

const fn command(is_topo: bool) -> &'static str {
    if is_topo { TOPO } else { DEVICES }
}

/// `--name=value`
fn split(word: &OsStr) -> (&[u8], Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) if bytes.starts_with(b"--") => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
        _ => (bytes, None),
    }
}

fn parse_every(value: &OsStr) -> Result<Duration, UsageError> {
    let seconds =
        value.to_str().and_then(parse_float).filter(|seconds| (SHORTEST..=LONGEST).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| UsageError::BadInterval { value: lossy(value) })
}

fn parse_kind(value: &OsStr) -> Result<DeviceType, UsageError> {
    let bad =
        || UsageError::BadValue { option: &TYPE, origin: Origin::Option(TYPE.long), value: lossy(value) };
    value.to_str().and_then(|word| word.parse().ok()).ok_or_else(bad)
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Result<Command, String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        interpret(&words).map_err(|error| error.render())
    }

    #[test]
    fn the_words_may_stand_in_any_order() {
        let devices = |kind, manner| Ok(Command::Inspect(Inspect::Devices { kind, manner }));
        let every = |seconds| Manner::Watch(Duration::from_secs_f64(seconds));
        for (line, command) in [
            ("devices", devices(None, Manner::Text)),
            ("devices --json", devices(None, Manner::Json)),
            ("devices --watch", devices(None, every(2.0))),
            ("devices --watch=0.5 --device-type cuda", devices(Some(DeviceType::Cuda), every(0.5))),
            ("devices --device_type=rocm --json", devices(Some(DeviceType::Rocm), Manner::Json)),
            ("topo", Ok(Command::Inspect(Inspect::Topo { manner: Manner::Text }))),
            ("topo --json", Ok(Command::Inspect(Inspect::Topo { manner: Manner::Json }))),
        ] {
            assert_eq!(told(line), command, "{line}");
        }
        for (line, usage) in
            [("topo --json -h", "usage: rankrun topo"), ("devices --help", "usage: rankrun devices")]
        {
            assert!(matches!(told(line), Ok(Command::Print(text)) if text.starts_with(usage)), "{line}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, part) in [
            ("devices --jsn", "`rankrun devices` does not know `--jsn`"),
            ("devices 3", "does not know `3`"),
            ("devices --json=1", "`--json` takes no value, but has `1`"),
            ("devices --watch=0", "`--watch` is `0`, which is not a number of seconds from 0.1 to 86400"),
            ("devices --watch=nan", "`nan`"),
            ("devices --watch=", "``"),
            ("devices --watch 2", "does not know `2`"),
            ("devices --watch --json", "`--json` and `--watch` exclude each other"),
            ("devices --device-type", "`--device-type` needs a value"),
            ("devices --device-type gpu", "`gpu`, which is not one of `cuda`, `rocm`"),
            ("topo --watch", "`rankrun topo` does not know `--watch`"),
            ("topo --device-type cuda", "does not know `--device-type`"),
        ] {
            let error = told(line).unwrap_err();
            assert!(error.contains(part) && error.contains("\nhint: "), "`{line}`: {error}");
        }
    }
}
