//! Texts of the failure report.

use super::*;
use rankrun_contract::rank::NodeRank;
use rankrun_core::device::reading::{DeviceReading, ReadingProblem};
use rankrun_core::device::{ChosenDevice, DeviceType, fake};
use rankrun_core::hang::verdict::{Hang, Wait};
use std::time::Duration;

pub(in crate::reporter) fn example_failure() -> FailureReport {
    FailureReport {
        rank: Rank(1),
        local_rank: LocalRank(1),
        pid: Pid::from_raw(77),
        device: WorkerDevice::cpu(LocalRank(1)),
        node: NodeName::of_host("gpu-node-7"),
        exit: Exit::Signal { number: 9, core_dumped: false },
        foreign_kill: None,
        oom: OomKills::default(),
        log_disk: None,
        kind: FailureKind::Ended,
        started: SystemTime::UNIX_EPOCH,
        ended: SystemTime::UNIX_EPOCH + Duration::from_millis(2_500),
        restarts: (RestartCount(1), RestartCount(1)),
        report: None,
        files: vec![PathBuf::from("/logs/1/stderr.log")],
        kept: KeptOutput::default(),
        tail: vec!["step 9".to_owned(), "step 10".to_owned()],
        is_output_captured: true,
        program: ProgramKind::Any,
        not_joined: Vec::new(),
        hang: None,
        counters: None,
        collectives: None,
        dead_devices: Vec::new(),
        early: Vec::new(),
        other_ends: vec![OtherEnd { rank: Rank(0), exit: Exit::Signal { number: 15, core_dumped: false } }],
        peers: Vec::new(),
        stacks: Vec::new(),
        cause_hint: None,
    }
}

#[test]
fn collective_of_dumps_has_row_of_its_own() {
    let wait = Wait {
        group: String::new(),
        name: Some("all_reduce".to_owned()),
        sequence: 5,
        waiting: [Rank(0), Rank(1)].into(),
        missing: [Rank(2)].into(),
        place: None,
    };
    let hang = Hang { waits: vec![wait], silent: Vec::new(), has_other_nodes: false };
    let failure = FailureReport { collectives: Some(Verdict::Hang(hang)), ..example_failure() };
    let row = "\n  waits     ranks 0, 1 wait in all_reduce #5; rank 2 has not called it (by the dumps of PyTorch's flight \
               recorders)\n";
    assert!(render(&failure).contains(row), "{}", render(&failure));
}

#[test]
fn failure_report_shows_rank_device_node_times_and_output() {
    assert_eq!(
        render(&example_failure()),
        "\
rank 1 failed first: killed by SIGKILL
  worker    rank 1, local rank 1, pid 77
  device    cpu:1
  node      gpu-node-7
  started   1970-01-01T00:00:00.000Z
  ended     1970-01-01T00:00:02.500Z, after 2.5 s
  restarts  1 of 1 used
  log       /logs/1/stderr.log
  others    rank 0: killed by SIGTERM
  its last lines:
    | step 9
    | step 10
"
    );
    assert_eq!(hint(&example_failure()), None);
}

#[test]
fn failure_report_has_exception_and_its_last_frame_in_one_row() {
    let traceback = "Traceback (most recent call last):\n  File \"/job/train.py\", line 9, in <module>\n    main()\n  File \
                     \"/job/data.py\", line 17, in load_batch\n    raise ValueError('x')\nValueError: x y";
    let tail: Vec<String> = traceback.lines().map(str::to_owned).collect();
    let printed = FailureReport { exit: Exit::Code(1), tail, ..example_failure() };
    let row = "  raised    ValueError in load_batch (data.py:17): x y\n";
    assert!(render(&printed).contains(row), "{}", render(&printed));
    // Not what a signal ended that came later.
    let killed = FailureReport { exit: example_failure().exit, ..printed };
    assert!(!render(&killed).contains("  raised"), "{}", render(&killed));
}

#[test]
fn failure_report_of_multi_node_job_names_node() {
    let addr = Some("10.0.0.2".to_owned());
    let node = NodeName { rank: Some(NodeRank(1)), addr, ..example_failure().node };
    let failure = FailureReport { rank: Rank(5), node, ..example_failure() };
    let text = render(&failure);
    let first = "rank 5 (local rank 1) on node 1 (gpu-node-7, 10.0.0.2) failed first: killed by SIGKILL\n";
    assert!(text.starts_with(first), "{text}");
    assert!(text.contains("  node      1, gpu-node-7, 10.0.0.2\n"), "{text}");
}

