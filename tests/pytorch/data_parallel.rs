//! `examples/pytorch/data_parallel.py` and the Rust example of the same name.

#![expect(clippy::disallowed_methods, reason = "the test starts both programs, without a launcher")]

use std::process::Command;

use harness::{example, example_source, python};

/// The lines of a program, those of each batch in the order of their sizes: threads print when they are ready.
#[track_caller]
fn lines(program: &mut Command, args: &[&str]) -> Vec<String> {
    let output = program.args(args).env("CUDA_VISIBLE_DEVICES", "").output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {stderr}");
    let mut batches = vec![Vec::new()];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let sizes = line.split(" (rank 0, device cpu:").next().unwrap_or(line);
        batches.last_mut().expect("there is one").push(sizes.to_owned());
        if line.starts_with("Outside") {
            batches.push(Vec::new());
        }
    }
    batches.iter_mut().for_each(|batch| batch.sort());
    batches.concat()
}

#[test]
fn demo_lines_equal_those_of_torch_twin() {
    for args in [
        &["--device-ids", "cpu:0,cpu:1"][..],
        &[],
        // A remainder for the devices and a smaller last batch; then fewer rows than devices.
        &["--device-ids", "cpu:2,cpu:0,cpu:1,cpu:3", "--rows", "35", "--features", "5"],
        &["--device-ids", "cpu:0,cpu:1,cpu:2", "--rows", "5", "--batch", "3", "--outputs", "7"],
    ] {
        let ours = lines(&mut Command::new(example("data_parallel")), args);
        let torchs = lines(Command::new(python()).arg(example_source("pytorch/data_parallel.py")), args);
        assert_eq!(ours, torchs, "{args:?}");
        assert!(ours.iter().any(|line| line.starts_with("In Model: ")), "{ours:?}");
    }
}
