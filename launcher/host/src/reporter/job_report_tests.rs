//! Documents of the report.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::reporter::summary::FailureReport;
use crate::reporter::summary::tests::example_failure;
use rankrun_contract::rank::{LocalRank, Rank};
use rankrun_contract::report::ErrorReport;
use rankrun_core::device::reading::{DeviceCounters, DeviceReading, ReadingProblem};
use rankrun_core::device::xid::Xid;
use rankrun_core::hang::evidence::Collective;
use rankrun_core::hang::verdict::{Activity, Call, Desync, Hang, RankStatus, Verdict, Wait};
use rankrun_core::job_event::memory::{OomEvidence, PeakMemory};
use rankrun_core::job_event::{FailureKind, ForeignKill};
use rankrun_core::posix::Exit;
use rankrun_core::rendezvous::{FailureNote, NodeName, RendezvousEnd, WorkerFailure};
use rankrun_core::stacks::WorkerStacks;

fn text_of(status: ExitStatus, stopped_by: Option<Signal>, failure: Option<&FailureRecord>) -> String {
    let end = JobEnd {
        job: &JobId("a-b".to_owned()),
        run_id: "night",
        host: "th1",
        place: Some((NodeRank(0), NodeCount::ONE)),
        launcher: Pid::from_raw(7),
        started: SystemTime::UNIX_EPOCH,
        ended: SystemTime::UNIX_EPOCH + Duration::from_micros(2_500_400),
        status,
        stopped_by,
        restarts: (RestartCount(1), RestartCount(3)),
        rule: None,
    };
    render(&end, failure, None)
}

fn document(status: ExitStatus, stopped_by: Option<Signal>, failure: Option<&FailureRecord>) -> Value {
    serde_json::from_str(&text_of(status, stopped_by, failure)).unwrap()
}

fn failure_of(failure: &FailureReport, verdict: Option<&Verdict>) -> Value {
    let record = local_failure(failure, verdict, None);
    document(ExitStatus::Code(1), None, Some(&record))["failure"].clone()
}

fn ranks(ranks: &[u32]) -> BTreeSet<Rank> {
    ranks.iter().copied().map(Rank).collect()
}

#[test]
fn report_of_success_has_job_and_no_failure() {
    let version = env!("CARGO_PKG_VERSION");
    let expected = json!({
        "version": 1, "job": "a-b", "run_id": "night", "node": {"name": "th1", "rank": 0, "nodes": 1},
        "launcher": {"version": version, "pid": 7}, "started": "1970-01-01T00:00:00.000Z",
        "ended": "1970-01-01T00:00:02.500Z", "seconds": 2.5, "exit_code": 0, "result": "succeeded",
        "restarts": {"used": 1, "allowed": 3},
    });
    assert_eq!(document(ExitStatus::SUCCESS, None, None), expected);
    let stopped = document(ExitStatus::Code(143), Some(Signal::SIGTERM), None);
    assert_eq!(stopped["result"], "stopped");
    assert_eq!(stopped["stopped_by"], json!({"signal": 15, "name": "SIGTERM"}));
    assert_eq!(document(ExitStatus::Signal(9), None, None)["exit_code"], 137);
}

#[test]
fn report_of_worker_failure_has_what_the_console_shows() {
    let failure = failure_of(&example_failure(), None);
    let expected = json!({
        "kind": "signal", "sentence": "rank 1 failed first: killed by SIGKILL", "rank": 1, "local_rank": 1, "pid": 77,
        "node": {"name": "gpu-node-7"}, "device": {"kind": "cpu", "index": 1},
        "exit": {"signal": 9, "name": "SIGKILL", "core_dumped": false},
        "started": "1970-01-01T00:00:00.000Z", "ended": "1970-01-01T00:00:02.500Z", "seconds": 2.5,
        "others": [{"rank": 0, "exit": {"signal": 15, "name": "SIGTERM", "core_dumped": false}}],
        "last_lines": ["step 9", "step 10"], "logs": ["/logs/1/stderr.log"],
    });
    assert_eq!(failure, expected);
}