#[test]
fn failure_report_shows_stacks_on_one_screen() {
    let worker = |rank: u32| WorkerStacks {
        rank,
        python_absence: Some(format!("rank {rank} has none")),
        ..WorkerStacks::default()
    };
    let failure = FailureReport { stacks: (0..50).map(worker).collect(), ..example_failure() };
    let text = render(&failure);
    let stacks = text.split_once("  where workers stood that did not answer:\n").unwrap().1;
    assert!(stacks.starts_with("    rank 0: rank 0 has none\n"), "{text}");
    assert_eq!(stacks.lines().filter(|line| line.contains("has none")).count(), MAX_STACK_LINES);
    assert!(stacks.contains("    and 34 further lines\n"), "{text}");
}

#[test]
fn failure_report_identifies_device() {
    let mut failure = example_failure();
    let mut gpu = fake::card(DeviceType::Cuda, 3, "NVIDIA H100", 0x1b);
    gpu.numa_node = Some(1);
    let identity = Some(ChosenDevice::new(3, gpu));
    failure.device = WorkerDevice { kind: DeviceType::Cuda, identity, ..WorkerDevice::cpu(LocalRank(0)) };
    let row = "  device    cuda:0, GPU 3 NVIDIA H100 (0000:1b:00.0), NUMA node 1\n";
    assert!(render(&failure).contains(row), "{}", render(&failure));
}

#[test]
fn counters_of_device_are_a_row_if_they_changed() {
    let reading = |ecc| DeviceReading { uncorrected_ecc: Some(ecc), ..DeviceReading::default() };
    let row = |after, serial: Option<&str>| {
        let before = DeviceReading { serial: serial.map(str::to_owned), ..reading(0) };
        let counters = Some(DeviceCounters { uuid: "GPU-1".to_owned(), before, after });
        let text = render(&FailureReport { counters, ..example_failure() });
        text.lines().find_map(|line| line.strip_prefix("  counters  ")).map(str::to_owned)
    };
    assert_eq!(row(Ok(reading(0)), Some("165")), None);
    assert_eq!(
        row(Ok(reading(2)), Some("165\x1b[31m")).as_deref(),
        Some("ECC uncorrected 0 → 2 (serial 165, GPU-1)")
    );
    assert_eq!(row(Ok(reading(2)), None).as_deref(), Some("ECC uncorrected 0 → 2 (GPU-1)"));
    let unread =
        |is_unkillable| Err(ReadingProblem { why: "NVML: no answer within 1.4 s".to_owned(), is_unkillable });
    let unread_row = "not read after the failure: NVML: no answer within 1.4 s";
    assert_eq!(row(unread(true), None).as_deref(), Some(unread_row));
    assert_eq!(row(unread(false), None), None, "the driver of a good card may be slow");
}

#[test]
fn dead_device_is_named_with_its_ranks() {
    let dead = DeadDeviceSummary {
        ranks: vec![Rank(1), Rank(3)],
        device: "cuda 3 (Fast\x1b[31m, 0000:1b:00.0)".to_owned(),
        why: "does not answer: GPU is lost".to_owned(),
    };
    let failure = FailureReport { dead_devices: vec![dead], ..example_failure() };
    let line = "  dead      cuda 3 (Fast, 0000:1b:00.0) of ranks 1, 3: does not answer: GPU is lost";
    assert!(render(&failure).lines().any(|found| found == line), "{}", render(&failure));
    assert!(hint(&failure).is_some_and(|hint| hint.contains("dmesg")));
}

#[test]
fn first_line_tells_effect_of_launcher_stop() {
    let first_line = |failure: &FailureReport| render(failure).lines().next().unwrap_or_default().to_owned();
    let stopped = FailureReport { kind: FailureKind::EndedByStop, ..example_failure() };
    assert_eq!(
        first_line(&stopped),
        "rank 1 failed first: it had reported its failure when the stop ended it (killed by SIGKILL)"
    );
    let dstate = FailureReport {
        kind: FailureKind::Uninterruptible { blocked_for: Duration::from_millis(2_040) },
        ..example_failure()
    };
    assert_eq!(
        first_line(&dstate),
        "rank 1 failed first: stuck in the kernel for 2.0 s and stopped (killed by SIGKILL)"
    );
    let late = FailureReport {
        kind: FailureKind::NotJoined { limit: Duration::from_secs(5) },
        not_joined: vec![Rank(1), Rank(3)],
        ..example_failure()
    };
    assert_eq!(
        first_line(&late),
        "rank 1 failed first: it had not joined the store within 5 s and was stopped (killed by SIGKILL)"
    );
    assert!(render(&late).contains("  missing   ranks 1, 3\n"), "{}", render(&late));
    let advice = "slow imports or data need a longer `--start-timeout`; a program without torch.distributed never joins";
    assert_eq!(hint(&late), Some(format!("its last lines say how far it got; {advice}")));
    let silent = FailureReport { tail: Vec::new(), ..late };
    assert_eq!(hint(&silent), Some(format!("it has printed nothing; {advice}")));
    assert_eq!(hint(&FailureReport { is_output_captured: false, ..silent }), Some(advice.to_owned()));
    let shell = FailureReport { exit: Exit::Code(139), ..example_failure() };
    assert_eq!(first_line(&shell), "rank 1 failed first: exit code 139 (a shell's way to say SIGSEGV)");
}

