//! The document of `--report`: the end of the job with all that is known of its failure, as JSON. Pure.
//!
//! `docs/report.schema.json` describes it. What is unknown is left out. A field that is added keeps the version; one that
//! goes or gets another meaning raises it.

mod device;
mod failure;
mod hang;

use std::time::{Duration, SystemTime};

use serde::Serialize;

use rankrun_contract::rank::{JobId, NodeCount, NodeRank, RestartCount};
use rankrun_core::exit_code::{ExitStatus, code_of_signal};
use rankrun_core::plain::is_bidi_control;
use rankrun_core::posix::{Pid, Signal, signal_name};
use rankrun_core::rendezvous::note::{RuleEnd, RuleNote};

use crate::reporter::summary::timestamp;

pub(crate) use failure::{FailureRecord, LauncherFailure, launcher_failure, local_failure, remote_failure};

/// Raised when a reader of the last version would misunderstand the document.
const VERSION: u32 = 1;

/// What is known of the job beside its failure.
#[derive(Debug, Clone)]
pub(crate) struct JobEnd<'a> {
    pub job: &'a JobId,
    pub run_id: &'a str,
    pub host: &'a str,
    /// The rank of this node and the number of nodes, if a round was completed.
    pub place: Option<(NodeRank, NodeCount)>,
    /// The process that the user started.
    pub launcher: Pid,
    pub started: SystemTime,
    pub ended: SystemTime,
    pub status: ExitStatus,
    /// The signal by which the launcher was told to stop, if that ended the job.
    pub stopped_by: Option<Signal>,
    /// Restarts used, and how many there were.
    pub restarts: (RestartCount, RestartCount),
    /// The rule that decided the outcome.
    pub rule: Option<&'a RuleNote>,
}

#[derive(Serialize)]
struct JobReport<'a> {
    version: u32,
    job: String,
    run_id: &'a str,
    node: NodeRecord<'a>,
    launcher: LauncherRecord,
    started: String,
    ended: String,
    seconds: f64,
    exit_code: u8,
    result: &'static str,
    stopped_by: Option<SignalRecord>,
    restarts: RestartRecord,
    rule: Option<RuleRecord<'a>>,
    failure: Option<&'a FailureRecord>,
    consequence: Option<&'a FailureRecord>,
}

#[derive(Serialize)]
struct NodeRecord<'a> {
    name: &'a str,
    rank: Option<u32>,
    nodes: Option<u32>,
}

#[derive(Serialize)]
struct LauncherRecord {
    version: &'static str,
    pid: i32,
}

#[derive(Serialize)]
struct SignalRecord {
    signal: i32,
    name: String,
}

#[derive(Serialize)]
struct RestartRecord {
    used: u32,
    allowed: u32,
}

#[derive(Serialize)]
struct RuleRecord<'a> {
    text: &'a str,
    then: RuleEnd,
}

/// The document. `failure` is the first cause; where that was on another node, `consequence` is the failure here.
#[must_use]
pub(crate) fn render(
    end: &JobEnd<'_>,
    failure: Option<&FailureRecord>,
    consequence: Option<&FailureRecord>,
) -> String {
    let (used, allowed) = end.restarts;
    let report = JobReport {
        version: VERSION,
        job: end.job.to_string(),
        run_id: end.run_id,
        node: NodeRecord {
            name: end.host,
            rank: end.place.map(|(rank, _)| rank.0),
            nodes: end.place.map(|(_, nodes)| nodes.get()),
        },
        launcher: LauncherRecord { version: env!("CARGO_PKG_VERSION"), pid: end.launcher.as_raw() },
        started: timestamp(end.started),
        ended: timestamp(end.ended),
        seconds: seconds(end.ended.duration_since(end.started).unwrap_or_default()),
        exit_code: match end.status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => code_of_signal(signal),
        },
        result: match end.stopped_by {
            _ if end.status == ExitStatus::SUCCESS => "succeeded",
            Some(_) => "stopped",
            None => "failed",
        },
        stopped_by: end
            .stopped_by
            .map(|signal| SignalRecord { signal: signal as i32, name: signal_name(signal as i32) }),
        restarts: RestartRecord { used: used.0, allowed: allowed.0 },
        rule: end.rule.map(|rule| RuleRecord { text: &rule.text, then: rule.then }),
        failure,
        consequence,
    };
    let mut text =
        with_controls_escaped(&without_unknown(&serde_json::to_string_pretty(&report).unwrap_or_default()));
    text.push('\n');
    text
}

/// To the millisecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// A list that is not empty.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}

/// Removes the fields that are null; each field has a line. The order of the fields stays.
fn without_unknown(json: &str) -> String {
    let is_null = |line: &str| line.trim_end_matches(',').ends_with("\": null");
    let mut kept: Vec<&str> = Vec::new();
    for line in json.lines().filter(|line| !is_null(line)) {
        // The last field of an object was removed.
        if line.trim_start().starts_with('}')
            && let Some(last) = kept.last_mut()
        {
            *last = last.trim_end_matches(',');
        }
        kept.push(line);
    }
    kept.join("\n")
}

/// JSON escapes the controls of ASCII; a terminal obeys others too.
fn with_controls_escaped(json: &str) -> String {
    let is_safe = |letter: char| letter == '\n' || !(letter.is_control() || is_bidi_control(letter));
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_safe(letter) {
            text.push(letter);
        } else {
            text.push_str(&format!("\\u{:04x}", u32::from(letter)));
        }
    }
    text
}

#[cfg(test)]
#[path = "job_report_tests.rs"]
mod tests;
