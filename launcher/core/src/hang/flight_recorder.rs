//! Reads a trace of PyTorch's flight recorder: an answer of its control plane, in JSON or as a pickle, or a dump file.
//!
//! The fields are those of the recorder's format 2.10. A field that is missing has no meaning here; a count that is
//! missing is 0. gloo leaves `state` at `scheduled`, so `retired` says whether a collective is over; the legacy group of
//! NCCL retires collectives that have timed out too, and `state` tells them apart. gloo's `pg_config`
//! has only the last group, without a name. gloo's `last_completed_collective` may stay behind for ever, although all
//! collectives are retired: two threads write it. So it proves no wait.
//!
//! Source: `torch/csrc/distributed/c10d/FlightRecorderDetail.hpp`.

use std::collections::{BTreeMap, BTreeSet};

use rankrun_contract::rank::Rank;
use serde::Deserialize;

use crate::hang::evidence::{Collective, GroupActivity, Groups, MessageCounts};
use crate::hang::pickle::{PickleError, from_pickle};

/// No answer is longer, in bytes. 2,000 collectives are about 1 MiB.
pub const MAX_TRACE: usize = 16 << 20;
/// The collectives of one group that are kept.
const MAX_RECENT: usize = 64;
/// The groups of one rank that are kept. A rank of a large job is in about ten.
const MAX_GROUPS: usize = 256;
const MAX_NAME: usize = 128;
/// The description of the group of all ranks.
const DEFAULT_GROUP: &str = "default_pg";
/// The description of a group that has none.
const NO_DESCRIPTION: &str = "undefined";
/// The state of a collective that is over.
const COMPLETED: &str = "completed";
/// What the names of collectives begin with in the process group that was the only one for NCCL before PyTorch 2.15.
const LEGACY_NCCL: &str = "nccl:";

/// Why an answer of the flight recorder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("the flight recorder's answer of {0} bytes is longer than {MAX_TRACE} bytes")]
    TooLong(usize),
    #[error("the flight recorder's answer is not a trace in JSON")]
    Json(#[from] serde_json::Error),
    #[error("the flight recorder's trace cannot be read: {0}")]
    Pickle(#[from] PickleError),
}

#[derive(Deserialize)]
struct Trace {
    #[serde(default)]
    entries: Vec<RecordedCall>,
    #[serde(default)]
    pg_config: BTreeMap<String, GroupConfig>,
    #[serde(default)]
    pg_status: BTreeMap<String, GroupStatus>,
}

#[derive(Deserialize)]
struct RecordedCall {
    /// Name and description.
    #[serde(default)]
    process_group: Vec<String>,
    #[serde(default)]
    pg_id: u64,
    collective_seq_id: u64,
    #[serde(default)]
    op_id: u64,
    #[serde(default)]
    profiling_name: String,
    #[serde(default)]
    input_sizes: Vec<Vec<u64>>,
    #[serde(default)]
    state: String,
    #[serde(default)]
    retired: bool,
    #[serde(default)]
    is_p2p: bool,
}

impl RecordedCall {
    fn is_over(&self) -> bool {
        let is_completed = self.state == COMPLETED;
        is_completed
            || self.retired && (self.state.is_empty() || !self.profiling_name.starts_with(LEGACY_NCCL))
    }
}

#[derive(Deserialize)]
struct GroupConfig {
    #[serde(default)]
    ranks: String,
}

#[derive(Deserialize, Default)]
struct GroupStatus {
    #[serde(default)]
    last_enqueued_collective: Count,
}

/// A group of the entries, before its counts are known.
#[derive(Default)]
struct RecordedGroup {
    name: String,
    activity: GroupActivity,
    /// The last collective that is over.
    last_over: u64,
    /// Those that are not. The program has gone past the ones before the last that is over, such as a call without a `wait`.
    unfinished: BTreeSet<u64>,
}

/// A count as number or as text; -1 before the first.
#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Count {
    Number(i64),
    Text(String),
    #[default]
    Missing,
}

