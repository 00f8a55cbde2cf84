//! The syntax of `--rdzv-conf`, and the types of the keys that torch reads (contract 1.7).
//!
//! Nothing in it changes a job of one node, which waits for nobody; what torchrun refuses is refused all the same.

use crate::cli::error::{CliError, ConfProblem, Origin, SettingError};
use crate::cli::python_text::{parse_float, parse_int};
use crate::cli::settings::{Setting, Settings};
use crate::cli::torchrun::RDZV_CONF;

/// Settings of the rendezvous that have options of their own; torchrun fails on them.
const RESERVED_KEYS: [&str; 6] = ["backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"];

/// What the value of a key must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whole seconds, or a count, above zero.
    Positive,
    /// Seconds, zero included.
    Backoff,
    /// Whether this node hosts the store.
    IsHost,
    /// `tcp` or `file`.
    StoreType,
}

/// The keys that a rendezvous reads; it takes no notice of others.
pub(super) type Keys = &'static [(&'static str, Kind)];

pub(super) const STATIC_KEYS: Keys = &[("timeout", Kind::Positive)];
pub(super) const C10D_KEYS: Keys = &[
    ("join_timeout", Kind::Positive),
    ("last_call_timeout", Kind::Positive),
    ("close_timeout", Kind::Positive),
    ("heartbeat_timeout", Kind::Positive),
    // torchrun takes 0 for these two, and then never starts a worker.
    ("keep_alive_interval", Kind::Positive),
    ("keep_alive_max_attempt", Kind::Positive),
    ("cas_backoff_max_seconds", Kind::Backoff),
    ("read_timeout", Kind::Positive),
    ("is_host", Kind::IsHost),
    ("store_type", Kind::StoreType),
];

/// Refuses what torch cannot read, and what needs another node.
///
/// # Errors
/// See above.
pub(super) fn check_conf(settings: &Settings<'_>, keys: Keys) -> Result<(), CliError> {
    let Some(Setting { origin, value }) = settings.text(&RDZV_CONF)? else { return Ok(()) };
    let bad = |item: &str, problem| {
        let (origin, item) = (origin.clone(), item.to_owned());
        CliError::from(SettingError::RendezvousConf { origin, item, problem })
    };
    let items = parse_conf(&value).map_err(|(item, problem)| bad(item, problem))?;
    for (key, kind) in keys {
        // A key given twice: the last one counts.
        let Some((_, value)) = items.iter().rev().find(|(name, _)| name == key) else { continue };
        let item = format!("{key}={value}");
        match check_value(*kind, value) {
            Ok(Verdict::Fine) => {}
            Ok(Verdict::NeedsMore) => return Err(not_supported(&origin, item)),
            Err(problem) => return Err(bad(&item, problem)),
        }
    }
    Ok(())
}

fn not_supported(origin: &Origin, value: String) -> CliError {
    SettingError::NotSupported { origin: origin.clone(), value }.into()
}

/// `key=value,key=value` with blanks around both; only the first `=` splits.
fn parse_conf(text: &str) -> Result<Vec<(&str, &str)>, (&str, ConfProblem)> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let item = |item| match split_item(item) {
        ("", _) => Err((item, ConfProblem::NoKey)),
        (_, "") => Err((item, ConfProblem::NoValue)),
        (key, _) if RESERVED_KEYS.contains(&key) => Err((item, ConfProblem::Reserved)),
        pair => Ok(pair),
    };
    text.trim().split(',').map(item).collect()
}

fn split_item(item: &str) -> (&str, &str) {
    let (key, value) = item.split_once('=').unwrap_or((item, ""));
    (key.trim(), value.trim())
}

/// A value of the right kind.
enum Verdict {
    Fine,
    /// It asks for something that is not supported yet.
    NeedsMore,
}

fn check_value(kind: Kind, value: &str) -> Result<Verdict, ConfProblem> {
    let fine = |is: bool, problem| if is { Ok(Verdict::Fine) } else { Err(problem) };
    let lower = value.to_lowercase();
    match (kind, lower.as_str()) {
        (Kind::Positive, _) => fine(parse_int(value).is_some_and(|number| number > 0), ConfProblem::Positive),
        (Kind::Backoff, _) => {
            let is = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
            fine(parse_float(value).is_some_and(is), ConfProblem::Backoff)
        }
        (Kind::IsHost, "0" | "false" | "f" | "no" | "n") | (Kind::StoreType, "file") => {
            Ok(Verdict::NeedsMore)
        }
        (Kind::IsHost, word) => fine(matches!(word, "1" | "true" | "t" | "yes" | "y"), ConfProblem::YesOrNo),
        (Kind::StoreType, word) => fine(word == "tcp", ConfProblem::StoreType),
    }
}
