//! `examples/pytorch/ddp.py`, a script that knows nothing of us.

use harness::{Launch, Name, Outcome, example_source, is_soak};

/// What the script prints at the end: the loss, to the last digit of an `f32`.
#[track_caller]
pub(crate) fn loss(outcome: &Outcome) -> String {
    outcome.expect_exit_code(0);
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
fn ddp_loss_equals_torchrun() {
    let steps = ["--steps", "50", "--seed", "7"];
    // Each imports the compiler, three seconds of a CPU.
    let workers = if is_soak() { 4 } else { 2 };
    let torchrun_loss = loss(&ddp(Name::Reference, workers).args(steps).run());
    let our_loss = loss(&ddp(Name::Rankrun, workers).args(steps).run());
    assert_eq!(our_loss, torchrun_loss);
    // It begins near ln 4 = 1.39: equal losses of untrained models would prove nothing.
    assert!(our_loss.parse::<f64>().is_ok_and(|loss| loss < 0.3), "the loss is still {our_loss}");
}
