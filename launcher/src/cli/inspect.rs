//! The words behind `rankrun devices` and `rankrun topo`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::Command;
use super::device_request::read_probe_timeout;
use super::error::{CliError, Origin, UsageError};
use super::grammar::Given;
use super::option::OptionRow;
use super::python_text::parse_float;
use super::run::{DEVICE_TYPE, PROBE_TIMEOUT};
use super::settings::Settings;
use crate::device::DeviceType;
use crate::facts::Facts;
use crate::spec::CliFlavor;

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
static ID: OptionRow = OptionRow::text("id", "LIST", "Only these devices");

/// A question about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspect {
    /// What is asked.
    pub subject: Subject,
    /// How the answer is given; [`Manner::Watch`] only of devices.
    pub manner: Manner,
    /// `--probe-timeout`: how long a driver's library may take.
    pub limit: Duration,
}

/// What is asked about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// `devices`
    Devices {
        /// `--device-type`: only these.
        kind: Option<DeviceType>,
        /// `-i`: only these, by index, UUID or PCI address; empty for all.
        ids: Vec<String>,
    },
    /// `topo`
    Topo,
}

impl Subject {
    /// The word that asks it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Devices { .. } => DEVICES,
            Self::Topo => TOPO,
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
pub(super) fn interpret(words: &[OsString], facts: &Facts) -> Result<Command, CliError> {
    let usage = |error| CliError::Usage { cli_flavor: CliFlavor::Rankrun, error };
    let is_topo = words.first().is_some_and(|word| word == TOPO);
    if words.iter().any(|word| word == "-h" || word == "--help") {
        let text = if is_topo { include_str!("help_topo.txt") } else { include_str!("help_devices.txt") };
        return Ok(Command::Print(text.to_owned()));
    }
    let said = if is_topo { read(TOPO, words) } else { read(DEVICES, words) }.map_err(usage)?;
    let settings = Settings { cli_flavor: CliFlavor::Rankrun, given: &said.given, facts, config: None };
    let limit = read_probe_timeout(&settings)?;
    let manner = said.manner().map_err(usage)?;
    let subject = if is_topo { Subject::Topo } else { Subject::Devices { kind: said.kind, ids: said.ids } };
    Ok(Command::Inspect(Inspect { subject, manner, limit }))
}

/// What was said, as far as it can be understood word by word.
#[derive(Default)]
struct Said {
    json: bool,
    every: Option<Duration>,
    kind: Option<DeviceType>,
    ids: Vec<String>,
    given: Vec<Given>,
}

impl Said {
    const fn manner(&self) -> Result<Manner, UsageError> {
        match (self.json, self.every) {
            (false, None) => Ok(Manner::Text),
            (true, None) => Ok(Manner::Json),
            (false, Some(every)) => Ok(Manner::Watch(every)),
            (true, Some(_)) => Err(UsageError::WatchedJson),
        }
    }
}

fn read(command: &'static str, words: &[OsString]) -> Result<Said, UsageError> {
    let (mut said, is_topo) = (Said::default(), command == TOPO);
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        let (name, value) = split(word);
        let mut needed = |option: &'static OptionRow| {
            let value = value.or_else(|| words.next().map(OsString::as_os_str));
            value.ok_or(UsageError::MissingValue { option })
        };
        match (name, value) {
            (b"--json", None) => said.json = true,
            (b"--json", Some(value)) => {
                return Err(UsageError::UnwantedValue { option: &JSON, value: lossy(value) });
            }
            (b"--watch", value) if !is_topo => {
                said.every = Some(value.map_or(Ok(DEFAULT_EVERY), parse_every)?);
            }
            (b"--device-type" | b"--device_type", _) if !is_topo => {
                said.kind = Some(parse_kind(needed(&DEVICE_TYPE)?)?);
            }
            (b"--probe-timeout" | b"--probe_timeout", _) => {
                let value = needed(&PROBE_TIMEOUT)?.to_owned();
                said.given.push(Given { row: &PROBE_TIMEOUT, value });
            }
            (b"-i" | b"--id", _) if !is_topo => {
                let list = lossy(needed(&ID)?);
                said.ids.extend(list.split(',').map(|id| id.trim().to_owned()));
            }
            // `nvidia-smi topo -m` shows the matrix, and so do we.
            (b"-m" | b"--matrix", None) if is_topo => {}
            _ => return Err(UsageError::UnknownTo { command, word: lossy(word) }),
        }
    }
    Ok(said)
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
    let bad = || UsageError::BadValue {
        option: &DEVICE_TYPE,
        origin: Origin::Option(DEVICE_TYPE.long),
        value: lossy(value),
    };
    value.to_str().and_then(|word| word.parse().ok()).ok_or_else(bad)
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::fake::FakeWorld;

    fn told(line: &str) -> Result<Command, String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let facts = FakeWorld::new().facts(&[("RANKRUN_PROBE_TIMEOUT", "7")]);
        interpret(&words, &facts).map_err(|error| error.render())
    }

    #[test]
    fn inspect_options_are_accepted_in_any_order() {
        let limit = Duration::from_secs(7);
        let inspect = |subject, manner| Ok(Command::Inspect(Inspect { subject, manner, limit }));
        let devices = |kind, manner| inspect(Subject::Devices { kind, ids: Vec::new() }, manner);
        let some = |ids: &[&str]| {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            inspect(Subject::Devices { kind: None, ids }, Manner::Text)
        };
        let every = |seconds| Manner::Watch(Duration::from_secs_f64(seconds));
        for (line, command) in [
            ("devices", devices(None, Manner::Text)),
            ("devices --json", devices(None, Manner::Json)),
            ("devices --watch", devices(None, every(2.0))),
            ("devices --watch=0.5 --device-type cuda", devices(Some(DeviceType::Cuda), every(0.5))),
            ("devices --device_type=rocm --json", devices(Some(DeviceType::Rocm), Manner::Json)),
            ("devices -i 1", some(&["1"])),
            ("devices --id=0,GPU-77 -i 0000:1b:00.0", some(&["0", "GPU-77", "0000:1b:00.0"])),
            ("topo", inspect(Subject::Topo, Manner::Text)),
            ("topo -m", inspect(Subject::Topo, Manner::Text)),
            ("topo --matrix --json", inspect(Subject::Topo, Manner::Json)),
            ("topo --json", inspect(Subject::Topo, Manner::Json)),
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
    fn unknown_inspect_argument_is_named() {
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
            ("devices --probe-timeout", "`--probe-timeout` needs a value"),
            ("topo --probe-timeout=0", "`--probe-timeout`"),
            ("devices -i", "`--id` needs a value"),
            ("devices --jsn", "did you mean `--json`?"),
            ("devices --type cuda", "did you mean `--device-type`?"),
            ("devices -l 1", "`--watch=1`"),
            ("topo -i 1", "does not know `-i`"),
            ("topo --watch", "`rankrun topo` does not know `--watch`"),
            ("topo --device-type cuda", "does not know `--device-type`"),
        ] {
            let error = told(line).unwrap_err();
            assert!(error.contains(part) && error.contains("\nhint: "), "`{line}`: {error}");
        }
    }
}
