//! The example as a job of several workers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![expect(
    clippy::disallowed_methods,
    reason = "it starts a job, with the launcher that the environment names"
)]

use std::path::PathBuf;
use std::process::Command;

/// The example, which Cargo builds for its tests.
fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(2).unwrap().join("examples/train")
}

#[test]
fn example_learns_on_two_workers() {
    let launcher = std::env::var_os("RANKRUN_TEST_LAUNCHER").unwrap_or_else(|| "rankrun".into());
    let job = Command::new(&launcher)
        .args(["--device-type", "cpu", "--nproc-per-node", "2"])
        .arg(example())
        .output();
    let job = job.unwrap_or_else(|error| {
        panic!("cannot start {}: {error}; name a `rankrun` in RANKRUN_TEST_LAUNCHER", launcher.display())
    });
    let text = String::from_utf8_lossy(&job.stdout).into_owned() + &String::from_utf8_lossy(&job.stderr);
    assert!(job.status.success(), "{text}");
    let last = text.lines().find(|line| line.starts_with("epoch 40: ")).unwrap_or_else(|| panic!("{text}"));
    let accuracy: f32 = last.split("accuracy ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(accuracy > 0.95 && last.ends_with("on 2 ranks"), "{text}");
}
