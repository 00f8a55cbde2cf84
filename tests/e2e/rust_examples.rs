//! The Rust examples under the launcher: the DataParallel demo, and training that resumes.

use std::collections::BTreeSet;

use harness::{Launch, Machine, Name, Outcome, Scratch, example, is_soak};
use nix::sys::signal::Signal;

/// Rows of each batch of the demo: it has 100 in all.
const BATCHES: [usize; 4] = [30, 30, 30, 10];

/// How torch's `chunk` splits a batch: pieces of the rounded-up size, the last one smaller.
fn chunk_sizes(rows: usize, workers: usize) -> Vec<usize> {
    let size = rows.div_ceil(workers);
    (0..rows).step_by(size).map(|start| size.min(rows - start)).collect()
}

#[test]
fn demo_splits_each_batch_over_the_workers() {
    for workers in [1, 2, 4] {
        let launch = Launch::standalone(Name::Rankrun, workers).args([example("data_parallel")]);
        let outcome = launch.run();
        outcome.expect_exit_code(0);
        let announced = outcome.lines_with(&format!("Let's use {workers} CPU devices!")).len();
        assert_eq!(announced, usize::from(workers > 1), "{outcome}");
        let outside = |rows: usize| format!("Outside: input size [{rows}, 1000], output size [{rows}, 2]");
        assert_eq!(outcome.lines_with(&outside(30)).len(), 3, "{outcome}");
        assert_eq!(outcome.lines_with(&outside(10)).len(), 1, "{outcome}");
        let parts: Vec<_> = BATCHES.iter().flat_map(|rows| chunk_sizes(*rows, workers)).collect();
        assert_eq!(outcome.lines_with("In Model:").len(), parts.len(), "{outcome}");
        for rows in parts.iter().collect::<BTreeSet<_>>() {
            let text = format!("In Model: input size [{rows}, 1000], output size [{rows}, 2]");
            let expected = parts.iter().filter(|part| *part == rows).count();
            assert_eq!(outcome.lines_with(&text).len(), expected, "{text}\n{outcome}");
        }
        for rank in 0..workers {
            let place = format!("(rank {rank}, device cpu:{rank}, pid ");
            assert_eq!(outcome.lines_with(&place).len(), BATCHES.len(), "{place}\n{outcome}");
        }
    }
}

#[test]
fn demo_runs_in_different_processes() {
    let outcome = Launch::standalone(Name::Rankrun, 4).args([example("data_parallel")]).run();
    outcome.expect_exit_code(0);
    let pids: BTreeSet<_> =
        outcome.lines_with("In Model:").iter().filter_map(|line| number_after(line, "pid")).collect();
    assert_eq!(pids.len(), 4, "{outcome}");
}

/// The outputs of all rows, in their order.
fn outputs(outcome: &Outcome) -> Vec<f64> {
    outcome.expect_exit_code(0);
    let rows = outcome.lines_with("[");
    let rows = rows.iter().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    rows.flat_map(|row| row.split(", ")).map(|value| value.parse().expect("a number")).collect()
}

#[track_caller]
fn assert_outputs(outcome: &Outcome, expected: &[f64]) {
    let found = outputs(outcome);
    let is_close = found.iter().zip(expected).all(|(value, expected)| (value - expected).abs() <= 1e-5);
    assert!(found.len() == expected.len() && is_close, "{found:?} is not {expected:?}\n{outcome}");
}

/// The demo with batches of 7, 7 and 2 rows, which prints its outputs.
fn demo_with_remainder(launch: Launch) -> Launch {
    launch.args([example("data_parallel")]).args(["--rows", "16", "--batch", "7", "--print-outputs"])
}

/// The outputs of one worker on one CPU.
fn outputs_of_one_worker() -> Vec<f64> {
    let one = demo_with_remainder(Launch::standalone(Name::Rankrun, 1)).args(["--device-ids", "cpu:0"]);
    let expected = outputs(&one.run());
    assert!(expected.len() == 32 && expected.iter().any(|value| *value != expected[0]), "{expected:?}");
    expected
}

#[test]
fn demo_on_split_devices_has_outputs_of_one_worker() {
    let three = demo_with_remainder(Launch::standalone(Name::Rankrun, 3));
    let outcome = three.args(["--device-ids", "cpu:1,cpu:0"]).run();
    assert_outputs(&outcome, &outputs_of_one_worker());
    outcome.expect_stdout("Let's use 6 CPU devices!");
    // 7 rows are 3, 3 and 1 for the workers, and 3 are 2 and 1 for the devices; 2 rows are 1, 1 and 0.
    for (rank, device, rows, parts) in
        [(0, 1, 2, 2), (0, 0, 1, 2), (1, 1, 2, 2), (1, 0, 1, 2), (2, 1, 1, 2), (0, 1, 1, 1), (1, 1, 1, 1)]
    {
        let place = format!("output size [{rows}, 2] (rank {rank}, device cpu:{device}, pid ");
        assert_eq!(outcome.lines_with(&place).len(), parts, "{place}\n{outcome}");
    }
    assert_eq!(outcome.lines_with("In Model:").len(), 12, "{outcome}");
}

