//! Assigns global and role ranks to the workers of each member (contract 2.2), and converts the texts by which members
//! agree on them (5.6). Pure.
//!
//! The texts are JSON from other machines: the parser is tolerant, then checks all values.

use std::collections::BTreeMap;

use rankrun_contract::rank::{LocalWorldSize, NodeRank, Rank, WorldSize};
use serde::{Deserialize, Serialize};

/// Longest text that is parsed, in bytes.
const MAX_JSON: usize = 64 * 1024;

/// What a member publishes about its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleInfo {
    /// Role of the workers, from `--role`.
    pub role: String,
    /// Number of workers that the member starts.
    pub workers: LocalWorldSize,
}

#[derive(Serialize, Deserialize)]
struct RoleWire {
    role: String,
    rank: u32,
    local_world_size: u32,
}

impl RoleInfo {
    /// The text for the store, in torch's spelling.
    #[must_use]
    pub fn to_json(&self, node_rank: NodeRank) -> Vec<u8> {
        let wire =
            RoleWire { role: self.role.clone(), rank: node_rank.0, local_world_size: self.workers.get() };
        serde_json::to_vec(&wire).expect("texts and numbers are JSON")
    }

    /// Parses the text of the member with this node rank; `None` if it is malformed.
    #[must_use]
    pub fn from_json(text: &[u8], node_rank: NodeRank) -> Option<Self> {
        if text.len() > MAX_JSON {
            return None;
        }
        let wire: RoleWire = serde_json::from_slice(text).ok()?;
        (wire.rank == node_rank.0).then_some(())?;
        Some(Self { role: wire.role, workers: LocalWorldSize::new(wire.local_world_size)? })
    }
}

/// The ranks of one member's workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankAssignment {
    /// Global rank of the member's local rank 0.
    pub base_rank: Rank,
    /// Number of workers on all members.
    pub world_size: WorldSize,
    /// Role rank of the member's local rank 0.
    pub base_role_rank: Rank,
    /// Number of workers with the same role on all members.
    pub role_world_size: WorldSize,
}

impl RankAssignment {
    /// The text for the store, in torch's spelling.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let numbers =
            [self.base_rank.0, self.world_size.get(), self.base_role_rank.0, self.role_world_size.get()];
        serde_json::to_vec(&numbers).expect("numbers are JSON")
    }

    /// Parses the ranks of a member with this many workers; `None` if the text is malformed, or the ranks do not fit.
    #[must_use]
    pub fn from_json(text: &[u8], workers: LocalWorldSize) -> Option<Self> {
        if text.len() > MAX_JSON {
            return None;
        }
        let [base_rank, world_size, base_role_rank, role_world_size]: [u32; 4] =
            serde_json::from_slice(text).ok()?;
        let fits = |base: u32, size: u32| base.checked_add(workers.get()).is_some_and(|end| end <= size);
        let holds = fits(base_rank, world_size)
            && fits(base_role_rank, role_world_size)
            && role_world_size <= world_size
            && base_role_rank <= base_rank;
        holds.then_some(())?;
        Some(Self {
            base_rank: Rank(base_rank),
            world_size: WorldSize::new(world_size)?,
            base_role_rank: Rank(base_role_rank),
            role_world_size: WorldSize::new(role_world_size)?,
        })
    }
}

