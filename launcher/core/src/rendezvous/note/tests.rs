use proptest::prelude::*;
use rankrun_contract::rank::NodeRank;

use super::json::{MAX_HOST, MAX_JSON};
use super::*;

fn th1() -> NodeName {
    NodeName { rank: Some(NodeRank(1)), addr: Some("10.0.0.2".to_owned()), ..NodeName::of_host("th1") }
}

fn worker_failure() -> WorkerFailure {
    WorkerFailure {
        node: th1(),
        rank: Rank(9),
        local_rank: LocalRank(1),
        pid: 4711,
        ended: "exit code 7".to_owned(),
        message: Some("ValueError: `x` is 3".to_owned()),
        last_lines: Vec::new(),
        lost_peer: None,
    }
}

fn note() -> FailureNote {
    FailureNote::Worker(worker_failure())
}

/// One note of each kind; all have the same node.
fn note_of_each_kind() -> [FailureNote; 4] {
    let why = || "exit code 7".to_owned();
    [
        note(),
        FailureNote::NodeLost { node: th1() },
        FailureNote::NodeLeft { node: th1(), why: why() },
        FailureNote::LauncherFailed { node: th1(), why: why() },
    ]
}

#[test]
fn failure_note_kind_is_on_the_wire() {
    let tags = ["worker", "node-lost", "node-left", "launcher-failed"];
    for (note, tag) in note_of_each_kind().into_iter().zip(tags) {
        let text = String::from_utf8(note.to_json()).unwrap();
        assert!(text.contains(&format!(r#""failure":"{tag}""#)), "{text}");
        assert_eq!(FailureNote::from_json(text.as_bytes()), Some(note.clone()));
        for succeeded in [false, true] {
            let closing = ClosingNote { succeeded, failure: Some(note.clone()), rule: None };
            assert_eq!(ClosingNote::from_json(&closing.to_json()), Some(closing));
        }
    }
}

/// Before, a worker of pid 0 with such a text was a lost node or a failed launcher.
#[test]
fn worker_note_never_means_a_whole_node() {
    let text = String::from_utf8(note().to_json()).unwrap();
    for pid in ["0", "-1"] {
        let no_process = text.replace("\"pid\":4711", &format!("\"pid\":{pid}"));
        assert_ne!(no_process, text);
        assert_eq!(FailureNote::from_json(no_process.as_bytes()), None);
        let closing = format!(r#"{{"succeeded":false,"failure":{no_process},"rule":null}}"#);
        assert_eq!(ClosingNote::from_json(closing.as_bytes()), None);
    }
    let worker = WorkerFailure { ended: "the launcher has failed".to_owned(), ..worker_failure() };
    assert_eq!(FailureNote::Worker(worker).why_node_ended_job(), None);
}

#[test]
fn rule_note_round_trips_and_matches_end() {
    for then in [RuleEnd::Succeed, RuleEnd::Requeue, RuleEnd::NoRequeue] {
        let rule = RuleNote { text: "exit=5:x".to_owned(), then };
        let closing = ClosingNote { succeeded: rule.is_success(), failure: Some(note()), rule: Some(rule) };
        assert_eq!(ClosingNote::from_json(&closing.to_json()), Some(closing.clone()));
        let torn = ClosingNote { succeeded: !closing.succeeded, ..closing };
        assert_eq!(ClosingNote::from_json(&torn.to_json()), None);
    }
}

#[test]
fn only_a_note_without_lost_peer_overrides() {
    let with_loss =
        FailureNote::Worker(WorkerFailure { lost_peer: Some(PeerLoss::Unnamed), ..worker_failure() });
    for note in note_of_each_kind() {
        assert!(note.overrides(&with_loss) && !with_loss.overrides(&note) && !note.overrides(&note));
        assert_eq!(note.node(), &th1());
    }
    assert!(!with_loss.overrides(&with_loss));
}

#[test]
fn remote_texts_are_bounded_and_escaped() {
    let long = format!("\x1b]0;{}\n", "x".repeat(10_000));
    let loud = NodeName { host: Some(long.clone()), addr: Some(long.clone()), ..th1() };
    for note in [
        FailureNote::Worker(WorkerFailure {
            node: loud.clone(),
            ended: long.clone(),
            message: Some(long.clone()),
            last_lines: vec![long.clone(); 100],
            ..worker_failure()
        }),
        FailureNote::NodeLost { node: loud.clone() },
        FailureNote::NodeLeft { node: loud.clone(), why: long.clone() },
        FailureNote::LauncherFailed { node: loud, why: long.clone() },
    ] {
        let text = note.to_json();
        assert!(text.len() < 8192, "{}", text.len());
        assert!(!text.contains(&0x1b) && FailureNote::from_json(&text).is_some());
    }
    // A note from a writer that does not bound its texts.
    let text = String::from_utf8(note().to_json()).unwrap();
    let text = text.replace("th1", &serde_json::to_string(&long).unwrap().replace('"', ""));
    let host = FailureNote::from_json(text.as_bytes()).unwrap().node().host.clone().unwrap();
    assert_eq!(host.chars().count(), MAX_HOST);
    assert!(host.starts_with(" ]0;xxx") && host.ends_with('…'), "{host}");
    assert_eq!(parse_leave_reason(b"SIGTERM\r\n\xff"), "SIGTERM  \u{fffd}");
}

#[test]
fn malformed_note_is_none() {
    let good = String::from_utf8(note().to_json()).unwrap();
    let bad = [
        String::new(),
        "null".to_owned(),
        "{\"failure\":".repeat(5000),
        "[".repeat(1 << 20),
        good.replace("\"rank\":9", "\"rank\":-9"),
        good.replace("\"pid\":4711", "\"pid\":\"4711\""),
        good.replace("\"worker\"", "\"node-eaten\""),
        good.replace("\"worker\"", "\"node-left\""),
        good.replace("\"failure\":\"worker\",", ""),
        good.replace("th1", &"x".repeat(MAX_JSON)),
    ];
    for text in bad {
        assert_ne!(text, good);
        assert_eq!(FailureNote::from_json(text.as_bytes()), None, "{}", &text[..text.len().min(80)]);
        assert_eq!(ClosingNote::from_json(text.as_bytes()), None);
    }
}

fn any_node() -> impl Strategy<Value = NodeName> {
    let text = || proptest::option::of("[^\\p{C}\\p{Z}]{1,255}");
    (proptest::option::of(any::<u32>()), text(), text()).prop_map(|(rank, host, addr)| NodeName {
        rank: rank.map(NodeRank),
        host,
        addr,
    })
}

fn any_worker_failure() -> impl Strategy<Value = WorkerFailure> {
    let lost_peer = prop_oneof![
        Just(None),
        Just(Some(PeerLoss::Unnamed)),
        any::<u32>().prop_map(|rank| Some(PeerLoss::Rank(Rank(rank)))),
    ];
    let ranks = (any::<u32>(), any::<u32>(), 1..i32::MAX);
    let message = proptest::option::of("[^\\p{C}\\p{Z}]{0,200}");
    let texts = (message, proptest::collection::vec("[^\\p{C}\\p{Z}]{0,200}", 0..10));
    (any_node(), ranks, "[^\\p{C}\\p{Z}]{0,200}", texts, lost_peer).prop_map(
        |(node, (rank, local_rank, pid), ended, (message, last_lines), lost_peer)| WorkerFailure {
            node,
            rank: Rank(rank),
            local_rank: LocalRank(local_rank),
            pid,
            ended,
            message,
            last_lines,
            lost_peer,
        },
    )
}

fn any_note() -> impl Strategy<Value = FailureNote> {
    let why = || "[^\\p{C}\\p{Z}]{0,300}";
    prop_oneof![
        any_worker_failure().prop_map(FailureNote::Worker),
        any_node().prop_map(|node| FailureNote::NodeLost { node }),
        (any_node(), why()).prop_map(|(node, why)| FailureNote::NodeLeft { node, why }),
        (any_node(), why()).prop_map(|(node, why)| FailureNote::LauncherFailed { node, why }),
    ]
}

proptest! {
    #[test]
    fn note_json_round_trips(note in any_note(), succeeded in any::<bool>()) {
        prop_assert_eq!(FailureNote::from_json(&note.to_json()), Some(note.clone()));
        let closing = ClosingNote { succeeded, failure: Some(note), rule: None };
        prop_assert_eq!(ClosingNote::from_json(&closing.to_json()), Some(closing));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (FailureNote::from_json(&bytes), ClosingNote::from_json(&bytes), parse_leave_reason(&bytes));
    }

    /// What is read from a changed note is a note that is written and read alike.
    #[test]
    fn changed_bytes_give_none_or_a_bounded_note(
        note in any_note(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut text = note.to_json();
        for (at, byte) in changes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        if let Some(read) = FailureNote::from_json(&text) {
            let again = read.to_json();
            prop_assert!(!again.iter().any(u8::is_ascii_control));
            prop_assert_eq!(FailureNote::from_json(&again), Some(read));
        }
    }
}
