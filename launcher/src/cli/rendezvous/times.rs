//! How long nodes are waited for: `--lease`, and `--join-timeout` and `--last-call`, which say the same as keys of
//! `--rdzv-conf` in the way that our other times are said.

use std::ffi::OsStr;
use std::time::Duration;

use super::conf::{Conf, ConfItem};
use crate::cli::contradiction::{refuse_pair, without_effect};
use crate::cli::error::{CliError, Expected, Origin, Problem, hint_for_time};
use crate::cli::option::FromText;
use crate::cli::settings::{Setting, Settings};
use crate::cli::values::{parse_time, time};
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::rendezvous::RoundTimes;

const LEASE: Expected = Expected::new("a time of 2 s or more such as `5s`", "5s").advised(hint_for_time);

/// Options without a meaning for a job of one node.
pub(super) const OF_SEVERAL_NODES: [&str; 5] =
    ["lease", "join-timeout", "last-call", "exclude-node", "exclude-node-after"];
/// Options without a meaning for a static job, which has exactly N nodes.
pub(super) const OF_C10D: [&str; 3] = ["last-call", "exclude-node", "exclude-node-after"];
/// A try to connect takes up to a second, in which no beat is sent, and a packet that is lost is sent again after some
/// tenths of one.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);
const SAID_TWICE: Problem =
    Problem { text: "both say the same thing, and differ", hint: "leave one of them out" };

/// A time that is long enough for a lease.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct LeaseTime(Duration);

impl FromText for LeaseTime {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(parse_time).filter(|time| *time >= SHORTEST_LEASE).map(Self)
    }

    fn expected() -> Option<Expected> {
        Some(LEASE)
    }
}

/// Refuses what has no effect on this job.
///
/// A file or a variable holds for many jobs; one of them may well be tried on one node.
///
/// # Errors
/// See above.
pub(super) fn refuse_idle(settings: &Settings<'_>, options: &[&str]) -> Result<(), CliError> {
    for option in options {
        let Some(found) = settings.find(option) else { continue };
        let is_tried = |option| settings.find(option).is_some_and(|other| !other.is_of_file());
        if found.is_of_file() && (is_tried("nnodes") || is_tried("standalone")) {
            continue;
        }
        let missing = if OF_C10D.contains(option) { "`--rdzv-backend c10d`" } else { "`--nnodes` above 1" };
        without_effect(found.origin, missing)?;
    }
    Ok(())
}

/// The times of a rendezvous: the options over what `--rdzv-conf` says.
///
/// # Errors
/// Times that cannot be read, or are too short, and two that contradict each other.
pub(super) fn resolve_times(settings: &Settings<'_>, conf: Conf) -> Result<RoundTimes, CliError> {
    let Conf { mut times, join, last_call, has_read_timeout, .. } = conf;
    if let Some(Setting { value: LeaseTime(lease), .. }) = settings.get(&settings.args.lease) {
        times.lease = lease;
    }
    times.join = over(times.join, join, time(settings, &settings.args.join_timeout))?;
    times.last_call = over(times.last_call, last_call, time(settings, &settings.args.last_call))?;
    // The node that hosts may come as late as any other; torchrun gives it less time.
    let waits_for_host = settings.cli_flavor == CliFlavor::Rankrun && !has_read_timeout;
    times.connect = if waits_for_host { times.join } else { times.read };
    Ok(times)
}

/// The value that counts: that of the option, unless the item stands where more is decided.
fn over(
    of_conf: Duration,
    item: Option<ConfItem>,
    option: Option<Setting<Duration>>,
) -> Result<Duration, CliError> {
    let (Some(said), Some(option)) = (item, option.clone()) else {
        return Ok(option.map_or(of_conf, |option| option.value));
    };
    if option.value == of_conf {
        return Ok(of_conf);
    }
    let option_counts = weight(&option.origin) >= weight(&said.origin);
    let shown = Setting { origin: option.origin, value: humantime::format_duration(option.value) };
    refuse_pair(shown, Setting { origin: said.origin, value: said.item }, SAID_TWICE)?;
    Ok(if option_counts { option.value } else { of_conf })
}

const fn weight(origin: &Origin) -> u8 {
    match origin {
        Origin::Option(_) => 2,
        Origin::Variable(_) => 1,
        Origin::File(_) => 0,
    }
}
