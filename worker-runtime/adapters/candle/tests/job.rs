//! The example as a job of several workers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![expect(
    clippy::disallowed_methods,
    reason = "it starts a job, with the launcher that the environment names"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The example, which Cargo builds for its tests.
fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(2).unwrap().join("examples/train")
}

/// What two workers print that train for this many epochs, perhaps with a folder for checkpoints.
///
/// The job's control socket is in `runtime`, where no other test finds it.
#[track_caller]
fn run_on_two_workers(runtime: &Path, arguments: &[&str]) -> String {
    let launcher = std::env::var_os("RANKRUN_TEST_LAUNCHER").unwrap_or_else(|| "rankrun".into());
    let job = Command::new(&launcher)
        .args(["--device-type", "cpu", "--nproc-per-node", "2"])
        .arg(example())
        .args(arguments)
        .env("XDG_RUNTIME_DIR", runtime)
        .output();
    let job = job.unwrap_or_else(|error| {
        panic!("cannot start {}: {error}; name a `rankrun` in RANKRUN_TEST_LAUNCHER", launcher.display())
    });
    let text = String::from_utf8_lossy(&job.stdout).into_owned();
    assert!(job.status.success(), "{text}{}", String::from_utf8_lossy(&job.stderr));
    text
}

/// The line of an epoch.
#[track_caller]
fn epoch<'a>(text: &'a str, epoch: &str) -> &'a str {
    text.lines()
        .find(|line| line.starts_with(&format!("epoch {epoch}: ")))
        .unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn example_learns_and_resumes_on_two_workers() {
    let folder = std::env::temp_dir().join(format!("rankrun-candle-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let text = run_on_two_workers(&folder, &[]);
    let last = epoch(&text, "20");
    let accuracy: f32 = last.split("accuracy ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(accuracy > 0.95 && last.ends_with("on 2 ranks"), "{text}");

    let checkpoints = folder.join("checkpoints");
    let path = checkpoints.to_str().unwrap();
    let begun = run_on_two_workers(&folder, &["10", path]);
    assert!(begun.starts_with("training on Cpu, from epoch 0\n"), "{begun}");
    let resumed = run_on_two_workers(&folder, &["20", path]);
    fs::remove_dir_all(&folder).unwrap();
    assert!(resumed.starts_with("training on Cpu, from epoch 10\n"), "{resumed}");
    // Two new models differ by chance; both runs have the first one, and the second run's learns on.
    let accuracy = |line: &str| line.split("accuracy ").nth(1).unwrap()[..5].parse::<f32>().unwrap();
    let (before, after) = (accuracy(epoch(&begun, "10")), accuracy(epoch(&resumed, "20")));
    assert!(after >= before - 0.02 && after > 0.9, "{begun}{resumed}");
}
