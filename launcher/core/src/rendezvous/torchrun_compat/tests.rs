use std::time::Duration;

use rankrun_contract::rank::{LocalWorldSize, NodeCount};

use super::*;
use crate::rendezvous::descriptor::PROTOCOL;
use crate::rendezvous::state::Participants;
use crate::spec::rendezvous::NodeRange;

fn node(name: &str) -> Node {
    Node { addr: name.to_owned(), pid: 1, local_id: 0 }
}

fn descriptor(host: &str) -> AgentDescriptor {
    AgentDescriptor {
        protocol: PROTOCOL,
        version: "0.1.0".to_owned(),
        host: host.to_owned(),
        nodes: NodeRange { min: NodeCount::ONE, max: NodeCount::new(4).unwrap() },
        node_rank: None,
        lease: Duration::from_secs(5),
        workers: LocalWorldSize::ONE,
        entrypoint: "train.py".to_owned(),
        nonce: 7,
        max_restarts: None,
    }
}

/// Members by name; a capital letter is a torchrun agent.
fn members(names: &str) -> Vec<(Node, Option<AgentDescriptor>)> {
    let member = |name: &str| {
        let is_ours = name.chars().all(char::is_lowercase);
        (node(name), is_ours.then(|| descriptor(name)))
    };
    names.split(' ').map(member).collect()
}

fn place(host: &str) -> PublishedAddress {
    PublishedAddress { addr: host.to_owned(), port: 29500 }
}

fn complete(round: u64, names: &str) -> RendezvousState {
    let participants: Participants = names.split(' ').map(node).zip(0..).collect();
    RendezvousState { round, complete: true, participants, ..RendezvousState::default() }
}

/// The knowledge of an agent that was in these rounds, each with the place where its workers met.
fn after(rounds: &[(&str, &str)]) -> MasterAddressCache {
    let mut memory = MasterAddressCache::default();
    for (names, at) in rounds {
        memory.record_round_address(&members(names), &place(at), None);
    }
    memory
}

#[test]
fn malformed_address_is_not_parsed() {
    assert_eq!(PublishedAddress::parse(b"th1", b"29500"), Some(place("th1")));
    assert_eq!(PublishedAddress::parse(b"fe80::1", b"1").unwrap().to_string(), "[fe80::1]:1");
    let bad: [(&[u8], &[u8]); 9] = [
        (b"", b"29500"),
        (b"th1\n", b"29500"),
        (b"th1\0", b"29500"),
        (b"\xff", b"29500"),
        (&[b'x'; 256], b"29500"),
        (b"th1", b""),
        (b"th1", b"0"),
        (b"th1", b"65536"),
        (b"th1", b"+5"),
    ];
    for (addr, port) in bad {
        assert_eq!(PublishedAddress::parse(addr, port), None, "{addr:?} {port:?}");
    }
}

#[test]
fn rankrun_rank_zero_chooses_master_address() {
    let stay = |at: &str| Ok(MasterChoice::Stay(place(at)));
    let refuse =
        |peer: &str, at: &str| Err(StaleMasterAddress { peer: node(peer), cached_address: place(at) });
    let cases = [
        // Without torchrun members, rank 0's own store always works.
        (vec![("a b", "a")], "b a", Ok(MasterChoice::Own)),
        // New torchrun members read the published address.
        (vec![("a b", "a")], "b T", Ok(MasterChoice::Own)),
        (vec![("a T", "a")], "a T", Ok(MasterChoice::Own)),
        (vec![("a T", "a")], "a b T U", Ok(MasterChoice::Own)),
        // Rank 0 has moved. The store where the torchrun member meets still exists: first ours, then its own.
        (vec![("a T", "a")], "b a T", stay("a")),
        (vec![("T a", "T")], "a T", stay("T")),
        (vec![("T U a", "T")], "a T U", stay("T")),
        // The node that hosted the store has left.
        (vec![("a b T", "a")], "b T", refuse("T", "a")),
        (vec![("T U a", "T")], "a U", refuse("U", "T")),
        // The node came back, but its store did not.
        (vec![("T U a", "T"), ("a T", "a")], "a U T", refuse("T", "a")),
        // All members that knew the old address are gone.
        (vec![("T a", "T")], "a U", Ok(MasterChoice::Own)),
    ];
    for (rounds, now, expected) in cases {
        let members = members(now);
        let choice = after(&rounds).choose(&members[0].0, &members);
        assert_eq!(choice, expected, "{rounds:?} then {now}");
    }
}

