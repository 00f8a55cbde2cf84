//! Error messages of any length: the message is cut, and the report stays.

use std::fs;
use std::time::Duration;

use harness::{Fleet, Job, Launch, Name, Outcome, Scratch, is_rankrun, print_notice, python};
use serde_json::Value;

use crate::nodes::{ENDPOINT, c10d};

const MIB: usize = 1024 * 1024;

/// A worker of this rank writes an error file and ends with 3, the others wait to be stopped. The message begins with
/// `HEAD`, ends with `TAIL`, and between them `filler` stands `count` times.
fn failing_worker_line(rank: usize, filler: &str, count: usize) -> String {
    format!(
        "if [ $RANK != {rank} ]; then exec sleep 1000; fi; \
         {{ printf '{{\"message\": {{\"message\": \"HEAD'; \
         yes '{filler}' | head -n {count} | tr -d '\\n'; \
         printf 'TAIL\", \"extraInfo\": {{\"timestamp\": \"1700000000\"}}}}}}'; }} > \"$TORCHELASTIC_ERROR_FILE\"; \
         exit 3"
    )
}

/// So long is the message that [`shell`] writes, where each filler stands for `bytes` bytes.
const fn message_len(bytes: usize, count: usize) -> usize {
    8 + bytes * count
}

/// As [`Launch::shell`], of a text that holds `$` as a shell reads it.
fn launch_shell_line(launch: Launch, line: &str) -> Launch {
    launch.shell(&line.replace("$$", "$$$$")).limit(Duration::from_secs(200))
}

/// The report is there, and the message in it is cut and says its length.
#[track_caller]
fn assert_report_is_cut(outcome: &Outcome, name: Name, len: usize) {
    outcome.expect_exit_code(name.code(3)).expect_stderr("error: rank 1 failed first: exit code 3\n");
    outcome
        .expect_stderr("HEAD")
        .expect_stderr("TAIL")
        .expect_absent("messages of the launcher were dropped");
    outcome.expect_stderr(&format!(" of {len} bytes are left out"));
    assert!(
        outcome.stderr_bytes().len() < 3 * MIB / 2,
        "{} bytes are not a cut report",
        outcome.stderr_bytes().len()
    );
    if name == Name::Torchrun {
        outcome.expect_stderr("Root Cause (first observed failure):\n[0]:\n");
        outcome.expect_stderr("  rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: ");
    }
}

#[test]
fn message_of_megabytes_is_cut_and_the_report_stays() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        for megabytes in [2, 64] {
            let count = megabytes * MIB / 64;
            let line = failing_worker_line(1, &"x".repeat(64), count);
            let outcome = launch_shell_line(Launch::standalone(*name, 2), &line).run();
            assert_report_is_cut(&outcome, *name, message_len(64, count));
        }
    }
}

/// One worker's message gets the whole of the report's limit. The report is a little longer then.
#[test]
fn message_of_megabytes_of_one_worker_leaves_torchruns_report() {
    if !is_rankrun() {
        return;
    }
    let count = 2 * MIB / 64;
    let outcome = launch_shell_line(
        Launch::standalone(Name::Torchrun, 1),
        &failing_worker_line(0, &"x".repeat(64), count),
    )
    .run();
    outcome
        .expect_exit_code(1)
        .expect_stderr("Root Cause (first observed failure):\n[0]:\n")
        .expect_stderr("TAIL\n=====");
    outcome.expect_stderr(&format!(" of {} bytes are left out", message_len(64, count)));
    outcome.expect_absent("messages of the launcher were dropped");
}

/// A cut in the middle of a letter or of an escape would be a broken text.
#[test]
fn message_of_many_lines_is_cut_between_letters() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        for (filler, bytes) in [("é😀\\n", 7), ("\\u00e9\\ud83d\\ude00\\\\ \\n", 9), ("\\n", 1)] {
            let count = 3 * MIB;
            let outcome =
                launch_shell_line(Launch::standalone(*name, 2), &failing_worker_line(1, filler, count)).run();
            assert_report_is_cut(&outcome, *name, message_len(bytes, count));
            outcome.expect_absent("\u{fffd}").expect_absent("is left out:");
        }
    }
}

#[test]
fn message_over_the_largest_file_leaves_the_report() {
    if !is_rankrun() {
        return;
    }
    let line = "if [ $RANK != 1 ]; then exec sleep 1000; fi; \
                truncate -s 300M \"$TORCHELASTIC_ERROR_FILE\"; exit 3";
    for name in Name::both() {
        let outcome = launch_shell_line(Launch::standalone(*name, 2), line).run();
        outcome.expect_exit_code(name.code(3)).expect_stderr("error: rank 1 failed first: exit code 3\n");
        outcome.expect_stderr("/1/error.json` is left out: the error file has more than ");
    }
}

/// All of 24 workers have long messages: each is cut, and all are listed.
#[test]
fn long_messages_of_many_workers_leave_torchruns_report() {
    if !is_rankrun() {
        return;
    }
    let line = "printf '{\"message\": \"HEAD%0200000d%dTAIL\", \"timestamp\": 1700000000}' 7 $RANK \
                > \"$TORCHELASTIC_ERROR_FILE\"; sleep 0.01; exit 3";
    let scratch = Scratch::new();
    let launch = Launch::standalone(Name::Torchrun, 24).args(["--log-dir", &scratch.at("logs")]);
    let outcome = launch_shell_line(launch, &format!("trap '' TERM; {line}")).run();
    outcome.expect_exit_code(1).expect_absent("messages of the launcher were dropped");
    assert_eq!(outcome.lines_with("  rank      : ").len(), 24, "{} bytes", outcome.stderr_bytes().len());
    assert_eq!(outcome.lines_with("TAIL").len(), 24 + usize::from(outcome.stderr().contains("reported")));
}

