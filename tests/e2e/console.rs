//! The console under our own name, on pipes: whole lines, and unfinished ones in time.

use std::collections::BTreeMap;

use harness::{Gate, Launch, Name, Scratch, field, only_ours};

const LINES: usize = 3_000;

/// Fails unless every line of the flood arrived whole, and those of each rank in order.
#[track_caller]
fn whole(outcome: &harness::Outcome, prefix: impl Fn(usize) -> String, workers: usize) {
    let mut next: BTreeMap<usize, usize> = BTreeMap::new();
    for line in outcome.out_lines() {
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
fn lines_of_flooding_workers_stay_whole() {
    let outcome = Launch::standalone(Name::Rankrun, 4).worker([format!("flood={LINES}")]).run();
    outcome.exits(0);
    whole(&outcome, |_| String::new(), 4);
}

#[test]
fn teed_lines_of_flooding_workers_stay_whole() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 4).args(["-t", "1"]).worker([format!("flood={LINES}")]).run();
        outcome.exits(0);
        whole(&outcome, |rank| format!("[default{rank}]:"), 4);
    }
}

#[test]
fn an_unfinished_line_shows_while_its_worker_waits() {
    let gate = Gate::closed();
    let launch = Launch::standalone(Name::Rankrun, 1);
    let job = launch.worker(["write=password: ", &gate.step(), "write=rest\n"]).start();
    job.text("password: ");
    gate.open(1);
    let outcome = job.wait();
    outcome.exits(0);
    assert_eq!(outcome.out(), "password: rest\n");
}

#[test]
fn an_unfinished_line_does_not_swallow_anothers() {
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
    job.text("step 1");
    other.open(1);
    job.line("whole line of rank 1");
    mine.open(1);
    let outcome = job.wait();
    outcome.exits(0);
    assert!(outcome.out_lines().contains(&"whole line of rank 1".to_owned()), "{outcome}");
    outcome.says("step 1").says(" done\n");
}

#[test]
fn the_last_line_needs_no_end() {
    let outcome = Launch::standalone(Name::Rankrun, 1).worker(["write=no newline"]).run();
    outcome.exits(0);
    assert!(outcome.out().starts_with("no newline"), "{outcome}");
}

#[test]
fn both_streams_stay_apart() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).worker(["print=to stdout", "eprint=to stderr"]).run();
        outcome.exits(0);
        assert_eq!(outcome.out(), "to stdout\nto stdout\n");
        assert_eq!(outcome.err().matches("to stderr\n").count(), 2, "{outcome}");
        assert!(!outcome.err().contains("to stdout"), "{outcome}");
    }
}

#[test]
fn bytes_that_are_no_text_pass_unchanged() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).worker(["bytes"]).run();
        outcome.exits(0);
        assert_eq!(outcome.out_bytes(), b"a\xffb\rc\r\nlast", "{outcome}");
    }
}

#[test]
fn what_a_worker_said_before_it_was_killed_is_shown() {
    let steps = [format!("flood={LINES}"), "die=SIGKILL".into(), "forever".into()];
    let outcome = Launch::standalone(Name::Rankrun, 1).worker(steps).run();
    outcome.exits(137);
    assert_eq!(outcome.lines_with("flood rank=0 line=2999 ").len().min(1), 1, "{outcome}");
}

#[test]
fn a_reader_that_leaves_does_not_stop_the_job() {
    let scratch = Scratch::new();
    let done = scratch.at("done");
    // `head` closes the launcher's stdout after one line; under torchrun's name the workers themselves would see it.
    let launch = Launch::standalone(Name::Rankrun, 1).under(["sh", "-c", "\"$@\" | head -n 1", "sh"]);
    let steps = [format!("flood={LINES}"), format!("touch={done}")];
    launch.worker(steps).run().exits(0);
    assert!(std::path::Path::new(&done).exists(), "the worker did not reach its end");
}

#[test]
fn a_job_without_output_is_silent() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).env("RANKRUN_QUIET", "1").shell("true").run();
        outcome.exits(0);
        assert_eq!((outcome.out(), outcome.err()), (String::new(), String::new()));
    }
}