#[test]
fn address_with_stale_torchrun_member_is_refused() {
    let cases = [
        (vec![], "a T U", "a", None),
        (vec![("a T", "a")], "a T U", "a", None),
        (vec![("T a", "T")], "T a U", "T", None),
        // The torchrun agent is rank 0 for the first time, and has opened its own store.
        (vec![("a T", "a")], "T a", "T", None),
        (vec![("a T U", "a")], "T a U", "T", Some("U")),
        (vec![("T a", "T")], "U T a", "U", Some("T")),
        (vec![("a b T", "a")], "b T", "b", Some("T")),
    ];
    for (rounds, now, at, refused) in cases {
        let refusal = after(&rounds).check(&members(now), &place(at));
        assert_eq!(refusal.err().map(|refusal| refusal.peer), refused.map(node), "{rounds:?} then {now}");
    }
}

#[test]
fn cached_addresses_are_learned_from_published_ones() {
    // torchrun agents alone run rounds 0 and 2. This agent sees round 2 before it joins round 3.
    let mut memory = MasterAddressCache::default();
    memory.record_state(&complete(2, "T U"));
    let published = BTreeMap::from([(0, place("T")), (3, place("x"))]);
    let now = members("a T U V");
    assert!(memory.needs_history(3, &now));
    memory.learn_history(3, &published);
    assert!(!memory.needs_history(3, &now));
    assert_eq!(memory.choose(&node("a"), &now), Ok(MasterChoice::Stay(place("T"))));
    // Without the member that hosts the store.
    let now = members("a U V");
    let refusal = StaleMasterAddress { peer: node("U"), cached_address: place("T") };
    assert_eq!(memory.choose(&node("a"), &now), Err(refusal));
    assert_eq!(memory.choose(&node("a"), &members("a V")), Ok(MasterChoice::Own));
}

#[test]
fn round_without_published_address_caches_nothing() {
    let mut memory = MasterAddressCache::default();
    memory.record_state(&complete(1, "T U"));
    memory.learn_history(2, &BTreeMap::new());
    assert_eq!(memory.choose(&node("a"), &members("a T U")), Ok(MasterChoice::Own));
}

#[test]
fn incomplete_and_future_rounds_are_ignored() {
    let mut memory = MasterAddressCache::default();
    memory.record_state(&RendezvousState { complete: false, ..complete(0, "T") });
    memory.record_state(&complete(1, "a T"));
    assert!(!memory.needs_history(1, &members("a T")));
    assert!(!memory.needs_history(0, &members("a T")));
    assert!(memory.needs_history(2, &members("a T")));
}

#[test]
fn remembered_rounds_are_bounded() {
    let mut memory = MasterAddressCache::default();
    (0..1000).for_each(|round| memory.record_state(&complete(round, "T")));
    assert_eq!(memory.completed_rounds.len(), MAX_COMPLETED_ROUNDS);
    assert!(memory.completed_rounds.contains_key(&999));
}

#[test]
fn store_of_torchrun_rank_zero_is_found() {
    let published = BTreeMap::from([
        (0, place("T")),
        (1, place("U")),
        (2, PublishedAddress { port: 1, ..place("T") }),
        (3, PublishedAddress { port: 2, ..place("T") }),
    ]);
    let memory = after(&[("T a", "T")]);
    assert_eq!(memory.store_of(&node("T"), 5, &published), Some(place("T")));
    let uninvolved = MasterAddressCache::default();
    // The newest published address before this round with the same host.
    assert_eq!(
        uninvolved.store_of(&node("T"), 3, &published),
        Some(PublishedAddress { port: 1, ..place("T") })
    );
    assert_eq!(uninvolved.store_of(&node("U"), 3, &published), Some(place("U")));
    assert_eq!(uninvolved.store_of(&node("V"), 3, &published), None);
    assert_eq!(uninvolved.store_of(&node("T"), 0, &published), None);
}

#[test]
fn one_rankrun_member_acts_for_a_torchrun_rank_zero() {
    assert_eq!(delegate(&members("T U a b")), Some(2));
    assert_eq!(delegate(&members("a T b")), None);
    assert_eq!(delegate(&members("T U")), None);
}
