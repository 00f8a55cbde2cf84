//! What NCCL's RAS subsystem tells of the communicators of a job: how often each rank has called each collective. Pure.
//!
//! Source: NCCL user guide, "RAS", the output of `SET FORMAT json` (NCCL 2.28.7 and later).

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::hang::evidence::{Collective, GroupActivity, Groups, MessageCounts};

/// The variable with the address on which the workers answer.
pub const RAS_ADDR: &str = "NCCL_RAS_ADDR";
/// `0` switches RAS off.
pub const RAS_ENABLE: &str = "NCCL_RAS_ENABLE";

/// A longer answer is not read.
pub const MAX_ANSWER: usize = 16 << 20;
/// More communicators of a process are left out.
const MAX_GROUPS: usize = 256;
/// Longer names are cut.
const MAX_NAME: usize = 128;

/// A process, by the host and the pid that NCCL knows.
pub type RasProcess = (String, i32);

#[derive(Deserialize)]
struct Status {
    communicators: Vec<Communicator>,
}

#[derive(Deserialize)]
struct Communicator {
    hash: String,
    #[serde(default)]
    secondary_hash: String,
    size: u64,
    ranks: Vec<RankCounts>,
}

#[derive(Deserialize)]
struct RankCounts {
    host: String,
    pid: i32,
    #[serde(default)]
    collective_counts: BTreeMap<String, u64>,
}

/// The groups of each process that has answered.
///
/// A count is of calls, not of ends. What all ranks of a communicator have called counts as over, so equal counts show no
/// wait: whether the last collective is over is unknown.
///
/// # Errors
/// The text is not an answer of RAS.
pub fn groups_by_process(text: &[u8]) -> Result<BTreeMap<RasProcess, Groups>, serde_json::Error> {
    let status: Status = serde_json::from_slice(text)?;
    let mut processes: BTreeMap<RasProcess, Groups> = BTreeMap::new();
    for communicator in status.communicators {
        let name = format!("ras:{}:{}", cut(&communicator.hash), cut(&communicator.secondary_hash));
        let common = common_counts(&communicator);
        for rank in communicator.ranks {
            let groups = processes.entry((cut(&rank.host), rank.pid)).or_default();
            if groups.len() < MAX_GROUPS {
                groups.entry(name.clone()).or_insert_with(|| activity(&rank.collective_counts, &common));
            }
        }
    }
    Ok(processes)
}