#[test]
fn silent_worker_hint_asks_for_output() {
    let silent = FailureReport {
        exit: Exit::Code(1),
        tail: Vec::new(),
        files: Vec::new(),
        program: ProgramKind::Python,
        ..example_failure()
    };
    let exits = "the worker printed nothing before `sys.exit(1)`; print the reason to stderr there";
    assert_eq!(hint(&silent).as_deref(), Some(exits));
    let unseen = FailureReport { is_output_captured: false, ..silent.clone() };
    assert!(hint(&unseen).is_some_and(|hint| hint.contains("errors.record")), "its traceback goes elsewhere");
    let killed = Exit::Signal { number: libc::SIGTERM, core_dumped: false };
    assert_eq!(hint(&FailureReport { exit: killed, ..silent.clone() }), None);
    for silent in [&silent, &unseen] {
        let files = vec![PathBuf::from("/logs/1/error.json")];
        let external_worker = FailureReport { files, ..silent.clone() };
        assert_eq!(hint(&external_worker), None, "`record` is there already");
    }
    let any = FailureReport { program: ProgramKind::Any, ..silent };
    let exits = "the worker printed nothing before `exit 1`; print the reason to stderr there";
    assert_eq!(hint(&any).as_deref(), Some(exits));
    let any = FailureReport { is_output_captured: false, ..any };
    for (by_streams, in_folder, advised, omitted) in [
        (false, false, "`--tee 3 --log-dir DIR`", "explain"),
        (false, true, "`--tee 3`", "--log-dir"),
        (true, false, "`--log-dir`", "--tee"),
        (true, true, "`rankrun explain --script 1`", "--tee"),
    ] {
        let message =
            hint(&FailureReport { kept: KeptOutput { by_streams, in_folder }, ..any.clone() }).unwrap();
        assert!(message.contains(advised) && !message.contains(omitted), "{message}");
    }
    assert_eq!(hint(&FailureReport { tail: vec!["it says why".to_owned()], ..any }), None);
}

#[test]
fn reported_message_is_escaped() {
    let mut failure = example_failure();
    let message = "\x1b[31mlost\nit\x1b[0m".to_owned();
    failure.report = Some(ErrorReport { message, callstack: None, unix_seconds: None, lost_rank: None });
    let text = render(&failure);
    assert!(text.contains("what it reported:\n    | lost\n    | it\n"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn reported_traceback_is_shown_once() {
    let mut failure = example_failure();
    failure.report = Some(ErrorReport {
        message: "ValueError: x".to_owned(),
        callstack: Some("Traceback:\n  line 1\nValueError: x\n".to_owned()),
        unix_seconds: None,
        lost_rank: None,
    });
    let text = render(&failure);
    assert_eq!(text.matches("ValueError: x").count(), 1, "{text}");
    assert!(text.contains("    |   line 1\n"), "{text}");
}

#[test]
fn reported_lines_are_removed_from_last_lines() {
    let mut failure = example_failure();
    failure.report = Some(ErrorReport {
        message: "panic: no data".to_owned(),
        callstack: Some("panic: no data\nat src/main.rs:7:9\n   3: train::step".to_owned()),
        unix_seconds: None,
        lost_rank: None,
    });
    let tail = ["step 9", "", "rank 1: panic: no data", "  at src/main.rs:7:9", "       3: train::step", ""];
    failure.tail = tail.map(str::to_owned).to_vec();
    assert!(render(&failure).ends_with("  its last lines:\n    | step 9\n"), "{}", render(&failure));
    failure.tail = tail[1..].iter().map(|line| (*line).to_owned()).collect();
    assert!(!render(&failure).contains("its last lines"), "{}", render(&failure));
}

#[test]
fn printed_traceback_is_removed_from_last_lines() {
    let mut failure = example_failure();
    failure.report = Some(ErrorReport {
        message: "ValueError: x".to_owned(),
        callstack: Some("Traceback:\n  line 6\nValueError: x\n".to_owned()),
        unix_seconds: None,
        lost_rank: None,
    });
    let tail = ["line 6", "Traceback:", "  line 7", "  line 6", "ValueError: x", "cleaning up"];
    failure.tail = tail.map(str::to_owned).to_vec();
    assert!(render(&failure).ends_with("  its last lines:\n    | cleaning up\n"), "{}", render(&failure));
}
