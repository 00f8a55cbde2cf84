//! Real gloo jobs that make no progress: the verdict names the ranks, and the job starts again.

use harness::{Launch, Name, Outcome, example_source};

use crate::programs::source;

/// Two ranks of `examples/pytorch/hang.py`, with a limit of this many seconds.
fn hanging(how: &str, limit: &str) -> Launch {
    let launch = Launch::standalone(Name::Rankrun, 2).with_torch().env("OMP_NUM_THREADS", "1");
    let launch = launch.args(["--max-restarts", "1", "--hang-timeout", limit]);
    launch.args([example_source("pytorch/hang.py")]).args(["--how", how])
}

/// The seconds of a verdict depend on the load of the machine.
#[track_caller]
fn assert_found_and_restarted(outcome: &Outcome, sentence: &str) {
    let line = outcome.lines_with(sentence).pop().unwrap_or_else(|| panic!("no `{sentence}`\n{outcome}"));
    assert!(line.ends_with(": waiting up to 30 s for 2 workers to stop"), "{line}");
    outcome.expect_exit_code(0);
    outcome.expect_stdout("rank 0 is done in attempt 1").expect_stdout("rank 1 is done in attempt 1");
}

#[test]
fn rank_that_sleeps_while_other_waits_is_named_and_job_restarts() {
    let outcome = hanging("sleep", "3").run();
    outcome.expect_stderr("rank 0: main (hang.py:").expect_stderr("rank 1: call_wrong_collective (hang.py:");
    assert_found_and_restarted(&outcome, "rank 0 waits in all_reduce #10; rank 1 made no progress since ");
}

#[test]
fn ranks_that_call_different_collectives_are_named() {
    let sentence = "rank 0 calls all_reduce, rank 1 calls broadcast as #10; no progress since ";
    assert_found_and_restarted(&hanging("desync", "3").run(), sentence);
}

#[test]
fn hang_without_hooks_has_steps_alone() {
    let launch =
        Launch::standalone(Name::Rankrun, 2).with_torch().args(["--no-hooks", "--hang-timeout", "3"]);
    let outcome = launch.args([example_source("pytorch/hang.py")]).run();
    outcome.expect_exit_code(1).expect_stderr("failed first: hang: ranks 0, 1 made no progress since ");
    outcome.expect_stderr(" (step 9); stopped (killed by SIGTERM)\n");
}

#[test]
fn slow_first_step_is_not_a_hang() {
    let outcome = hanging("slow-start", "2").run();
    outcome.expect_exit_code(0).expect_stdout("rank 1 is done in attempt 0").expect_absent("no progress");
}

/// Under torchrun the launcher dies of the signal too.
#[test]
fn expired_file_timer_is_failure_of_its_worker() {
    for name in [Name::Rankrun, Name::Torchrun] {
        let launch = Launch::standalone(name, 2).with_torch().env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
        let outcome = launch.args(["--max-restarts", "1"]).args([source("file_timer.py")]).run();
        outcome.expect_exit_code(0).expect_stderr(" has expired: SIGKILL");
        outcome.expect_stdout("rank 0 is done in attempt 1").expect_stdout("rank 1 is done in attempt 1");
    }
}
