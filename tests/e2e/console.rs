//! The console under our own name, on pipes: whole lines, and unfinished ones in time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use harness::{Gate, Launch, Name, Scratch, field, is_rankrun};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

const LINES: usize = 3_000;

/// Fails unless every line of the flood arrived whole, and those of each rank in order.
#[track_caller]
fn assert_lines_complete(outcome: &harness::Outcome, prefix: impl Fn(usize) -> String, workers: usize) {
    let mut next: BTreeMap<usize, usize> = BTreeMap::new();
    for line in outcome.stdout_lines() {
        let number = |key| field(&line, key).and_then(|text| text.parse::<usize>().ok());
        let parsed = (number("rank"), number("line"), number("width"));
        let (Some(rank), Some(index), Some(width)) = parsed else { panic!("a torn line: `{line}`") };
        let expected =
            format!("{}flood rank={rank} line={index} width={width} [{}]", prefix(rank), "x".repeat(width));
        assert_eq!(line, expected, "a torn line");
        let due = next.entry(rank).or_default();
        assert_eq!(index, *due, "rank {rank} lost or reordered a line");
        *due += 1;
    }
    let complete: BTreeMap<usize, usize> = (0..workers).map(|rank| (rank, LINES)).collect();
    assert_eq!(next, complete);
}

#[test]
fn flooding_workers_lines_are_not_torn() {
    let outcome = Launch::standalone(Name::Rankrun, 4).worker([format!("flood={LINES}")]).run();
    outcome.expect_exit_code(0);
    assert_lines_complete(&outcome, |_| String::new(), 4);
}

#[test]
fn flooding_workers_teed_lines_are_not_torn() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 4).args(["-t", "1"]).worker([format!("flood={LINES}")]).run();
        outcome.expect_exit_code(0);
        assert_lines_complete(&outcome, |rank| format!("[default{rank}]:"), 4);
    }
}

#[test]
fn unfinished_line_is_shown_while_worker_waits() {
    let gate = Gate::closed();
    let launch = Launch::standalone(Name::Rankrun, 1);
    let job = launch.worker(["write=password: ", &gate.step(), "write=rest\n"]).start();
    job.wait_for_text("password: ");
    gate.open(1);
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.stdout(), "password: rest\n");
}

#[test]
fn unfinished_line_does_not_merge_with_other_ranks_line() {
    let scratch = Scratch::new();
    let (mine, other) = (Gate::new(&scratch, "mine"), Gate::new(&scratch, "other"));
    let steps = [
        "rank0:write=step 1".to_owned(),
        format!("rank0:{}", mine.step()),
        "rank0:write= done\n".to_owned(),
        format!("rank1:{}", other.step()),
        "rank1:print=whole line of rank 1".to_owned(),
    ];
    let job = Launch::standalone(Name::Rankrun, 2).worker(steps).start();
    job.wait_for_text("step 1");
    other.open(1);
    job.wait_for_line("whole line of rank 1");
    mine.open(1);
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    assert!(outcome.stdout_lines().contains(&"whole line of rank 1".to_owned()), "{outcome}");
    outcome.expect_stdout("step 1").expect_stdout(" done\n");
}

#[test]
fn last_line_without_newline_is_shown() {
    let outcome = Launch::standalone(Name::Rankrun, 1).worker(["write=no newline"]).run();
    outcome.expect_exit_code(0);
    assert!(outcome.stdout().starts_with("no newline"), "{outcome}");
}

#[test]
fn stdout_and_stderr_stay_separate() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).worker(["print=to stdout", "eprint=to stderr"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout(), "to stdout\nto stdout\n");
        assert_eq!(outcome.stderr().matches("to stderr\n").count(), 2, "{outcome}");
        assert!(!outcome.stderr().contains("to stdout"), "{outcome}");
    }
}

#[test]
fn output_not_utf8_passes_unchanged() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).worker(["bytes"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout_bytes(), b"a\xffb\rc\r\nlast", "{outcome}");
    }
}

#[test]
fn killed_worker_earlier_output_is_shown() {
    let steps = [format!("flood={LINES}"), "die=SIGKILL".into(), "forever".into()];
    let outcome = Launch::standalone(Name::Rankrun, 1).worker(steps).run();
    outcome.expect_exit_code(137);
    assert_eq!(outcome.lines_with("flood rank=0 line=2999 ").len().min(1), 1, "{outcome}");
}

#[test]
fn closed_stdout_reader_does_not_stop_job() {
    let scratch = Scratch::new();
    let done = scratch.at("done");
    // `head` closes the launcher's stdout after one line; under torchrun's name the workers themselves would see it.
    let launch = Launch::standalone(Name::Rankrun, 1).under(["sh", "-c", "\"$@\" | head -n 1", "sh"]);
    let steps = [format!("flood={LINES}"), format!("touch={done}")];
    launch.worker(steps).run().expect_exit_code(0);
    assert!(std::path::Path::new(&done).exists(), "the worker did not reach its end");
}

#[test]
fn job_without_output_prints_nothing() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).env("RANKRUN_QUIET", "1").shell("true").run();
        outcome.expect_exit_code(0);
        assert_eq!((outcome.stdout(), outcome.stderr()), (String::new(), String::new()));
    }
}

/// The threads of a process that copy output.
fn count_output_threads(pid: i32) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
    let names = threads.flat_map(|thread| fs::read_to_string(thread.path().join("comm")));
    names.filter(|name| name == "rankrun-logs\n").count()
}

#[test]
fn stalled_reader_of_stdout_leaves_stderr_copied() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (fifo, go) = (scratch.at("fifo"), scratch.at("go"));
    nix::unistd::mkfifo(&*fifo, Mode::S_IRWXU).expect("the scratch folder takes a FIFO");
    // Both ends, so that neither open waits.
    let flags = libc::O_NONBLOCK;
    let pipe = File::options().read(true).write(true).custom_flags(flags).open(&fifo).unwrap();
    let line =
        format!("yes & echo started >&2; until [ -e '{go}' ]; do sleep 0.05; done; echo seen >&2; wait");
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--tee", "3"]);
    let launch = launch.under(["sh", "-c", "fifo=$1; shift; exec \"$@\" >\"$fifo\"", "sh", &fifo]);
    let job = launch.shell(&line).start();
    job.wait_for_line("started");
    let is_full = || {
        let mut end = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
        poll(&mut end, PollTimeout::ZERO) == Ok(0)
    };
    job.wait_until("the output is full", is_full);
    fs::write(&go, "").unwrap();
    job.wait_for_line("seen");
    assert_eq!(count_output_threads(job.only_child_of(job.pid())), 2);
    job.signal(Signal::SIGTERM);
    // Without a reader the rest of the output is dropped.
    drop(pipe);
    job.wait().expect_exit_code(143);
}
