//! The verdict on workers without progress, as data.

use std::collections::BTreeSet;

use serde::Serialize;

use rankrun_contract::rank::Rank;
use rankrun_core::hang::verdict::{Activity, RankStatus, Verdict, Wait};

use super::seconds;

/// A verdict. Which fields there are depends on its word.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct HangRecord {
    verdict: &'static str,
    /// Of a hang or a straggler: the collectives that ranks wait in.
    waits: Option<Vec<WaitRecord>>,
    /// Of a hang: the ranks that wait in none; of a straggler: the ranks that are awaited and work.
    ranks: Option<Vec<RankRecord>>,
    /// Of a hang: a missing rank may be on another node.
    has_other_nodes: Option<bool>,
    /// Of a desync: the group, the place in the order of its collectives, and what each rank calls there.
    group: Option<String>,
    sequence: Option<u64>,
    calls: Option<Vec<CallRecord>>,
    seconds: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct WaitRecord {
    group: Option<String>,
    collective: Option<String>,
    sequence: u64,
    waiting: Vec<u32>,
    missing: Vec<u32>,
    place: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct RankRecord {
    rank: u32,
    activity: &'static str,
    step: Option<u64>,
    section: Option<String>,
    seconds: f64,
    place: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct CallRecord {
    ranks: Vec<u32>,
    collective: String,
    elements: Option<u64>,
    place: Option<String>,
}

/// The verdict as data; `None` if it is not about missing progress.
pub(super) fn hang_record(verdict: &Verdict) -> Option<HangRecord> {
    let none = HangRecord {
        verdict: "hang",
        waits: None,
        ranks: None,
        has_other_nodes: None,
        group: None,
        sequence: None,
        calls: None,
        seconds: None,
    };
    Some(match verdict {
        Verdict::Progress | Verdict::NotEnoughEvidence => return None,
        Verdict::Hang(hang) => HangRecord {
            waits: Some(hang.waits.iter().map(wait_record).collect()),
            ranks: Some(hang.silent.iter().map(rank_record).collect()),
            has_other_nodes: Some(hang.has_other_nodes),
            ..none
        },
        Verdict::Straggler(straggler) => HangRecord {
            verdict: "straggler",
            waits: Some(straggler.waits.iter().map(wait_record).collect()),
            ranks: Some(straggler.working.iter().map(rank_record).collect()),
            ..none
        },
        Verdict::Desync(desync) => {
            let calls = desync.calls.iter().map(|call| CallRecord {
                ranks: numbers(&call.ranks),
                collective: call.collective.name.clone(),
                elements: call.collective.elements,
                place: call.place.clone(),
            });
            HangRecord {
                verdict: "desync",
                group: known(&desync.group),
                sequence: Some(desync.sequence),
                calls: Some(calls.collect()),
                // In a dump the time is not known.
                seconds: Some(seconds(desync.since)).filter(|seconds| *seconds > 0.0),
                ..none
            }
        }
    })
}

fn wait_record(wait: &Wait) -> WaitRecord {
    WaitRecord {
        group: known(&wait.group),
        collective: wait.name.clone(),
        sequence: wait.sequence,
        waiting: numbers(&wait.waiting),
        missing: numbers(&wait.missing),
        place: wait.place.clone(),
    }
}

fn rank_record(status: &RankStatus) -> RankRecord {
    let (activity, step, section) = match &status.activity {
        Activity::Finished => ("finished", None, None),
        Activity::Step { step, section } => ("step", Some(*step), section.clone()),
        Activity::Recorded => ("recorded", None, None),
        Activity::NoCollective => ("no_collective", None, None),
        Activity::Unanswered => ("unanswered", None, None),
        Activity::Unknown => ("unknown", None, None),
    };
    let (seconds, place) = (seconds(status.since), status.place.clone());
    RankRecord { rank: status.rank.0, activity, step, section, seconds, place }
}

fn numbers(ranks: &BTreeSet<Rank>) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

fn known(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}
