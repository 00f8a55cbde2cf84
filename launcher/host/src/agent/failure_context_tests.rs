//! From exits and error files to the failure report.

use super::*;
use rankrun_contract::env::Master;
use rankrun_contract::rank::LocalWorldSize;
use rankrun_core::device::WorkerDevice;
use rankrun_core::placement;
use rankrun_core::posix::{Exit, Pid};
use rankrun_core::spec::fake::example;

fn end(local_rank: u32, exit: Exit) -> WorkerEnd {
    let pid = Pid::from_raw(100 + i32::try_from(local_rank).unwrap());
    let at = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    WorkerEnd { local_rank: LocalRank(local_rank), pid, exit, at, error_file_info: None, foreign_kill: None }
}

fn signal(number: i32) -> Exit {
    Exit::Signal { number, core_dumped: false }
}

/// torchrun's report of a failure of rank 1, with its error file if there is one.
fn report(kind: FailureKind, file: Option<&str>, others: &[(WorkerEnd, bool)]) -> TorchReport {
    let failure = Failure::of_ends(end(1, Exit::Code(9)), kind, others);
    let file = file.map(|text| (LocalRank(1), ErrorFile::parse(text.as_bytes()).unwrap()));
    let master = Master { addr: "127.0.0.1".to_owned(), port: 1, uses_agent_store: true };
    let round = Round::of_one_node(LocalWorldSize::new(4).unwrap(), master);
    let evidence = FailureContext {
        stacks: &[],
        counters: None,
        placements: &placement::assign_ranks(
            &[0, 1, 2, 3].map(|rank| WorkerDevice::cpu(LocalRank(rank))),
            &round,
        ),
        round: Some(&round),
        started: UNIX_EPOCH,
        spec: &example(),
        attempt: None,
        error_files: &file.into_iter().collect(),
        tail: Vec::new(),
        file_calls: &FileCalls::default(),
        is_output_seen: true,
        oom: crate::process::oom::OomKills::default(),
        log_disk: None,
    };
    evidence.torch_report(&failure, "x".to_owned())
}

fn at(seconds: u64) -> LocalTime {
    LocalTime::of(UNIX_EPOCH + Duration::from_secs(seconds))
}

#[test]
fn torch_report_takes_time_and_message_from_error_file() {
    let (stamped, seen) = (at(1_700_000_000), at(1_800_000_000));
    let text = |text: &str| Message::Text(text.to_owned());
    let stack = |text: &str| Message::Traceback(text.to_owned());
    for (file, time, message) in [
        (r#"{"message": "m", "timestamp": "1700000000"}"#, stamped, text("m")),
        (r#"{"message": "m", "timestamp": 1700000000}"#, stamped, text("m")),
        (r#"{"message": "m"}"#, seen, text("m")),
        (r#"{"message": "", "timestamp": 18446744073709551615}"#, seen, Message::None),
        (r#"{"message": {"message": "m", "extraInfo": {"timestamp": "1700000000"}}}"#, stamped, stack("m")),
        (
            r#"{"message": {"message": "m", "extraInfo": {"timestamp": "0", "py_callstack": "s"}}}"#,
            seen,
            stack("s"),
        ),
    ] {
        let root = report(FailureKind::Ended, Some(file), &[]).root_cause;
        assert_eq!((root.time, root.message), (time, message), "{file}");
    }
}

#[test]
fn torch_report_omits_successes_and_lists_stopped_workers_last() {
    let others = [
        (end(3, signal(15)), true),
        (end(2, Exit::Code(4)), false),
        (end(0, signal(15)), true),
        (end(4, Exit::Code(0)), false),
    ];
    let listed: Vec<u32> =
        report(FailureKind::Ended, None, &others).others.iter().map(|other| other.local_rank.0).collect();
    assert_eq!(listed, [2, 0, 3]);
}

#[test]
fn torch_report_of_dstate_worker_names_dstate() {
    let root = report(FailureKind::Uninterruptible { blocked_for: Duration::from_millis(2_040) }, None, &[])
        .root_cause;
    let expected = "Worker stuck in uninterruptible sleep (D-state) for 2.0s";
    assert_eq!(root.message, Message::Text(expected.to_owned()));
}