impl Count {
    fn value(&self) -> u64 {
        let value = match self {
            Self::Number(number) => *number,
            Self::Text(text) => text.parse().unwrap_or(0),
            Self::Missing => 0,
        };
        u64::try_from(value).unwrap_or(0)
    }
}

/// The groups of the rank that the answer comes from.
///
/// # Errors
/// The answer is too long or is not a trace.
pub fn parse_trace(text: &[u8]) -> Result<Groups, TraceError> {
    if text.len() > MAX_TRACE {
        return Err(TraceError::TooLong(text.len()));
    }
    Ok(groups_of(&serde_json::from_slice(text)?))
}

/// As [`parse_trace`], for a pickle, as older recorders answer and all write into files.
///
/// # Errors
/// It is too long, is not a pickle of plain data, or not a trace.
pub fn parse_pickled_trace(bytes: &[u8]) -> Result<Groups, TraceError> {
    Ok(groups_of(&from_pickle(bytes)?))
}

fn groups_of(trace: &Trace) -> Groups {
    let mut recorded: BTreeMap<u64, RecordedGroup> = BTreeMap::new();
    for entry in &trace.entries {
        recorded.entry(entry.pg_id).or_default().record(entry);
    }
    for (id, status) in &trace.pg_status {
        // The ring may have dropped all entries of a group. Its name is not known then.
        let Ok(id) = id.parse::<u64>() else { continue };
        if let Some(group) = recorded.get_mut(&id) {
            group.record_status(status);
        }
    }
    // In ascending order of ids: a group that was made anew with the same name replaces the old one.
    let mut groups: Groups = recorded.into_values().map(RecordedGroup::into_named).collect();
    while groups.len() > MAX_GROUPS {
        groups.pop_last();
    }
    for (name, config) in &trace.pg_config {
        if let Some(group) = groups.get_mut(name) {
            group.members = parse_ranks(&config.ranks);
        }
    }
    groups
}

impl RecordedGroup {
    fn record(&mut self, entry: &RecordedCall) {
        let name = entry.process_group.first().map_or("", String::as_str);
        if self.name.is_empty() {
            self.name = cut(name);
        }
        let description = entry.process_group.get(1).map_or("", String::as_str);
        let group = &mut self.activity;
        group.is_world |= description == DEFAULT_GROUP;
        if ![DEFAULT_GROUP, NO_DESCRIPTION].contains(&description) {
            group.description = cut(description);
        }
        if entry.is_p2p {
            let MessageCounts { called, finished } = &mut group.messages;
            *called = entry.op_id.max(*called);
            *finished += u64::from(entry.is_over());
            return;
        }
        let sequence = entry.collective_seq_id;
        if entry.is_over() {
            self.last_over = self.last_over.max(sequence);
        } else {
            self.unfinished.insert(sequence);
        }
        group.enqueued = group.enqueued.max(sequence);
        push_recent(group, entry);
    }

    /// What the status tells of a group whose entries are messages alone.
    fn record_status(&mut self, status: &GroupStatus) {
        if self.activity.recent.is_empty() {
            self.activity.enqueued = status.last_enqueued_collective.value();
        }
    }

    fn into_named(mut self) -> (String, GroupActivity) {
        let pending = self.unfinished.range(self.last_over.saturating_add(1)..).next();
        self.activity.completed = pending.map_or(self.activity.enqueued, |first| first.saturating_sub(1));
        (self.name, self.activity)
    }
}

/// Coalesced calls share a number: the first one stands for them.
fn push_recent(group: &mut GroupActivity, entry: &RecordedCall) {
    let sequence = entry.collective_seq_id;
    let Err(at) = group.recent.binary_search_by_key(&sequence, |collective| collective.sequence) else {
        return;
    };
    let name = entry.profiling_name.split_once(':').map_or(entry.profiling_name.as_str(), |(_, name)| name);
    let elements = has_equal_inputs(name).then(|| count_elements(&entry.input_sizes)).flatten();
    group.recent.insert(at, Collective { sequence, name: cut(name), elements });
    if group.recent.len() > MAX_RECENT {
        group.recent.remove(0);
    }
}

