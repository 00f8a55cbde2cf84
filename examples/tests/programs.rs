//! The examples as programs, each a world of one. Several workers are a matter for the launcher's tests.

#![expect(clippy::disallowed_methods, reason = "the test starts the examples")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use support::{Folder, run_and_capture};

fn file(folder: &Folder, name: &str) -> String {
    folder.0.join(name).to_str().expect("the temporary folder has a plain name").to_owned()
}

/// Exit status, standard output and standard error of a program without any launcher.
fn run(program: &str, args: &[&str]) -> (Option<i32>, String, String) {
    run_and_capture(Command::new(program).args(args).env_clear())
}

fn data_parallel(args: &[&str]) -> (Option<i32>, String, String) {
    run(env!("CARGO_BIN_EXE_data_parallel"), args)
}

fn ddp_training(args: &[&str]) -> (Option<i32>, String, String) {
    run(env!("CARGO_BIN_EXE_ddp_training"), args)
}

fn allreduce_bench(args: &[&str]) -> (Option<i32>, String, String) {
    run(env!("CARGO_BIN_EXE_allreduce_bench"), args)
}

#[test]
fn demo_prints_both_lines_for_each_batch() {
    let (code, stdout, stderr) = data_parallel(&["--device-ids", "cpu:0"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = stdout.lines().collect();
    // 100 rows: the last batch is smaller.
    assert_eq!(lines.len(), 8, "one device is not announced: {stdout}");
    for (batch, rows) in lines.chunks(2).zip([30, 30, 30, 10]) {
        let inside = format!(
            "In Model: input size [{rows}, 1000], output size [{rows}, 2] (rank 0, device cpu:0, pid "
        );
        assert!(batch[0].starts_with(&inside), "{stdout}");
        assert_eq!(batch[1], format!("Outside: input size [{rows}, 1000], output size [{rows}, 2]"));
    }
}

#[test]
fn demo_splits_each_batch_over_the_devices_of_one_process() {
    let args = ["--rows", "12", "--batch", "5", "--print-outputs", "--device-ids"];
    let (code, stdout, stderr) = data_parallel(&[&args[..], &["cpu:2,cpu:0,cpu:1,cpu:3"]].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.starts_with("Let's use 4 CPU devices!\n"), "{stdout}");
    // The batches have 5, 5 and 2 rows. The first devices get the parts.
    for (device, rows, parts) in [(2, 2, 2), (0, 2, 2), (1, 1, 2), (2, 1, 1), (0, 1, 1)] {
        let inside = format!(
            "In Model: input size [{rows}, 1000], output size [{rows}, 2] (rank 0, device cpu:{device}, pid "
        );
        assert_eq!(stdout.matches(&inside).count(), parts, "{inside}: {stdout}");
    }
    assert!(!stdout.contains("device cpu:3"), "three parts have all rows: {stdout}");
    assert_eq!(stdout.matches("Outside: input size [5, 1000], output size [5, 2]\n").count(), 2, "{stdout}");
    assert_eq!(stdout.matches("Outside: input size [2, 1000], output size [2, 2]\n").count(), 1, "{stdout}");
}

/// The outputs of all rows, in their order.
fn outputs(args: &[&str]) -> Vec<f32> {
    let (code, stdout, stderr) = data_parallel(&[args, &["--print-outputs"]].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}");
    let rows = stdout.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    rows.flat_map(|row| row.split(", ")).map(|value| value.parse().expect("a number")).collect()
}

#[test]
fn device_choice_does_not_change_outputs() {
    for batch in ["1", "2", "5", "30"] {
        let on = |devices: &str| {
            outputs(&[
                "--rows",
                "33",
                "--features",
                "6",
                "--outputs",
                "3",
                "--batch",
                batch,
                "--device-ids",
                devices,
            ])
        };
        let one = on("cpu:0");
        assert!(one.len() == 99 && one.iter().any(|value| *value != one[0]), "{one:?}");
        for devices in ["cpu:1,cpu:0", "cpu:0,cpu:1,cpu:2", "cpu:3,cpu:1,cpu:4,cpu:0"] {
            assert_eq!(on(devices), one, "batches of {batch} on {devices}");
        }
    }
}

#[test]
fn linear_layer_output_is_sum_of_products_and_bias() {
    // Numbers of a linear congruential generator; the layer's are within one over the root of the features.
    let mut state = 0u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    let layer: Vec<f64> = (0..8).map(|_| next() / 3f64.sqrt()).collect();
    let (weights, biases) = layer.split_at(6);
    let product = |row: &[f64], to: usize| -> f64 {
        row.iter().zip(&weights[to * 3..]).map(|(value, weight)| value * weight).sum::<f64>() + biases[to]
    };
    let rows: Vec<[f64; 3]> = (0..4).map(|_| [next(), next(), next()]).collect();
    let expected = rows.iter().flat_map(|row| [product(row, 0), product(row, 1)]);
    let printed = outputs(&["--rows", "4", "--features", "3", "--device-ids", "cpu:0"]);
    let pairs: Vec<_> = printed.iter().zip(expected).collect();
    assert_eq!(pairs.len(), 8);
    assert!(pairs.iter().all(|(value, expected)| (f64::from(**value) - expected).abs() < 1e-6), "{pairs:?}");
}

/// Where there is no GPU it says so and does nothing; with `RANKRUN_TEST_GPU=1` that is a failure.
#[test]
fn gpu_outputs_equal_cpu_outputs_with_two_replicas() {
    if let Err(missing) = rankrun_worker::cuda::cuda_available() {
        println!("SKIPPED: the demo on a GPU: {missing}");
        assert!(std::env::var_os("RANKRUN_TEST_GPU").is_none(), "RANKRUN_TEST_GPU wants it run");
        return;
    }
    let on_gpu = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_data_parallel"));
        let (code, stdout, stderr) =
            run_and_capture(command.args(["--batch", "31", "--device-ids", "cuda:0"]).args(args));
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let expected = outputs(&["--batch", "31", "--device-ids", "cpu:0"]);
    for replicas in ["1", "2", "3"] {
        let printed = on_gpu(&["--print-outputs", "--replicas", replicas]);
        let rows = printed.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
        let values: Vec<f32> =
            rows.flat_map(|row| row.split(", ")).map(|value| value.parse().expect("a number")).collect();
        let is_close = values.iter().zip(&expected).all(|(value, expected)| (value - expected).abs() < 1e-4);
        assert!(values.len() == 200 && is_close, "{replicas}: {values:?} is not {expected:?}");
    }
}

/// As on a machine with one GPU, where it shows the split.
#[test]
fn replicas_share_first_device() {
    let (_, text, _) = data_parallel(&["--rows", "30", "--device-ids", "cpu:5", "--replicas", "2"]);
    assert_eq!(text.matches("output size [15, 2] (rank 0, device cpu:5, pid ").count(), 2, "{text}");
}

/// Exit status, what a reader gets that goes away after the first line, and standard error.
fn read_one_line(program: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let (reader, writer) = std::io::pipe().expect("there are pipes");
    let mut command = Command::new(program);
    command.args(args).env_clear().stdout(writer).stderr(Stdio::piped());
    let child = command.spawn().expect("the example is built");
    // Without the writing end here, an end without a line is seen.
    drop(command);
    let mut first = String::new();
    BufReader::new(reader).read_line(&mut first).expect("it is text");
    let output = child.wait_with_output().expect("it is ours");
    (output.status.code(), first, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn closed_pipe_is_a_clean_end() {
    for (program, args) in [
        (env!("CARGO_BIN_EXE_data_parallel"), &["--rows", "20000", "--print-outputs"][..]),
        (env!("CARGO_BIN_EXE_ddp_training"), &["--print-every", "1"]),
        (env!("CARGO_BIN_EXE_allreduce_bench"), &["--max", "64K"]),
    ] {
        let (code, first, stderr) = read_one_line(program, args);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{program}");
        assert!(first.ends_with('\n'), "{program}: {first:?}");
    }
}

#[test]
fn full_disk_is_an_error_of_standard_output() {
    for (program, args) in [
        (env!("CARGO_BIN_EXE_data_parallel"), &["--device-ids", "cpu:0"][..]),
        (env!("CARGO_BIN_EXE_ddp_training"), &[]),
        (env!("CARGO_BIN_EXE_allreduce_bench"), &["--max", "8"]),
    ] {
        let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let mut command = Command::new(program);
        let output = command.args(args).env_clear().stdout(full).output().expect("the example is built");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("cannot write to standard output"), "{stderr}");
        assert!(stderr.contains("No space left") && !stderr.contains("panic"), "{stderr}");
    }
}

#[test]
fn invalid_devices_are_named() {
    for (devices, expected) in [
        ("cpu:0,cpu:1,cpu:0", "the device `cpu:0` is named twice"),
        ("cpu:0,cuda:0", "the devices are of different kinds: `cpu:0` and `cuda:0`"),
        ("tpu:0", "device `tpu:0` does not exist: this process sees 0 of kind `tpu`"),
        // There is no driver, or there are not that many.
        ("cuda:99", "CUDA"),
    ] {
        let (code, stdout, stderr) = data_parallel(&["--device-ids", devices]);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{devices}: {stderr}");
        assert!(stderr.contains(expected), "{devices}: {stderr}");
        assert_eq!(stderr.matches("hint: ").count(), 1, "{devices}: {stderr}");
    }
}

#[test]
fn every_size_can_be_chosen() {
    let (_, stdout, _) = data_parallel(&["--rows", "1", "--features", "5", "--outputs", "7"]);
    assert!(stdout.ends_with("Outside: input size [1, 5], output size [1, 7]\n"), "{stdout}");
}

#[test]
fn help_has_examples_and_wrong_flags_are_errors() {
    for program in [data_parallel, ddp_training, allreduce_bench] {
        let (code, stdout, _) = program(&["--help"]);
        assert!(code == Some(0) && stdout.contains("Examples:"), "{stdout}");
        for flags in [&["--batch", "0"][..], &["--batch", "-1"], &["--seed", "x"], &["--unknown"]] {
            let (code, _, stderr) = program(flags);
            assert_eq!(code, Some(2), "{flags:?}: {stderr}");
            assert!(stderr.starts_with("error: "), "{stderr}");
        }
    }
}

/// What a program without any launcher writes to a terminal.
fn on_terminal(program: &str, args: &[&str]) -> String {
    let terminal = nix::pty::openpty(None, None).expect("there are pseudo-terminals");
    let end = || terminal.slave.try_clone().expect("a descriptor can be copied");
    let mut command = Command::new(program);
    command.args(args).env_clear().env("TERM", "xterm").stdout(end()).stderr(end());
    let mut child = command.spawn().expect("the example is built");
    // With the last end the reading is over: EIO, on Linux.
    drop(command);
    drop(terminal.slave);
    let (mut screen, mut piece) = (Vec::new(), [0; 4096]);
    let mut master = fs::File::from(terminal.master);
    while let Ok(count @ 1..) = master.read(&mut piece) {
        screen.extend_from_slice(&piece[..count]);
    }
    assert!(child.wait().expect("it is ours").success());
    String::from_utf8_lossy(&screen).into_owned()
}

#[test]
fn terminal_shows_progress_and_pipe_gets_lines() {
    let args = ["--steps", "40", "--step-ms", "1"];
    let screen = on_terminal(env!("CARGO_BIN_EXE_ddp_training"), &args);
    for expected in ["40/40 ", " steps/s, loss 0.", "restarts 0", "step 20: loss ", "finished: step 40, "] {
        assert!(screen.contains(expected), "{expected}: {screen:?}");
    }
    // The bar looks as it will from its first drawing on.
    let width = |bar: &str| bar.chars().take_while(|cell| *cell == '░').count();
    let first = screen.find('░').map(|at| width(&screen[at..]));
    assert_eq!(first, Some(20), "{screen:?}");
    let (_, stdout, stderr) = ddp_training(&args);
    assert_eq!((stdout.lines().count(), stderr.as_str()), (4, ""), "{stdout}");
    assert!(stdout.contains("\nstep 20: loss ") && stdout.contains(" steps/s\nfinished: "), "{stdout}");
    assert!(!stdout.contains('\u{1b}') && !stdout.contains("restarts"), "{stdout:?}");
}

#[test]
fn resumed_training_has_same_final_weights() {
    let folder = Folder::new();
    let (whole, parts, checkpoint) =
        (file(&folder, "whole"), file(&folder, "parts"), file(&folder, "checkpoint"));
    let (code, undisturbed, _) = ddp_training(&["--steps", "60", "--weights-out", &whole]);
    assert_eq!(code, Some(0));

    let interrupted = ["--steps", "60", "--checkpoint", &checkpoint, "--fail-at", "50"];
    for how in ["exit", "panic", "kill"] {
        drop(fs::remove_dir_all(&checkpoint));
        let (code, stdout, stderr) = ddp_training(&[&interrupted[..], &["--fail-how", how]].concat());
        assert_eq!(code, if how == "kill" { None } else { Some(1) }, "{stderr}");
        assert!(!stdout.contains("finished"), "{stdout}");
    }

    let (code, stdout, stderr) =
        ddp_training(&["--steps", "60", "--checkpoint", &checkpoint, "--weights-out", &parts]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains(&format!("resumed from step 40 of {checkpoint}\n")), "{stdout}");
    assert_eq!(stdout.lines().last(), undisturbed.lines().last());
    assert_eq!(fs::read(&whole).ok(), fs::read(&parts).ok());
}

#[test]
fn unusable_checkpoint_is_refused_by_name() {
    let folder = Folder::new();
    let checkpoint = file(&folder, "checkpoint");
    let kept = ["--steps", "20", "--checkpoint", &checkpoint, "--checkpoint-every", "10"];
    let train = |extra: &[&str]| ddp_training(&[&kept[..], extra].concat());
    assert_eq!(train(&[]).0, Some(0));
    let (code, _, stderr) = train(&["--seed", "1"]);
    assert_eq!(code, Some(1));
    let expected = format!(
        "error: the checkpoint `{checkpoint}` is of a training with other options (batch 64, samples 1024, learning rate \
         0.2, seed 0, not batch 64, samples 1024, learning rate 0.2, seed 1); name another folder, or remove it\n"
    );
    assert_eq!(stderr, expected);

    let file = |step: u64| format!("{checkpoint}/step-{step:010}.safetensors");
    fs::write(file(20), b"torn").expect("the folder can be written");
    let (code, stdout, stderr) = train(&[]);
    let skipped = format!(
        "warning: skipped the checkpoint `{}`: torn: it has 4 bytes, and should have 8\n  the training goes on from the \
         checkpoint of step 10\n",
        file(20)
    );
    assert_eq!((code, stderr), (Some(0), skipped));
    assert!(stdout.contains(&format!("resumed from step 10 of {checkpoint}\n")), "{stdout}");

    for step in [10, 20] {
        fs::write(file(step), b"torn").expect("the folder can be written");
    }
    let (code, _, stderr) = train(&[]);
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with(&format!("error: no checkpoint in `{checkpoint}` can be used\n")), "{stderr}");
    assert!(stderr.ends_with("\n  hint: remove these files to start from the beginning\n"), "{stderr}");
}

#[test]
fn bench_prints_the_table_of_nccl_tests() {
    let (code, stdout, stderr) = allreduce_bench(&["--max", "512", "--factor", "8", "--type", "f64"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 7, "{stdout}");
    assert_eq!(lines[0], "# backend memory, 1 ranks");
    let columns: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(columns, ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]);
    for (line, size) in lines[3..6].iter().zip([8, 64, 512]) {
        let row: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(row[..5], [&size.to_string(), &(size / 8).to_string(), "f64", "sum", "-1"], "{line}");
        assert_eq!(row[8], "0", "{line}");
    }
    assert!(lines[6].starts_with("# Avg bus bandwidth    : "), "{stdout}");
}

#[test]
fn bench_without_backend_follows_the_environment() {
    let bench = |backend: &str, flags: &[&str]| {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_allreduce_bench"));
        bench.args(["--max", "8"]).args(flags).env_clear().env("RANKRUN_BACKEND", backend);
        run_and_capture(bench.env("CUDA_VISIBLE_DEVICES", "-1"))
    };
    // There is no GPU to see, so that NCCL cannot be what it goes on with.
    let (code, stdout, stderr) = bench("nccl", &[]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("CUDA driver") && stderr.contains("hint: "), "{stderr}");
    assert_eq!(bench("nccl", &["--backend", "auto"]).0, Some(0), "the option is above the variable");
    let (code, _, stderr) = bench("gloo", &[]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("`RANKRUN_BACKEND`") && stderr.contains("`gloo`"), "{stderr}");
}

#[test]
fn bench_sweep_grows_from_size_zero() {
    let (code, stdout, stderr) = allreduce_bench(&["--min", "0", "--max", "64", "--factor", "8"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let rows = stdout.lines().filter(|line| !line.starts_with('#'));
    let sizes: Vec<_> = rows.map(|line| line.split_whitespace().next().expect("a row has columns")).collect();
    assert_eq!(sizes, ["0", "8", "64"], "{stdout}");
}

#[test]
fn impossible_bench_names_reason() {
    for (flags, expected) in [
        (&["--min", "1K", "--max", "8"][..], "`--min 1K` is more than `--max 8`"),
        (
            &["--backend", "mixed"],
            "the backend `mixed` is for ranks on several hosts, and these have `memory`",
        ),
        (&["--compare"], "`--compare` has nothing to compare: `memory` has no faster path"),
    ] {
        let (code, stdout, stderr) = allreduce_bench(flags);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{flags:?}: {stderr}");
        assert!(stderr.contains(expected), "{flags:?}: {stderr}");
    }
    let mut on_nccl = Command::new(env!("CARGO_BIN_EXE_allreduce_bench"));
    let on_nccl = on_nccl.args(["--backend", "nccl"]).env_clear().env("CUDA_VISIBLE_DEVICES", "-1");
    let (code, stdout, stderr) = run_and_capture(on_nccl);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("CUDA driver") && stderr.contains("hint: "), "{stderr}");
    for flags in [["--factor", "1"], ["--min", "1T"], ["--iterations", "0"], ["--type", "f8"]] {
        assert_eq!(allreduce_bench(&flags).0, Some(2), "{flags:?}");
    }
}
