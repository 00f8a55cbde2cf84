//! Real gloo jobs that make no progress: the verdict names the ranks, and the job starts again. And jobs that only look so. One
//! case of each mechanism; with the big counts all of them, also with 8 ranks. Rust jobs are in `tests/e2e/hangs.rs`.

use harness::{Launch, Name, Outcome, example_source, is_soak};

use crate::programs::source;

/// Ranks of `examples/pytorch/hang.py`, with a limit of this many seconds.
fn hanging(how: &str, workers: usize, limit: &str) -> Launch {
    let launch = Launch::standalone(Name::Rankrun, workers).with_torch().env("OMP_NUM_THREADS", "1");
    let launch = launch.args(["--max-restarts", "1", "--hang-timeout", limit]);
    launch.args([example_source("pytorch/hang.py")]).args(["--how", how])
}

/// With 8 ranks on few CPUs a step takes long.
fn worlds() -> Vec<(usize, &'static str)> {
    if is_soak() { vec![(2, "3"), (8, "15")] } else { vec![(2, "3")] }
}

fn others(workers: usize) -> &'static str {
    if workers == 2 { "rank 0" } else { "ranks 0, 2-7" }
}

fn verb(workers: usize, one: &'static str) -> String {
    format!("{} {one}{}", others(workers), if workers == 2 { "s" } else { "" })
}

/// The seconds of a verdict depend on the load of the machine.
#[track_caller]
fn assert_found_and_restarted(outcome: &Outcome, workers: usize, sentence: &str) {
    let line = outcome.lines_with(sentence).pop().unwrap_or_else(|| panic!("no `{sentence}`\n{outcome}"));
    assert!(line.ends_with(&format!(": waiting up to 30 s for {workers} workers to stop")), "{line}");
    outcome.expect_exit_code(0);
    (0..workers).for_each(|rank| _ = outcome.expect_stdout(&format!("rank {rank} is done in attempt 1")));
}

/// Where rank 1 stands: in its own code.
fn place(how: &str) -> &'static str {
    match how {
        "sleep" => "in sleep (hang.py:",
        "c-sleep" => "in sleep_in_c (hang.py:",
        "spin" => "in spin (hang.py:",
        "lock" => "in wait_for_lock (hang.py:",
        "loader" => "in load_batch (hang.py:",
        _ => "stopped by a signal",
    }
}

/// The line of `examples/pytorch/hang.py` that has this call last.
fn line_of(call: &str) -> String {
    let text = std::fs::read_to_string(example_source("pytorch/hang.py")).expect("it is there");
    let line = text.lines().enumerate().filter(|(_, line)| line.trim() == call).last().expect("it is called");
    format!("hang.py:{}", line.0 + 1)
}

#[track_caller]
fn assert_rank_is_named(how: &str, (workers, limit): (usize, &str)) {
    let outcome = hanging(how, workers, limit).run();
    let waits = verb(workers, "wait");
    let line = line_of("dist.all_reduce(torch.ones(4))");
    let sentence = format!("{waits} in all_reduce #10 ({line}); rank 1 has made no progress for ");
    assert_found_and_restarted(&outcome, workers, &sentence);
    outcome.expect_stderr(&format!(" (step 9), {}", place(how)));
}

#[test]
fn rank_that_hangs_while_others_wait_is_named_and_job_restarts() {
    let ways: &[&str] = match is_soak() {
        true => &["sleep", "c-sleep", "spin", "lock", "loader", "stop"],
        false => &["c-sleep", "stop"],
    };
    for (how, world) in ways.iter().flat_map(|how| worlds().into_iter().map(move |world| (how, world))) {
        assert_rank_is_named(how, world);
    }
}

#[test]
fn ranks_that_call_different_collectives_are_named() {
    for (workers, limit) in worlds() {
        let (all_reduce, line) = (verb(workers, "call"), line_of("dist.all_reduce(torch.ones(4))"));
        let other = line_of("dist.broadcast(torch.ones(4), 0)");
        let sentence = format!(
            "{all_reduce} all_reduce ({line}), rank 1 calls broadcast ({other}) as #10; no progress for "
        );
        assert_found_and_restarted(&hanging("desync", workers, limit).run(), workers, &sentence);
    }
}

/// gloo ends the ranks of some sizes by itself.
#[test]
fn ranks_that_call_with_different_sizes_are_named() {
    for (workers, limit) in worlds() {
        let outcome = hanging("sizes", workers, limit).run();
        outcome.expect_exit_code(0).expect_stdout("rank 0 is done in attempt 1");
        if outcome.stderr().contains("gloo") {
            continue;
        }
        let (line, other) =
            (line_of("dist.all_reduce(torch.ones(4))"), line_of("dist.all_reduce(torch.ones(5))"));
        let sentence = format!(
            "{} all_reduce of 4 elements ({line}), rank 1 calls all_reduce of 5 elements ({other}) as #10; no \
             progress for ",
            verb(workers, "call")
        );
        assert_found_and_restarted(&outcome, workers, &sentence);
    }
}

/// gloo sees the closed connection before any limit.
#[test]
fn rank_that_exits_early_fails_others_and_is_named() {
    let outcome = hanging("exit", 2, "30").args(["--steps", "20"]).run();
    outcome.expect_exit_code(0).expect_stdout("rank 0 is done in attempt 1");
    outcome.expect_absent("made no progress");
}

#[test]
fn hang_without_hooks_has_steps_alone() {
    let launch =
        Launch::standalone(Name::Rankrun, 2).with_torch().args(["--no-hooks", "--hang-timeout", "3"]);
    let outcome = launch.args([example_source("pytorch/hang.py")]).run();
    outcome.expect_exit_code(1).expect_stderr("failed first: hang: ranks 0, 1 have made no progress for ");
    outcome.expect_stderr(" (step 9); stopped (killed by SIGTERM)\n");
}

#[test]
fn slow_jobs_that_make_progress_are_not_a_hang() {
    let ways: &[&str] = match is_soak() {
        true => &["slow-start", "checkpoint", "evaluate", "quiet"],
        false => &["slow-start", "quiet"],
    };
    for how in ways {
        let launch = hanging(how, 2, "2");
        let launch = if *how == "quiet" { launch.args(["--pause", "0.6"]) } else { launch };
        let outcome = launch.run();
        outcome.expect_exit_code(0).expect_stdout("rank 1 is done in attempt 0");
        outcome.expect_absent("no progress");
    }
}

#[test]
fn ranks_that_share_one_cpu_are_not_a_hang() {
    if !is_soak() {
        return;
    }
    let launch = hanging("quiet", 8, "20").args(["--steps", "200"]).under(["taskset", "-c", "0"]);
    launch.run().expect_exit_code(0).expect_absent("no progress");
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
