use proptest::prelude::*;

use super::*;

fn range(min: u32, max: u32) -> NodeRange {
    NodeRange { min: NodeCount::new(min).unwrap(), max: NodeCount::new(max).unwrap() }
}

fn descriptor() -> AgentDescriptor {
    AgentDescriptor {
        protocol: PROTOCOL,
        version: "0.1.0".to_owned(),
        host: "th1".to_owned(),
        nodes: range(2, 4),
        node_rank: Some(NodeRank(3)),
        lease: Duration::from_secs(5),
        workers: LocalWorldSize::new(8).unwrap(),
        entrypoint: "train.py".to_owned(),
        nonce: 77,
        max_restarts: None,
    }
}

#[test]
fn agents_of_same_job_are_compatible() {
    let ours = descriptor();
    let theirs = AgentDescriptor {
        version: "0.1.1".to_owned(),
        host: "th2".to_owned(),
        node_rank: None,
        workers: LocalWorldSize::ONE,
        nonce: 78,
        ..descriptor()
    };
    assert_eq!(compare(&ours, &theirs), Ok(()));
    assert_eq!(parse_and_compare(&ours, &theirs.to_json()), Ok(theirs));
}

#[test]
fn mismatch_error_names_both_values() {
    let ours = descriptor();
    let cases = [
        (
            AgentDescriptor { protocol: PROTOCOL - 1, version: "0.0.9".to_owned(), ..descriptor() },
            "this agent is rankrun 0.1.0 (protocol 2), the other agent 0.0.9 (protocol 1)",
        ),
        (
            AgentDescriptor { protocol: PROTOCOL + 1, version: "0.9.0".to_owned(), ..descriptor() },
            "this agent is rankrun 0.1.0 (protocol 2), the other agent 0.9.0 (protocol 3)",
        ),
        (
            AgentDescriptor { nodes: range(3, 3), ..descriptor() },
            "this agent was started with `--nnodes 2:4`, the other agent with `--nnodes 3`",
        ),
        (
            AgentDescriptor { lease: Duration::from_millis(2_500), ..descriptor() },
            "this agent was started with `--lease 5s`, the other agent with `--lease 2s 500ms`",
        ),
        (
            AgentDescriptor { entrypoint: "eval.py".to_owned(), ..descriptor() },
            "this agent runs `train.py`, the other agent `eval.py`",
        ),
    ];
    for (theirs, words) in cases {
        let error = compare(&ours, &theirs).unwrap_err();
        assert_eq!(error.to_string(), words);
        assert_eq!(parse_and_compare(&ours, &theirs.to_json()), Err(error));
    }
}

#[test]
fn other_protocol_mismatch_names_version_only() {
    let text = br#"{"protocol": 9, "version": "3.0\u001b[2J", "node": {"something": ["else"]}}"#;
    let error = parse_and_compare(&descriptor(), text).unwrap_err();
    assert_eq!(error.hint(), "install the same version of rankrun on every node");
    assert_eq!(
        error.to_string(),
        "this agent is rankrun 0.1.0 (protocol 2), the other agent 3.0 [2J (protocol 9)"
    );
}

/// Agents of other protocols read these two fields and nothing else.
#[test]
fn descriptor_begins_with_protocol_and_version() {
    let text = String::from_utf8(descriptor().to_json()).unwrap();
    assert!(text.starts_with(r#"{"protocol":2,"version":"0.1.0","#), "{text}");
}

#[test]
fn malformed_descriptor_is_refused() {
    let good = String::from_utf8(descriptor().to_json()).unwrap();
    assert!(AgentDescriptor::from_json(good.as_bytes()).is_ok());
    let bad = [
        String::new(),
        "{}".to_owned(),
        "[".repeat(100_000),
        "[".repeat(60_000),
        good.replace("\"min\":2", "\"min\":0"),
        good.replace("\"min\":2", "\"min\":5"),
        good.replace("\"lease_ms\":5000", "\"lease_ms\":-1"),
        good.replace("\"lease_ms\":5000,", ""),
        good.replace("\"workers\":8", "\"workers\":0"),
        good.replace("\"workers\":8", "\"workers\":-1"),
        good.replace("\"workers\":8", "\"workers\":4294967296"),
        good.replace("\"host\":\"th1\"", &format!("\"host\":\"{}\"", "x".repeat(MAX_JSON))),
    ];
    for text in bad {
        let shown = &text[..text.len().min(80)];
        assert_ne!(text, good);
        assert_eq!(AgentDescriptor::from_json(text.as_bytes()), Err(DescriptorError::Unreadable), "{shown}");
    }
}

#[test]
fn entrypoint_is_bounded_and_escaped_for_terminal() {
    let name = format!("\u{1b}[1m{}", "x".repeat(5000));
    let shown = display_entrypoint(OsStr::new(&name));
    assert_eq!(shown.chars().count(), MAX_ENTRYPOINT);
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = AgentDescriptor::from_json(&bytes);
    }

    #[test]
    fn descriptor_json_round_trips(
        host in "[a-z0-9.-]{0,255}",
        name in "\\PC{0,40}",
        (min, more, rank, workers) in (1_u32..1000, 0_u32..1000, proptest::option::of(any::<u32>()), 1_u32..),
        nonce in any::<u32>(),
    ) {
        let descriptor = AgentDescriptor {
            host,
            nodes: range(min, min + more),
            node_rank: rank.map(NodeRank),
            workers: LocalWorldSize::new(workers).unwrap(),
            entrypoint: display_entrypoint(OsStr::new(&name)),
            nonce,
            ..descriptor()
        };
        prop_assert_eq!(AgentDescriptor::from_json(&descriptor.to_json()), Ok(descriptor));
    }
}
