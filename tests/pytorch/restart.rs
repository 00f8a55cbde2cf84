//! A rank of a gloo job dies once: the group starts again, joins a fresh store, and goes on from the checkpoint.

use std::time::Duration;

use harness::{Launch, Name, Scratch, soak, tell};

use crate::ddp::{ddp, loss};

const STEPS: &str = "30";

/// The job whose rank 1 fails before step 17, after the checkpoint of step 15.
fn failing(name: Name, workers: usize, scratch: &Scratch) -> Launch {
    let launch = ddp(name, workers).args(["--steps", STEPS, "--fail-at", "17", "--fail-rank", "1"]);
    launch.args(["--checkpoint", &scratch.at("state.pt"), "--checkpoint-every", "5"])
}

/// Runs the failing job that often and fails unless each run ends with the loss of an undisturbed one.
#[track_caller]
fn every_restart_succeeds(workers: usize) {
    let rounds = if soak() { 20 } else { 2 };
    let undisturbed = loss(&ddp(Name::Rankrun, workers).args(["--steps", STEPS]).run());
    for _ in 0..rounds {
        let scratch = Scratch::new();
        let outcome = failing(Name::Rankrun, workers, &scratch).run();
        outcome.exits(0).says("restart 1, from step 15");
        assert!(
            same(&loss(&outcome), &undisturbed),
            "without a failure the loss is {undisturbed}\n{outcome}"
        );
    }
    if soak() {
        let theirs = (0..rounds).filter(|_| torchrun_succeeds(workers)).count();
        tell(&format!(
            "{workers} gloo workers, one dies once: rankrun {rounds} of {rounds}, torchrun {theirs} of {rounds}"
        ));
    }
}

/// Equal up to rounding: DDP lays out its first step's buckets in another way, so that sums are ordered otherwise.
fn same(left: &str, right: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().expect("a loss is a number");
    (number(left) - number(right)).abs() < 1e-5
}

fn torchrun_succeeds(workers: usize) -> bool {
    let scratch = Scratch::new();
    let job = failing(Name::Reference, workers, &scratch).limit(Duration::from_secs(120)).start();
    job.wait_or_kill().is_ok_and(|outcome| outcome.status.success())
}

#[test]
fn two_workers() {
    every_restart_succeeds(2);
}

#[test]
fn four_workers() {
    every_restart_succeeds(4);
}