/// What fits is torchrun's to the byte.
#[test]
fn message_of_700_kilobytes_is_byte_identical_to_torchrun() {
    let filler = "0123456789abcde ".repeat(4);
    let report = |name: Name| {
        let launch = Launch::standalone(name, 1).limit(Duration::from_secs(300));
        let outcome = launch_shell_line(launch, &failing_worker_line(0, &filler, 11_000)).run();
        let err = outcome.expect_exit_code(1).stderr();
        let (_, root) = err.split_once("  traceback : ").expect("the report has a traceback");
        root.to_owned()
    };
    let ours = report(Name::Torchrun);
    assert!(
        ours.starts_with("HEAD0123") && ours.contains("TAIL\n=====") && ours.len() > 700_000,
        "{ours:.90}"
    );
    assert!(ours == report(Name::Reference), "torchrun prints another text");
}

#[test]
fn parent_error_file_has_the_cut_message() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let scratch = Scratch::new();
        let path = scratch.at("parent.json");
        let launch = Launch::standalone(*name, 2).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        let count = MIB;
        let outcome = launch_shell_line(launch, &failing_worker_line(1, &"x".repeat(64), count)).run();
        outcome.expect_exit_code(name.code(3));
        let text = fs::read_to_string(&path).expect("the launcher writes the file");
        assert!(text.len() < MIB, "{} bytes are not cut", text.len());
        let file: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(file["message"]["errorCode"], 3);
        assert_eq!(file["message"]["extraInfo"]["timestamp"], "1700000000");
        let message = file["message"]["message"].as_str().expect("the message is a text");
        assert!(message.starts_with("HEADxx") && message.ends_with("xxTAIL"), "{message:.99}");
        assert!(message.contains(&format!(" of {} bytes are left out", message_len(64, count))));
    }
}

/// Each node shows the start and the end of the message of the worker that failed first.
#[test]
fn every_node_shows_both_ends_of_a_long_message() {
    if !is_rankrun() {
        return;
    }
    for count in [100, MIB / 16, MIB] {
        let Some(fleet) = Fleet::start(2) else { return };
        let line = failing_worker_line(1, &"x".repeat(64), count);
        let start =
            |host| fleet.on(host, launch_shell_line(c10d(Name::Rankrun, ENDPOINT, "2"), &line)).start();
        let outcomes: Vec<Outcome> =
            fleet.hosts().map(start).collect::<Vec<_>>().into_iter().map(Job::wait).collect();
        let other =
            outcomes.iter().find(|outcome| outcome.status.code() == Some(1)).expect("one node is the other");
        let row = other.lines_with("  reported  ").concat();
        assert!(row.contains("HEADxx") && row.contains("xxTAIL"), "{other}");
        assert!(
            row.contains(&format!(" of {} bytes are left out", message_len(64, count))) && row.len() < 2100,
            "{row}"
        );
        fleet.is_empty();
    }
}

/// Events on the console are JSON, also with a long message.
#[test]
fn event_of_a_long_message_is_still_json() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Torchrun, 2).args(["--event-log-handler", "console"]);
    let outcome = launch_shell_line(launch, &failing_worker_line(1, &"x".repeat(64), MIB / 16)).run();
    let lines = outcome.lines_with("worker.status.FAILED");
    let event = lines.iter().find(|line| line.contains("HEAD")).expect("the worker's event is there");
    let (_, json) = event.split_at(event.find('{').expect("an event is an object"));
    let event: Value = serde_json::from_str(json).expect("the event is JSON");
    let raw_error = event["metadata"]["raw_error"].as_str().expect("the event has the error");
    let error: Value = serde_json::from_str(raw_error).expect("the error is JSON");
    assert!(error["message"]["message"].as_str().is_some_and(|text| text.ends_with("TAIL")), "{error}");
}

/// As a program of PyTorch writes it: the message is in the traceback once more.
#[test]
fn recorded_exception_of_megabytes_is_cut() {
    if !python().exists() {
        print_notice("skipped: no PyTorch here");
        return;
    }
    let scratch = Scratch::new();
    let text = "import os, time\n\
                from torch.distributed.elastic.multiprocessing.errors import record\n\
                @record\n\
                def main():\n    \
                    if os.environ['RANK'] == '1': raise ValueError('HEAD' + 'é' * 2_000_000 + 'TAIL')\n    \
                    time.sleep(1000)\n\
                main()\n";
    let script = scratch.file("train.py", text, 0o644);
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let launch =
            Launch::standalone(*name, 2).with_torch().args(["--log-dir", &scratch.at("logs"), "-r", "3"]);
        let outcome = launch.args([script.as_str()]).run();
        outcome.expect_exit_code(1).expect_stderr("error: rank 1 failed first: exit code 1\n");
        outcome
            .expect_stderr("ValueError: HEAD")
            .expect_stderr("TAIL\n")
            .expect_stderr(" bytes are left out");
        outcome.expect_absent("messages of the launcher were dropped");
    }
}
