//! The syntax of `--rdzv-conf`, and the keys that torch reads (contract 1.7).

use std::time::Duration;

use crate::cli::error::{CliError, Origin, Problem, SettingError};
use crate::cli::python_text::{parse_float, parse_int};
use crate::cli::settings::{Setting, Settings};
use crate::cli::suggest::nearest_of;
use rankrun_core::notice::Notice;
use rankrun_core::spec::rendezvous::RoundTimes;
use rankrun_core::spec::{CliFlavor, MAX_DURATION};

/// Settings of the rendezvous that have options of their own; torchrun fails on them.
const RESERVED_KEYS: [&str; 6] = ["backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"];

/// What a key sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Timeout,
    Join,
    LastCall,
    Close,
    /// One heartbeat may take so long; ours are never waited for.
    Heartbeat,
    KeepAlive,
    Attempts,
    Backoff,
    Read,
    IsHost,
    StoreType,
}

/// The keys that a rendezvous reads; it takes no notice of others.
pub(super) type Keys = &'static [(&'static str, Key)];

pub(super) const STATIC_KEYS: Keys = &[("timeout", Key::Timeout)];
pub(super) const C10D_KEYS: Keys = &[
    ("join_timeout", Key::Join),
    ("last_call_timeout", Key::LastCall),
    ("close_timeout", Key::Close),
    ("heartbeat_timeout", Key::Heartbeat),
    // torchrun takes 0 for these two, and then never starts a worker.
    ("keep_alive_interval", Key::KeepAlive),
    ("keep_alive_max_attempt", Key::Attempts),
    ("cas_backoff_max_seconds", Key::Backoff),
    ("read_timeout", Key::Read),
    ("is_host", Key::IsHost),
    ("store_type", Key::StoreType),
];

/// What `--rdzv-conf` says, over the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conf {
    /// How long each step may take.
    pub(super) times: RoundTimes,
    /// Whether this node opens the store.
    pub(super) is_host: Option<ConfItem>,
    /// The item that says how long to wait for nodes.
    pub(super) join: Option<ConfItem>,
    /// The item that says how long the last call is.
    pub(super) last_call: Option<ConfItem>,
    /// An item says how long the store may take.
    pub(super) has_read_timeout: bool,
}

/// An item, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfItem {
    pub(super) origin: Origin,
    /// `key=value`
    pub(super) item: String,
    /// Of `is_host`.
    pub(super) yes: bool,
}

/// Reads the keys of one kind of rendezvous over these defaults.
///
/// # Errors
/// What torch cannot read, and a store in a file.
pub(super) fn read_conf(settings: &Settings<'_>, keys: Keys, defaults: RoundTimes) -> Result<Conf, CliError> {
    let mut conf =
        Conf { times: defaults, is_host: None, join: None, last_call: None, has_read_timeout: false };
    let Some(Setting { origin, value }) = settings.get(&settings.args.torchrun.rdzv_conf) else {
        return Ok(conf);
    };
    let items = parse_conf(&value).map_err(|(item, problem)| item_error(origin.clone(), item, problem))?;
    for (name, key) in keys {
        // A key given twice: the last one counts.
        let Some((_, value)) = items.iter().rev().find(|(given, _)| given == name) else { continue };
        let item = format!("{name}={value}");
        let yes = match conf.set(*key, value) {
            Ok(yes) => yes,
            Err(FILE_STORE) => return Err(SettingError::not_supported(origin, &item).into()),
            Err(problem) => return Err(item_error(origin, &item, problem).into()),
        };
        let conf_item = ConfItem { origin: origin.clone(), item, yes };
        match key {
            Key::IsHost => conf.is_host = Some(conf_item),
            Key::Join | Key::Timeout => conf.join = Some(conf_item),
            Key::LastCall => conf.last_call = Some(conf_item),
            Key::Read => conf.has_read_timeout = true,
            _ => {}
        }
    }
    Ok(conf)
}

/// A warning for each key that nothing reads; torchrun takes no notice of it.
pub(super) fn unknown_key_notices(settings: &Settings<'_>) -> Result<Vec<Notice>, CliError> {
    let found =
        settings.get(&settings.args.torchrun.rdzv_conf).filter(|_| settings.cli_flavor == CliFlavor::Rankrun);
    let Some(Setting { origin, value }) = found else { return Ok(Vec::new()) };
    let all = || STATIC_KEYS.iter().chain(C10D_KEYS).map(|(name, _)| *name);
    let items = parse_conf(&value).unwrap_or_default();
    let unknown = items.iter().filter(|(key, _)| !all().any(|name| name == *key));
    let notice = |(key, _): &(&str, &str)| Notice::UnknownConfKey {
        origin: origin.clone(),
        key: (*key).to_owned(),
        nearest: nearest_of(key, all()),
    };
    Ok(unknown.map(notice).collect())
}

