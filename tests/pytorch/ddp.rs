//! `examples/pytorch/ddp.py`, a script that knows nothing of us.

use harness::{Launch, Name, Outcome, example_source};

/// What the script prints at the end: the loss, to the last digit of an `f32`.
#[track_caller]
pub(crate) fn loss(outcome: &Outcome) -> String {
    outcome.exits(0);
    let line = outcome.lines_with("loss ").pop();
    let loss = line.as_deref().and_then(|line| line.split("loss ").nth(1)?.split(',').next());
    loss.unwrap_or_else(|| panic!("no loss\n{outcome}")).to_owned()
}

/// The script under this name, with one thread for each worker.
pub(crate) fn ddp(name: Name, workers: usize) -> Launch {
    let launch = Launch::standalone(name, workers).with_torch().env("OMP_NUM_THREADS", "1");
    // Our own option, of no use to the script.
    launch.args(["--max-restarts", "1"]).args([example_source("pytorch/ddp.py")])
}

#[test]
fn the_loss_is_the_one_under_torchrun() {
    let steps = ["--steps", "50", "--seed", "7"];
    let theirs = loss(&ddp(Name::Reference, 4).args(steps).run());
    for name in Name::both() {
        assert_eq!(loss(&ddp(*name, 4).args(steps).run()), theirs, "as {name:?}");
    }
}

#[test]
fn more_steps_are_another_loss() {
    // Otherwise the comparison above would prove nothing.
    let few = loss(&ddp(Name::both()[0], 1).args(["--steps", "3"]).run());
    let many = loss(&ddp(Name::both()[0], 1).args(["--steps", "30"]).run());
    assert_ne!(few, many);
}
