//! What does not belong into the store, and agents that do not belong into the job.

use super::*;
use rankrun_core::rendezvous::descriptor::PROTOCOL;
use rankrun_core::rendezvous::keys::RendezvousKeys;

fn with_state(text: &[u8]) -> RendezvousError {
    let store = store();
    let job = Job::at(&store, 1, 1);
    client(&store).compare_set(RendezvousKeys::dynamic(&job.run_id).state(), b"", text).unwrap();
    job.agent().failed()
}

#[test]
fn garbage_in_state_key_is_an_error() {
    for text in [&b"hello"[..], b"\xff\xfe", b"aGVsbG8=", &[b'A'; 100_000]] {
        let error = with_state(text);
        assert!(matches!(&error, RendezvousError::NotAState { .. }), "{error}");
        assert!(error.to_string().contains("`/torch.rendezvous.job`"), "{error}");
    }
}

#[test]
fn malicious_pickle_in_state_is_not_executed() {
    // `os.system("touch /tmp/rankrun-was-here")`, protocol 0, as base64.
    let text = b"Y29zCnN5c3RlbQooUyd0b3VjaCAvdG1wL3JhbmtydW4td2FzLWhlcmUnCnRSLg==";
    let error = with_state(text);
    assert!(matches!(&error, RendezvousError::NotAState { .. }), "{error}");
    assert!(!std::path::Path::new("/tmp/rankrun-was-here").exists());
}

#[test]
fn agent_with_other_settings_is_refused_and_job_continues() {
    let store = store();
    let job = Job::at(&store, 1, 2);
    let first = job.round(1).remove(0);
    let other_program = Job { program: "other.py", ..job.clone() };
    let other_size = Job { nodes: range(1, 3), ..job.clone() };
    let times = RoundTimes { lease: Duration::from_secs(60), ..job.times };
    let other_lease = Job { times, ..job.clone() };
    let clients = [
        (other_program, ["`train.py`", "`other.py`"]),
        (other_size, ["1:2", "1:3"]),
        (other_lease, ["`--lease 5s`", "`--lease 1m`"]),
    ];
    for (client, words) in clients {
        let agent = client.agent();
        let error = agent.failed();
        assert!(matches!(&error, RendezvousError::Mismatch { .. }), "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        // Whatever it says at its end closes nothing.
        agent.close(false, None);
    }
    first.succeed();
    assert!(matches!(first.next_event(), RendezvousEvent::AllSucceeded));
}

/// Whichever version is older, and whichever agent was first: the newcomer is refused, and the other one runs on.
#[test]
fn newcomer_of_other_protocol_is_refused_with_both_versions() {
    let ours = || (PROTOCOL, "1.2.3");
    for theirs in [(PROTOCOL - 1, "1.1.0"), (PROTOCOL + 1, "2.0.0")] {
        for (old, new) in [(ours(), theirs), (theirs, ours())] {
            let store = store();
            let job = Job::at(&store, 1, 2);
            let first = Agent::of_protocol(&job, old.0, old.1);
            first.join();
            let _ = first.joined();
            let newcomer = Agent::of_protocol(&job, new.0, new.1);
            newcomer.join();
            let error = newcomer.failed();
            let versions = format!(
                "this agent is rankrun {} (protocol {}), the other agent {} (protocol {})",
                new.1, new.0, old.1, old.0
            );
            assert!(error.to_string().ends_with(&versions), "{error}");
            assert_eq!(error.hint(), Some("install the same version of rankrun on every node"));
            newcomer.close(false, None);
            first.succeed();
            assert!(matches!(first.next_event(), RendezvousEvent::AllSucceeded));
        }
    }
}

#[test]
fn second_agent_with_same_node_rank_is_refused() {
    let store = store();
    let job = Job { node_rank: Some(NodeRank(0)), ..Job::at(&store, 2, 2) };
    let first = job.agent();
    assert_eq!(first.waiting().missing, [rankrun_core::rendezvous::NodeName::of_rank(NodeRank(1))]);
    let error = job.agent().failed();
    assert!(matches!(&error, RendezvousError::SameNodeRank { node_rank: NodeRank(0), .. }), "{error}");
    let second = Job { node_rank: Some(NodeRank(1)), ..job }.agent();
    assert_eq!((first.joined().node_rank, second.joined().node_rank), (NodeRank(0), NodeRank(1)));
}

#[test]
fn two_jobs_share_a_store() {
    let store = store();
    let one = Job::at(&store, 2, 2);
    let other = Job { run_id: RunId("other".to_owned()), ..one.clone() };
    let agents = [one.agent(), other.agent(), one.agent(), other.agent()];
    for agent in &agents {
        assert_eq!(agent.joined().nodes.get(), 2);
    }
}