#[test]
fn kind_of_failure_follows_from_exit_and_evidence() {
    let kind = |failure: FailureReport| failure_of(&failure, None)["kind"].clone();
    let base = || FailureReport { exit: Exit::Code(1), ..example_failure() };
    assert_eq!(kind(base()), "exit");
    let lines = ["  File \"data.py\", line 17, in load", "ValueError: no data"].map(str::to_owned).to_vec();
    let raised = FailureReport { tail: lines, ..base() };
    assert_eq!(kind(FailureReport { exit: Exit::Code(3), ..raised.clone() }), "exit", "it called sys.exit");
    let failure = failure_of(&raised, None);
    assert_eq!(failure["kind"], "exception");
    let exception = json!({"type": "ValueError", "message": "no data", "file": "data.py", "line": 17, "function": "load"});
    assert_eq!(failure["exception"], exception);
    let report = ErrorReport {
        message: "cannot \u{9b}31m\u{202e} read".to_owned(),
        callstack: Some("a\nb".to_owned()),
        unix_seconds: None,
        lost_rank: Some(Rank(3)),
    };
    let reported = FailureReport { report: Some(report), exit: Exit::Code(9), ..base() };
    let failure = failure_of(&reported, None);
    assert_eq!((&failure["kind"], &failure["lost_rank"]), (&json!("exception"), &json!(3)));
    assert_eq!(failure["exception"]["message"], "cannot \u{9b}31m\u{202e} read");
    assert_eq!(kind(FailureReport { kind: FailureKind::EndedByStop, ..reported }), "exception");
    let limit = Duration::from_secs(5);
    let joined =
        FailureReport { kind: FailureKind::NotJoined { limit }, not_joined: vec![Rank(2)], ..base() };
    let failure = failure_of(&joined, None);
    assert_eq!((&failure["kind"], &failure["limit"]), (&json!("not_joined"), &json!(5.0)));
    assert_eq!(failure["not_joined"], json!([2]));
    let oom = OomEvidence::InCgroup { limit: Some(1 << 20), is_certain: true };
    let peak = Some(PeakMemory { bytes: 4096, is_own: true });
    let killed = FailureReport { foreign_kill: Some(ForeignKill { oom, peak }), ..example_failure() };
    let failure = failure_of(&killed, None);
    assert_eq!(failure["kind"], "out_of_memory");
    let memory = json!({"out_of_memory": "in_cgroup", "is_certain": true, "limit_bytes": 1_048_576, "peak_bytes": 4096});
    assert_eq!(failure["memory"], memory);
}

#[test]
fn verdict_is_data_without_unknown_fields() {
    let hang = Verdict::Hang(Hang {
        waits: vec![Wait {
            group: String::new(),
            name: Some("all_reduce".to_owned()),
            sequence: 10,
            waiting: ranks(&[0]),
            missing: ranks(&[1]),
            place: Some("train.py:41".to_owned()),
        }],
        silent: vec![RankStatus {
            rank: Rank(1),
            activity: Activity::Step { step: 9, section: None },
            since: Duration::from_micros(1_234_567),
            place: None,
        }],
        has_other_nodes: false,
    });
    let stacks = vec![WorkerStacks { rank: 1, ..WorkerStacks::default() }];
    let report = FailureReport { kind: FailureKind::Hang, stacks, ..example_failure() };
    let failure = failure_of(&report, Some(&hang));
    assert_eq!(failure["kind"], "hang");
    let expected = json!({
        "verdict": "hang", "has_other_nodes": false,
        "waits": [{"collective": "all_reduce", "sequence": 10, "waiting": [0], "missing": [1], "place": "train.py:41"}],
        "ranks": [{"rank": 1, "activity": "step", "step": 9, "seconds": 1.235}],
    });
    assert_eq!(failure["hang"], expected);
    let stacks = json!([{"rank": 1, "local_rank": 0, "python": [], "is_python_cut": false, "is_main_missing": false, "threads": []}]);
    assert_eq!(failure["stacks"], stacks);
    let call = |name: &str, of: &[u32]| Call {
        ranks: ranks(of),
        collective: Collective { sequence: 7, name: name.to_owned(), elements: None },
        place: None,
    };
    let calls = vec![call("all_reduce", &[0, 2]), call("broadcast", &[1])];
    let since = Duration::from_secs(3);
    let desync = Verdict::Desync(Desync { group: "dp".to_owned(), sequence: 7, calls, since });
    let failure = failure_of(&report, Some(&desync));
    assert_eq!(failure["kind"], "desync");
    let expected = json!({
        "verdict": "desync", "group": "dp", "sequence": 7, "seconds": 3.0,
        "calls": [{"ranks": [0, 2], "collective": "all_reduce"}, {"ranks": [1], "collective": "broadcast"}],
    });
    assert_eq!(failure["hang"], expected);
}