/// Assigns the ranks of all members, given by node rank; `None` if there are more workers than ranks.
#[must_use]
pub fn assign(members: &[RoleInfo]) -> Option<Vec<RankAssignment>> {
    let mut world_size: u32 = 0;
    let mut role_sizes: BTreeMap<&str, u32> = BTreeMap::new();
    for member in members {
        world_size = world_size.checked_add(member.workers.get())?;
        // Cannot overflow: it is at most the world size.
        *role_sizes.entry(&member.role).or_default() += member.workers.get();
    }
    let mut base_rank = 0;
    let mut base_role_ranks: BTreeMap<&str, u32> = BTreeMap::new();
    members
        .iter()
        .map(|member| {
            let base_role_rank = base_role_ranks.entry(&member.role).or_default();
            let assigned = RankAssignment {
                base_rank: Rank(base_rank),
                world_size: WorldSize::new(world_size)?,
                base_role_rank: Rank(*base_role_rank),
                role_world_size: WorldSize::new(role_sizes[member.role.as_str()])?,
            };
            base_rank += member.workers.get();
            *base_role_rank += member.workers.get();
            Some(assigned)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info(role: &str, workers: u32) -> RoleInfo {
        RoleInfo { role: role.to_owned(), workers: LocalWorldSize::new(workers).unwrap() }
    }

    fn numbers(assigned: &[RankAssignment]) -> Vec<[u32; 4]> {
        assigned
            .iter()
            .map(|one| {
                [one.base_rank.0, one.world_size.get(), one.base_role_rank.0, one.role_world_size.get()]
            })
            .collect()
    }

    #[test]
    fn ranks_follow_node_ranks_and_counts_may_differ() {
        let assigned = assign(&[info("b", 1), info("a", 2)]).unwrap();
        assert_eq!(numbers(&assigned), [[0, 3, 0, 1], [1, 3, 0, 2]]);
        let assigned = assign(&[info("x", 8), info("x", 4), info("y", 1), info("x", 2)]).unwrap();
        assert_eq!(numbers(&assigned), [[0, 15, 0, 14], [8, 15, 8, 14], [12, 15, 0, 1], [13, 15, 12, 14]]);
        assert_eq!(assign(&[]), Some(Vec::new()));
    }

    #[test]
    fn more_workers_than_ranks_are_refused() {
        assert!(assign(&[info("x", u32::MAX)]).is_some());
        assert_eq!(assign(&[info("x", u32::MAX), info("y", 1)]), None);
    }

    #[test]
    fn torch_role_info_json_is_parsed_and_written() {
        let text = br#"{"role": "default", "rank": 3, "local_world_size": 2}"#;
        assert_eq!(RoleInfo::from_json(text, NodeRank(3)), Some(info("default", 2)));
        let ours = info("default", 2).to_json(NodeRank(3));
        assert_eq!(ours, br#"{"role":"default","rank":3,"local_world_size":2}"#);
        let assigned = RankAssignment::from_json(b"[2, 8, 0, 2]", LocalWorldSize::new(2).unwrap()).unwrap();
        assert_eq!(assigned.to_json(), b"[2,8,0,2]");
    }

    #[test]
    fn malformed_role_info_is_none() {
        for text in [
            "",
            "null",
            r#"{"role": "default", "rank": 0, "local_world_size": 0}"#,
            r#"{"role": "default", "rank": 0, "local_world_size": -1}"#,
            r#"{"role": "default", "rank": 0, "local_world_size": 4294967296}"#,
            r#"{"role": "default", "rank": 0, "local_world_size": 1e3}"#,
            r#"{"role": "default", "rank": 1, "local_world_size": 1}"#,
            r#"{"role": "default", "rank": 0}"#,
            r#"{"role": 5, "rank": 0, "local_world_size": 1}"#,
            &"[".repeat(60_000),
            &format!(r#"{{"role": "{}", "rank": 0, "local_world_size": 1}}"#, "x".repeat(MAX_JSON)),
        ] {
            assert_eq!(RoleInfo::from_json(text.as_bytes(), NodeRank(0)), None, "{:.80}", text);
        }
        for text in [
            "",
            "[]",
            "[0, 2, 0]",
            "[0, 2, 0, 2, 0]",
            "[1, 2, 0, 2]",
            "[0, 2, 1, 2]",
            "[0, 2, 0, 3]",
            "[4294967295, 4294967295, 0, 2]",
            "[0, 0, 0, 0]",
            "[-1, 2, 0, 2]",
            "[0, 2, 0, null]",
        ] {
            assert_eq!(
                RankAssignment::from_json(text.as_bytes(), LocalWorldSize::new(2).unwrap()),
                None,
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn every_rank_is_assigned_once(
            members in proptest::collection::vec(("[ab]", 1_u32..20), 1..12)
        ) {
            let members: Vec<_> = members.iter().map(|(role, workers)| info(role, *workers)).collect();
            let assigned = assign(&members).unwrap();
            let all: u32 = members.iter().map(|member| member.workers.get()).sum();
            let mut ranks = Vec::new();
            for (member, one) in members.iter().zip(&assigned) {
                prop_assert_eq!(one.world_size.get(), all);
                let of_role = members.iter().filter(|other| other.role == member.role);
                prop_assert_eq!(one.role_world_size.get(), of_role.map(|other| other.workers.get()).sum::<u32>());
                ranks.extend(one.base_rank.0..one.base_rank.0 + member.workers.get());
                // Every member accepts what rank 0 writes.
                prop_assert_eq!(RankAssignment::from_json(&one.to_json(), member.workers), Some(*one));
            }
            prop_assert_eq!(ranks, (0..all).collect::<Vec<_>>());
            for role in ["a", "b"] {
                let of_role = members.iter().zip(&assigned).filter(|(member, _)| member.role == role);
                let ranks: Vec<u32> = of_role
                    .flat_map(|(member, one)| one.base_role_rank.0..one.base_role_rank.0 + member.workers.get())
                    .collect();
                prop_assert_eq!(&ranks, &(0..ranks.len() as u32).collect::<Vec<_>>());
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), workers in 1_u32..) {
            let _ = RoleInfo::from_json(&bytes, NodeRank(0));
            let _ = RankAssignment::from_json(&bytes, LocalWorldSize::new(workers).unwrap());
        }
    }
}