fn cut(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

/// How often all ranks have called each collective that the first one has called. Nothing if a rank is missing: it may have called fewer.
fn common_counts(communicator: &Communicator) -> Option<BTreeMap<String, u64>> {
    let ranks = &communicator.ranks;
    if (ranks.len() as u64) < communicator.size {
        return None;
    }
    let (first, others) = ranks.split_first()?;
    let mut common = first.collective_counts.clone();
    for other in others {
        for (name, least) in &mut common {
            *least = (*least).min(other.collective_counts.get(name).copied().unwrap_or_default());
        }
    }
    Some(common)
}

fn activity(counts: &BTreeMap<String, u64>, common: &Option<BTreeMap<String, u64>>) -> GroupActivity {
    let total =
        |counts: &BTreeMap<String, u64>| counts.values().fold(0_u64, |sum, it| sum.saturating_add(*it));
    let enqueued = total(counts);
    let completed = common.as_ref().map_or(enqueued, total).min(enqueued);
    let of_all = |name: &String| common.as_ref().map(|common| common.get(name).copied().unwrap_or_default());
    let mut ahead = counts.iter().filter(|(name, count)| of_all(name).is_some_and(|all| **count > all));
    let recent = match (ahead.next(), ahead.next()) {
        (Some((name, _)), None) => {
            vec![Collective { sequence: completed + 1, name: snake_case(name), elements: None }]
        }
        // Of several kinds it is unknown which one comes first.
        _ => Vec::new(),
    };
    GroupActivity {
        description: String::new(),
        is_world: false,
        members: None,
        enqueued,
        completed,
        messages: MessageCounts::default(),
        recent,
    }
}

/// `AllReduce` as PyTorch writes it: `all_reduce`.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars().filter(|letter| letter.is_ascii_alphanumeric()).take(64) {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with one communicator of this size and the counts of these processes.
    fn answer(size: u64, counts: &[(i32, &str)]) -> String {
        let ranks: Vec<String> = counts
            .iter()
            .map(|(pid, counts)| {
                format!(
                    r#"{{"rank": 0, "host": "10.0.0.1", "pid": {pid}, "cuda_dev": 0, "status": {{"init_state": 0}},
                        "collective_counts": {{{counts}}}}}"#
                )
            })
            .collect();
        format!(
            r#"{{"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [{{"hash": "0xae", "size": {size},
                "ranks": [{}], "missing_ranks": []}}], "ras": {{"timeouts_count": 0}}}}"#,
            ranks.join(",")
        )
    }

    fn group(text: &str, pid: i32) -> GroupActivity {
        let processes = groups_by_process(text.as_bytes()).unwrap();
        processes[&("10.0.0.1".to_owned(), pid)]["ras:0xae:"].clone()
    }

    #[test]
    fn rank_that_has_called_more_waits_for_the_one_that_has_called_less() {
        let text = answer(
            2,
            &[(7, r#""AllReduce": 12, "Broadcast": 3"#), (8, r#""AllReduce": 11, "Broadcast": 3"#)],
        );
        let (ahead, behind) = (group(&text, 7), group(&text, 8));
        assert_eq!((ahead.enqueued, ahead.pending(), behind.pending()), (15, Some(15), None));
        assert_eq!(ahead.collective(15).unwrap().name, "all_reduce");
    }

    #[test]
    fn different_collectives_at_one_place_are_pending_on_both() {
        let text = answer(
            2,
            &[(7, r#""AllReduce": 12, "Broadcast": 3"#), (8, r#""AllReduce": 11, "Broadcast": 4"#)],
        );
        let (one, other) = (group(&text, 7), group(&text, 8));
        assert_eq!((one.pending(), other.pending()), (Some(15), Some(15)));
        assert_eq!(one.collective(15).unwrap().name, "all_reduce");
        assert_eq!(other.collective(15).unwrap().name, "broadcast");
    }

    #[test]
    fn equal_counts_and_missing_ranks_show_no_wait() {
        let equal = answer(2, &[(7, r#""AllReduce": 12"#), (8, r#""AllReduce": 12"#)]);
        assert_eq!((group(&equal, 7).enqueued, group(&equal, 7).pending()), (12, None));
        let missing = answer(3, &[(7, r#""AllReduce": 12"#), (8, r#""AllReduce": 11"#)]);
        assert_eq!((group(&missing, 7).pending(), group(&missing, 8).pending()), (None, None));
    }

    #[test]
    fn collective_that_the_first_rank_has_not_called_is_pending_on_the_other() {
        let text = answer(2, &[(7, r#""AllReduce": 12"#), (8, r#""AllReduce": 12, "Broadcast": 1"#)]);
        let (behind, ahead) = (group(&text, 7), group(&text, 8));
        assert_eq!((behind.pending(), ahead.pending()), (None, Some(13)));
        assert_eq!(ahead.collective(13).unwrap().name, "broadcast");
    }

    #[test]
    fn names_are_those_of_pytorch() {
        for (nccl, torch) in [
            ("ReduceScatter", "reduce_scatter"),
            ("Reduce", "reduce"),
            ("\u{1b}[31mAllGather", "31m_all_gather"),
        ] {
            assert_eq!(snake_case(nccl), torch);
        }
    }

    #[test]
    fn garbage_is_an_error() {
        for text in ["", "ERROR: unknown", "{}", r#"{"communicators": 3}"#, &"[".repeat(100_000)] {
            assert!(groups_by_process(text.as_bytes()).is_err(), "{text:.40}");
        }
        let overflow = answer(1, &[(7, &format!(r#""AllReduce": {0}, "Reduce": {0}"#, u64::MAX))]);
        assert_eq!(group(&overflow, 7).enqueued, u64::MAX);
    }
}