#[test]
fn device_has_both_readings_and_new_xids() {
    let xid = |sequence, code| Xid { sequence, code, text: "GPU has fallen off the bus.".to_owned() };
    let before = DeviceReading {
        serial: Some("165".to_owned()),
        corrected_ecc: Some(7),
        xids: Some(vec![xid(1, 13)]),
        ..DeviceReading::default()
    };
    let lost = Some("GPU is lost".to_owned());
    let after = DeviceReading { lost, xids: Some(vec![xid(1, 13), xid(2, 79)]), ..DeviceReading::default() };
    let uuid = "GPU-1".to_owned();
    let device = |after| {
        let counters = Some(DeviceCounters { uuid: uuid.clone(), before: before.clone(), after });
        failure_of(&FailureReport { counters, ..example_failure() }, None)["device"].clone()
    };
    let expected = json!({
        "kind": "cpu", "index": 1, "serial": "165",
        "counters": {
            "before": {"ecc_corrected": 7}, "after": {"lost": "GPU is lost"},
            "xids": [{"code": 79, "text": "GPU has fallen off the bus."}],
        },
    });
    assert_eq!(device(Ok(after)), expected);
    let hung = device(Err(ReadingProblem { why: "no answer".to_owned(), is_unkillable: false }));
    assert_eq!(hung["counters"], json!({"before": {"ecc_corrected": 7}, "problem": "no answer"}));
}

#[test]
fn failure_of_other_node_has_its_node_and_error() {
    let node = NodeName { rank: Some(NodeRank(1)), ..NodeName::of_host("th2") };
    let note = FailureNote::Worker(WorkerFailure {
        node: node.clone(),
        rank: Rank(5),
        local_rank: LocalRank(1),
        pid: 77,
        ended: "exit code 7".to_owned(),
        message: Some("ValueError: bad batch".to_owned()),
        last_lines: Vec::new(),
        lost_peer: None,
    });
    let record = remote_failure(Some(&note), None);
    let failure = document(ExitStatus::Code(1), None, Some(&record))["failure"].clone();
    let expected = json!({
        "kind": "remote", "sentence": "rank 5 (local rank 1) on node 1 (th2) failed first: exit code 7",
        "rank": 5, "local_rank": 1, "pid": 77, "node": {"name": "th2", "rank": 1},
        "exception": {"type": "ValueError", "message": "bad batch"}, "hint": "the launcher on node 1 (th2) says more",
    });
    assert_eq!(failure, expected);
    let kind =
        |record: FailureRecord| document(ExitStatus::Code(1), None, Some(&record))["failure"]["kind"].clone();
    assert_eq!(kind(remote_failure(Some(&FailureNote::NodeLost { node }), None)), "lost_node");
    assert_eq!(kind(remote_failure(None, Some(&RendezvousEnd::Closed { failure: None }))), "remote");
    let limit = LauncherFailure::TimeLimit(Duration::from_secs(2));
    assert_eq!(kind(launcher_failure(&limit, String::new(), None)), "time_limit");
}

/// The text has no byte that a terminal obeys but line ends.
#[test]
fn report_text_escapes_all_controls() {
    let tail =
        ["a\u{1b}[2Jb\u{7f}\u{9b}c\u{202e}d é", "\": null", "}, \"x\": null,"].map(str::to_owned).to_vec();
    let record = local_failure(&FailureReport { tail: tail.clone(), ..example_failure() }, None, None);
    let text = text_of(ExitStatus::Code(1), None, Some(&record));
    assert!(text.contains(r"a\u001b[2Jb\u007f\u009bc\u202ed é"), "{text}");
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["failure"]["last_lines"], json!(tail));
}
