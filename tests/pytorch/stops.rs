//! Stops that let a rank save its work.

use std::fs;

use harness::{Launch, Name, Outcome, Scratch};
use nix::sys::signal::Signal;

use crate::programs::script;

const CHECKPOINTS: [&str; 2] = ["rank0.pt", "rank1.pt"];

/// Stops a job of two ranks that save on SIGTERM and have four data loaders each. Returns its outcome and the checkpoints.
fn stop_saving_job(name: Name, change: impl FnOnce(Launch) -> Launch) -> (Outcome, Vec<String>) {
    let scratch = Scratch::new();
    let folder = scratch.folder("checkpoints", 0o777);
    let job = change(script(name, "save_on_sigterm.py")).args([folder.as_str()]).start();
    job.wait_for_lines("ready rank=", 2);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    let names = fs::read_dir(&folder).expect("the folder is there");
    let mut names: Vec<String> = names
        .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    (outcome, names)
}

/// torchrun's signal ends the data loaders too: the ranks fail at their next batch.
#[test]
fn ranks_with_data_loaders_save_on_sigterm_unlike_under_torchrun() {
    let (outcome, checkpoints) = stop_saving_job(Name::Rankrun, |launch| launch);
    assert_eq!(checkpoints, CHECKPOINTS, "{outcome}");
    outcome.expect_exit_code(143).expect_absent("exited unexpectedly").expect_absent("Traceback");
    // No rank is reported as failed: each has exited with 0.
    outcome.expect_absent("failed").expect_absent("exit code");

    for name in [Name::Reference, Name::Torchrun] {
        let (outcome, checkpoints) = stop_saving_job(name, |launch| launch);
        outcome.expect_exit_code(1).expect_stderr("DataLoader worker");
        assert_eq!(checkpoints, [""; 0], "{outcome}");
    }
}

#[test]
fn group_target_ends_data_loaders_with_rank() {
    let (outcome, checkpoints) =
        stop_saving_job(Name::Rankrun, |launch| launch.env("RANKRUN_STOP_SIGNAL_TO", "group"));
    outcome.expect_exit_code(143).expect_stderr("DataLoader worker");
    assert_eq!(checkpoints, [""; 0], "{outcome}");
}