#[test]
fn demo_computes_on_assigned_gpus() {
    let expected = outputs_of_one_worker();
    let machine = Machine::gpus(2).computing();
    let places =
        ["size [4, 2] (rank 0, device cuda:0,", "size [3, 2] (rank 1, device cuda:1,"].map(str::to_owned);
    // Those of the launcher's choice, and those that a worker sees alone.
    for (flags, places) in [
        (&[][..], places.clone()),
        (&["--device-visibility", "own"], places.clone().map(|place| place.replace("cuda:1", "cuda:0"))),
        (&["--devices", "1,0"], places),
    ] {
        let launch = Launch::standalone(Name::Rankrun, 2).on(&machine).args(flags.iter().copied());
        let outcome = demo_with_remainder(launch).run();
        assert_outputs(&outcome, &expected);
        outcome
            .expect_stdout("Let's use 2 GPUs!")
            .expect_stdout("Outside: input size [2, 1000], output size [2, 2]");
        for place in places {
            assert_eq!(outcome.lines_with(&place).len(), 2, "{place}\n{outcome}");
        }
    }
}

#[test]
fn demo_in_one_process_takes_all_gpus_of_its_order() {
    let machine = Machine::gpus(2).computing();
    // A worker has its own device; `--device-ids` names those of both.
    let one = || Launch::standalone(Name::Rankrun, 1).on(&machine);
    let outcome = demo_with_remainder(one()).args(["--device-ids", "1,0"]).run();
    assert_outputs(&outcome, &outputs_of_one_worker());
    outcome.expect_stdout("Let's use 2 GPUs!");
    for place in ["size [4, 2] (rank 0, device cuda:1,", "size [3, 2] (rank 0, device cuda:0,"] {
        assert_eq!(outcome.lines_with(place).len(), 2, "{place}\n{outcome}");
    }
}

#[test]
fn bench_measures_every_operation_without_errors() {
    for operation in ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"] {
        let launch = Launch::standalone(Name::Rankrun, 3).args([example("allreduce_bench")]);
        let launch = launch.args(["--operation", operation, "--min", "64", "--max", "64K", "--factor", "32"]);
        let outcome = launch.args(["--iterations", "3", "--warmup", "1", "--type", "bf16"]).run();
        outcome
            .expect_exit_code(0)
            .expect_stdout("# backend shm, 3 ranks")
            .expect_stdout("# Avg bus bandwidth");
        let rows = outcome.lines_with("  bf16  ").into_iter().filter(|line| line.ends_with("  0"));
        assert_eq!(rows.count(), 3, "{outcome}");
    }
}

#[test]
fn bench_on_nccl_has_no_errors() {
    let machine = Machine::gpus(3).computing();
    for operation in ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"] {
        let launch = Launch::standalone(Name::Rankrun, 3).on(&machine).args([example("allreduce_bench")]);
        let launch =
            launch.args(["--backend", "nccl", "--operation", operation, "--min", "64", "--max", "64K"]);
        let outcome =
            launch.args(["--factor", "32", "--iterations", "2", "--warmup", "1", "--type", "f32"]).run();
        outcome.expect_exit_code(0).expect_stdout("# backend nccl, 3 ranks");
        let rows = outcome.lines_with("  f32  ").into_iter().filter(|line| line.ends_with("  0"));
        assert_eq!(rows.count(), 3, "{outcome}");
    }
}