/// Whether all ranks must pass inputs of one size.
fn has_equal_inputs(name: &str) -> bool {
    ["all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"].contains(&name)
}

fn count_elements(sizes: &[Vec<u64>]) -> Option<u64> {
    let tensor = |sizes: &Vec<u64>| sizes.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
    sizes.iter().map(tensor).try_fold(0_u64, |all, one| all.checked_add(one?))
}

/// `[0, 1, 5]`, as Python prints a list.
fn parse_ranks(text: &str) -> Option<BTreeSet<Rank>> {
    let list = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    list.split(',').map(|rank| rank.trim().parse().ok().map(Rank)).collect()
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hang::flight_recorder::recorded::{dump, trace};

    #[test]
    fn pending_collective_of_gloo_is_read_from_recorded_trace() {
        let groups = parse_trace(trace("missing", 0)).unwrap();
        let all = &groups["0"];
        assert_eq!((all.enqueued, all.completed, all.pending()), (5, 4, Some(5)));
        let waits = all.collective(5).unwrap();
        assert_eq!((waits.name.as_str(), waits.elements), ("all_reduce", Some(4)));
        assert_eq!(all.collective(4).unwrap().name, "barrier");
        assert_eq!(groups["1"].pending(), None);
        assert_eq!(parse_trace(trace("missing", 2)).unwrap()["0"].pending(), None);
    }

    #[test]
    fn dump_of_gloo_has_groups_of_its_answer() {
        for rank in 0..3 {
            let answer = parse_trace(trace("missing", rank)).unwrap();
            assert_eq!(parse_pickled_trace(dump(rank)).unwrap(), answer, "rank {rank}");
        }
        assert!(matches!(parse_pickled_trace(b"\x80\x02cos\nsystem\n."), Err(TraceError::Pickle(_))));
        assert!(matches!(parse_pickled_trace(b"\x80\x02K\x01."), Err(TraceError::Pickle(_))));
    }

    /// NCCL's legacy group retires what its watchdog has given up, and a call that is over may not be retired yet.
    #[test]
    fn collective_of_nccl_is_over_by_its_state() {
        let call = |sequence: u64, library: &str, state: &str, retired: bool| {
            format!(
                r#"{{"process_group": ["0", "default_pg"], "collective_seq_id": {sequence}, "state": "{state}",
                    "profiling_name": "{library}:all_reduce", "retired": {retired}}}"#
            )
        };
        let pending =
            |last: String| groups_from(&[call(1, "nccl", "completed", false), last], "")["0"].pending();
        assert_eq!(pending(call(2, "nccl", "started", true)), Some(2));
        assert_eq!(pending(call(2, "nccl", "scheduled", false)), Some(2));
        assert_eq!(pending(call(2, "nccl", "completed", true)), None);
        assert_eq!(pending(call(2, "gloo", "scheduled", true)), None);
        // Recorded by the hook of a group that does not tell of completion.
        assert_eq!(pending(call(2, "nccl2", "scheduled", true)), None);
    }

    #[test]
    fn members_are_read_where_group_is_named() {
        let text = br#"{"entries": [{"process_group": ["7", "dp"], "pg_id": 3, "collective_seq_id": 2,
            "profiling_name": "nccl:all_reduce", "input_sizes": [[2, 3], [4]], "retired": false}],
            "pg_config": {"7": {"ranks": "[1, 5]"}}}"#;
        let groups = parse_trace(text).unwrap();
        let group = &groups["7"];
        assert_eq!(group.members, Some([Rank(1), Rank(5)].into()));
        assert_eq!((group.description.as_str(), group.pending()), ("dp", Some(2)));
        assert_eq!(group.collective(2).unwrap().elements, Some(10));
    }

    /// An entry of the group with this id and name: a collective, or a message between two ranks.
    fn entry((id, name): (u64, &str), number: u64, is_p2p: bool, retired: bool) -> String {
        format!(
            r#"{{"process_group": ["{name}", "default_pg"], "pg_id": {id}, "collective_seq_id": {number},
                "op_id": {number}, "profiling_name": "gloo:all_reduce", "is_p2p": {is_p2p}, "retired": {retired}}}"#
        )
    }

    fn groups_from(entries: &[String], status: &str) -> Groups {
        let text = format!(r#"{{"entries": [{}], "pg_status": {{{status}}}}}"#, entries.join(","));
        parse_trace(text.as_bytes()).unwrap()
    }

    /// As a gloo job answers whose threads write the last completed collective in the wrong order.
    #[test]
    fn status_that_stays_behind_retired_entries_is_no_wait() {
        let entries: Vec<String> = (1..=40).map(|number| entry((0, "0"), number, false, true)).collect();
        let status = r#""0": {"last_enqueued_collective": "40", "last_completed_collective": "38"}"#;
        let group = &groups_from(&entries, status)["0"];
        assert_eq!((group.enqueued, group.completed, group.pending()), (40, 40, None));
    }

    #[test]
    fn lowest_unretired_entry_behind_last_retired_one_is_pending() {
        // The rank has gone past a call that never retires.
        let entries = [(7, true), (8, false), (9, true), (10, false), (11, false)];
        let entries = entries.map(|(number, retired)| entry((0, "0"), number, false, retired));
        let status = r#""0": {"last_enqueued_collective": "11", "last_completed_collective": "7"}"#;
        assert_eq!(groups_from(&entries, status)["0"].pending(), Some(10));
    }

    #[test]
    fn status_of_group_without_entries_is_skipped() {
        let status = r#""1": {"last_enqueued_collective": "3", "last_completed_collective": "-1"}"#;
        let groups = groups_from(&[entry((2, "5"), 9, false, true)], status);
        assert_eq!(groups.into_keys().collect::<Vec<_>>(), ["5"]);
    }

    #[test]
    fn group_made_anew_replaces_old_one_of_its_name() {
        let old = (1..=20).map(|number| entry((0, "0"), number, false, number < 20));
        let new = (1..=3).map(|number| entry((1, "0"), number, false, true));
        let group = &groups_from(&old.chain(new).collect::<Vec<_>>(), "")["0"];
        assert_eq!((group.enqueued, group.pending()), (3, None));
    }

    #[test]
    fn messages_are_counted_and_never_pending() {
        let status = r#""0": {"last_enqueued_collective": "4", "last_completed_collective": "3"}"#;
        let entries = [entry((0, "0"), 5, true, true), entry((0, "0"), 6, true, false)];
        let group = &groups_from(&entries, status)["0"];
        assert_eq!(group.messages, MessageCounts { called: 6, finished: 1 });
        assert_eq!((group.enqueued, group.pending(), group.recent.len()), (4, None, 0));
    }

    #[test]
    fn bad_answer_is_an_error() {
        for text in [b"".as_slice(), b"3", b"{\"entries\": 3}", b"\xff", &[b'['; 100_000]] {
            assert!(parse_trace(text).is_err());
        }
        assert!(matches!(parse_trace(&vec![b' '; MAX_TRACE + 1]), Err(TraceError::TooLong(_))));
        assert!(parse_trace(b"{}").unwrap().is_empty());
    }

    #[test]
    fn sizes_that_overflow_have_no_count() {
        assert_eq!(count_elements(&[vec![u64::MAX, 2]]), None);
        assert_eq!(count_elements(&[]), Some(0));
    }
}

#[cfg(test)]
pub(super) mod recorded;