/// An item of `--rdzv-conf` that torchrun could not read either.
pub(super) fn item_error(origin: Origin, item: &str, problem: Problem) -> SettingError {
    SettingError::of_origin(origin, format!("has the item `{item}`, {}", problem.text), problem.hint)
}

const NO_KEY: Problem = Problem { text: "which has no key", hint: "write `key=value,key=value`" };
const NO_VALUE: Problem = Problem { text: "which has no value", ..NO_KEY };
const RESERVED: Problem =
    Problem { text: "whose key has an option of its own", hint: "give it by that option" };
const NOT_POSITIVE: Problem = Problem {
    text: "whose value is not a whole number above 0",
    hint: "write it without a unit, as in `join_timeout=600` (seconds)",
};
const NO_BACKOFF: Problem = Problem {
    text: "whose value is not a number of seconds from 0 up",
    hint: "write it as in `cas_backoff_max_seconds=1.5`",
};
const NOT_YES_OR_NO: Problem =
    Problem { text: "whose value is neither `true` nor `false`", hint: "write `is_host=1` or `is_host=0`" };
const NO_STORE_TYPE: Problem = Problem {
    text: "whose value is neither `tcp` nor `file`",
    hint: "leave the key out: the store is `tcp`",
};
/// It asks for something that is not supported yet.
const FILE_STORE: Problem = Problem { text: "a store in a file", ..NO_STORE_TYPE };
/// `is_host=0` where no other node can be the host.
pub(super) const NO_HOST: Problem = Problem {
    text: "and a job of one node has no other node to host the store",
    hint: "leave `is_host` out",
};

impl Conf {
    /// Takes a value; whether it is a yes, where it is one of the two.
    fn set(&mut self, key: Key, value: &str) -> Result<bool, Problem> {
        let times = &mut self.times;
        match key {
            Key::Timeout | Key::Join => times.join = seconds(value)?,
            Key::LastCall => times.last_call = seconds(value)?,
            Key::Close => times.close = seconds(value)?,
            Key::Heartbeat => {
                seconds(value)?;
            }
            Key::KeepAlive => times.keep_alive = seconds(value)?,
            Key::Attempts => {
                times.keep_alive_attempts = u32::try_from(positive(value)?).unwrap_or(u32::MAX);
            }
            Key::Backoff => times.cas_backoff = backoff(value)?,
            Key::Read => times.read = seconds(value)?,
            Key::IsHost => return is_yes(value),
            Key::StoreType => check_store_type(value)?,
        }
        Ok(false)
    }
}

fn positive(value: &str) -> Result<u64, Problem> {
    let number = parse_int(value).filter(|number| *number > 0).ok_or(NOT_POSITIVE)?;
    Ok(u64::try_from(number).unwrap_or(u64::MAX))
}

fn seconds(value: &str) -> Result<Duration, Problem> {
    Ok(Duration::from_secs(positive(value)?).min(MAX_DURATION))
}

fn backoff(value: &str) -> Result<Duration, Problem> {
    let seconds = parse_float(value).filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    let seconds = seconds.ok_or(NO_BACKOFF)?;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(MAX_DURATION).min(MAX_DURATION))
}

fn is_yes(value: &str) -> Result<bool, Problem> {
    match value.to_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Ok(true),
        "0" | "false" | "f" | "no" | "n" => Ok(false),
        _ => Err(NOT_YES_OR_NO),
    }
}

fn check_store_type(value: &str) -> Result<(), Problem> {
    match value.to_lowercase().as_str() {
        "tcp" => Ok(()),
        "file" => Err(FILE_STORE),
        _ => Err(NO_STORE_TYPE),
    }
}

/// `key=value,key=value` with blanks around both; only the first `=` splits.
fn parse_conf(text: &str) -> Result<Vec<(&str, &str)>, (&str, Problem)> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let item = |item| match split_item(item) {
        ("", _) => Err((item, NO_KEY)),
        (_, "") => Err((item, NO_VALUE)),
        (key, _) if RESERVED_KEYS.contains(&key) => Err((item, RESERVED)),
        pair => Ok(pair),
    };
    text.trim().split(',').map(item).collect()
}

fn split_item(item: &str) -> (&str, &str) {
    let (key, value) = item.split_once('=').unwrap_or((item, ""));
    (key.trim(), value.trim())
}