#[test]
fn bench_compare_runs_every_backend() {
    for (backend, flags) in [("shm", &[][..]), ("auto", &["--json", "--memory", "program"])] {
        let launch = Launch::standalone(Name::Rankrun, 2).args([example("allreduce_bench")]);
        let launch = launch.args(["--backend", backend, "--compare", "--max", "2K"]);
        let outcome = launch.args(flags.iter().copied()).run();
        outcome.expect_exit_code(0);
        let (runs, ratios) = if flags.is_empty() {
            (["# backend shm, 2 ranks", "# backend tcp, 2 ranks"], "shm          tcp    ratio")
        } else {
            ([r#"{"backend":"shm","ranks":2}"#, r#"{"backend":"tcp","ranks":2}"#], r#""ratio":"#)
        };
        outcome.expect_stdout(runs[0]).expect_stdout(runs[1]).expect_stdout(ratios);
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args([example("allreduce_bench")]);
    let outcome = launch.args(["--backend", "tcp", "--compare"]).run();
    outcome.expect_exit_code(1).expect_stderr("`--compare` has nothing to compare: `tcp` has no faster path");
}

#[test]
fn bench_on_nccl_without_cuda_names_cuda() {
    // With a card it is another device than the launcher gave; without one the driver is asked for.
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--device-type", "cpu"]);
    let outcome = launch.args([example("allreduce_bench")]).args(["--backend", "nccl"]).run();
    outcome.expect_exit_code(1).expect_stderr("CUDA").expect_absent("panicked");
}

/// The number behind a word, as in `pid 12` or `pid=12`.
fn number_after(line: &str, key: &str) -> Option<i32> {
    let rest = line.split(key).nth(1)?.trim_start_matches([' ', '=', ':']);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A training that keeps its state and leaves its weights in the folder.
fn training_launch(workers: usize, scratch: &Scratch) -> Launch {
    let launch = Launch::standalone(Name::Rankrun, workers).args(["--max-restarts", "1"]);
    let launch = launch.args([example("ddp_training")]).args(["--steps", "60"]);
    let launch = launch.args(["--weights-out", &scratch.at("weights")]);
    launch.args(["--checkpoint", &scratch.at("state"), "--checkpoint-every", "10"])
}

/// The weights that a training left.
#[track_caller]
fn read_weights(scratch: &Scratch) -> Vec<f64> {
    let text = std::fs::read_to_string(scratch.at("weights")).expect("the weights were written");
    let weights: Vec<f64> = text.split_whitespace().map(|number| number.parse().expect("a weight")).collect();
    assert!(weights.len() > 10, "{text}");
    weights
}

/// One training run; `options` choose the rank that fails.
#[track_caller]
fn run_training(workers: usize, options: &[&str]) -> (Outcome, Vec<f64>) {
    let scratch = Scratch::new();
    let outcome = training_launch(workers, &scratch).args(options.iter().copied()).run();
    outcome.expect_exit_code(0);
    (outcome, read_weights(&scratch))
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(expected) {
        assert!((actual - expected).abs() <= 1e-9 * actual.abs().max(1.0), "{actual} is not {expected}");
    }
}

#[test]
fn training_weights_do_not_depend_on_worker_count() {
    let (outcome, alone) = run_training(1, &[]);
    outcome.expect_stdout("loss").expect_stdout("accuracy");
    for workers in [2, 4] {
        assert_close(&alone, &run_training(workers, &[]).1);
    }
}

#[test]
fn training_with_failed_worker_has_same_weights() {
    let (_, undisturbed) = run_training(2, &[]);
    for how in ["kill", "exit", "panic"] {
        let failing = ["--fail-at", "37", "--fail-rank", "1", "--fail-how", how];
        let (outcome, resumed) = run_training(2, &failing);
        outcome.expect_stdout("resumed from step 30");
        assert_eq!(resumed, undisturbed, "{how}\n{outcome}");
    }
}

#[test]
fn training_with_killed_worker_has_same_weights() {
    let (_, undisturbed) = run_training(2, &[]);
    let scratch = Scratch::new();
    // Slow steps: the kill comes before the last one.
    let job = training_launch(2, &scratch).args(["--print-every", "10", "--step-ms", "50"]).start();
    let pid = number_after(&job.wait_for_line("rank 1 of 2"), "pid").expect("each rank says its pid");
    job.wait_for_line("step 20:");
    job.signal_to(pid, Signal::SIGKILL);
    let outcome = job.wait();
    outcome.expect_exit_code(0).expect_stderr("SIGKILL").expect_stdout("resumed from step ");
    assert_eq!(read_weights(&scratch), undisturbed, "{outcome}");
}

/// Only rank 0 draws, and the launcher passes its bar on while the training runs, not as one long line in the end.
#[test]
fn training_bar_is_live_and_counts_restarts() {
    let scratch = Scratch::new();
    let launch = Launch::standalone(Name::Rankrun, 2).terminal().args(["--max-restarts", "1"]);
    let launch = launch.args([example("ddp_training")]).args(["--steps", "60", "--step-ms", "150"]);
    let launch = launch.args(["--checkpoint", &scratch.at("state"), "--print-every", "60"]);
    let job = launch.args(["--fail-at", "40", "--fail-rank", "1"]).start();
    job.wait_for_text("restarts 0");
    job.wait_for_text("restarts 1");
    let outcome = job.wait();
    outcome.expect_exit_code(0).expect_stdout("60/60 ");
    let out = outcome.stdout();
    let place = |text: &str| out.find(text).unwrap_or_else(|| panic!("{text}: {outcome}"));
    assert!(
        place("/60 ") < place("rank 1: error: ") && place("restarts 1") < place("step 60: "),
        "{outcome}"
    );
}

/// The victims notice within microseconds, and on a busy machine some are reaped before the one that failed.
#[test]
fn first_failed_rank_is_named_despite_fast_peer_failures() {
    let rounds = if is_soak() { 20 } else { 2 };
    for (how, code) in [("exit", 1), ("panic", 1), ("kill", 137)] {
        for workers in [2, 4] {
            for _ in 0..rounds {
                let failing = ["--fail-at", "3", "--fail-rank", "1", "--fail-how", how];
                let launch = Launch::standalone(Name::Rankrun, workers).args([example("ddp_training")]);
                let outcome = launch.args(failing).run();
                outcome.expect_exit_code(code).expect_stderr("rank 1 failed first");
            }
        }
    }
}
