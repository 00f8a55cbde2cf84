//! Appendix A, "Command line".
#![expect(
    clippy::disallowed_methods,
    reason = "the refusals of PyTorch's torchrun are asked for in one process"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use harness::{Launch, Name, Outcome, python, python_modules};

use super::pair::{Pair, status_and_last_error, status_and_out};

/// The options in a help text, in the spelling with hyphens.
fn options_in(text: &str) -> BTreeSet<String> {
    let tokens =
        text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'));
    tokens
        .filter(|token| token.starts_with("--") && token.len() > 2 && !token.contains('_'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn help() {
    let pair = Pair::run_both(|name| Launch::new(name).args(["-h"]).run());
    for outcome in [&pair.rankrun, &pair.torchrun] {
        outcome.expect_exit_code(0).expect_stdout("--nproc-per-node");
        assert!(outcome.stdout().to_lowercase().contains("usage: torchrun"), "{outcome}");
        assert_eq!(outcome.stderr(), "", "{outcome}");
    }
    // The descriptions break words, and name an option that there is not.
    let torchrun_help = pair.torchrun.stdout();
    let synopsis = torchrun_help.split("\n\n").next().unwrap_or_default();
    let (ours, torchrun_help) = (options_in(&pair.rankrun.stdout()), options_in(synopsis));
    assert!(torchrun_help.len() > 25, "the synopsis of torchrun has only {torchrun_help:?}");
    let missing: Vec<&String> = torchrun_help.difference(&ours).collect();
    assert!(missing.is_empty(), "our help lacks {missing:?}");
}

#[test]
fn no_script() {
    let pair = Pair::run_both(|name| Launch::new(name).args(["--nnodes", "1"]).run());
    let (code, out, last) = pair.expect_equal(status_and_last_error);
    let missing =
        "torchrun: error: the following arguments are required: training_script, training_script_args";
    assert_eq!((code, out.as_str(), last.as_str()), (Some(2), "", missing));
    for outcome in [&pair.rankrun, &pair.torchrun] {
        outcome.expect_stderr("usage: torchrun");
    }
}

#[test]
fn unknown_option() {
    let pair = Pair::run_both(|name| Launch::new(name).args(["--unknown", "x.py"]).run());
    let (code, out, last) = pair.expect_equal(status_and_last_error);
    let unknown = "torchrun: error: unrecognized arguments: --unknown";
    assert_eq!((code, out.as_str(), last.as_str()), (Some(2), "", unknown));
}

#[test]
fn underscore() {
    let pair = Pair::run_both(|name| {
        Launch::new(name).args(["--standalone", "--nproc_per_node=2"]).shell("echo $RANK").run()
    });
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), vec!["0".into(), "1".into()]));
}

#[test]
fn mixed_spelling() {
    let pair = Pair::run_both(|name| {
        Launch::new(name).args(["--standalone", "--nproc_per-node", "2", "--no-python", "true"]).run()
    });
    let (code, out, last) = pair.expect_equal(status_and_last_error);
    let unknown = "torchrun: error: unrecognized arguments: --nproc_per-node";
    assert_eq!((code, out.as_str(), last.as_str()), (Some(2), "", unknown));
}

#[test]
fn prefix_ok() {
    let line = ["--standalone", "--nproc-per", "2", "--no-py", "sh", "-c", "echo $RANK"];
    let pair = Pair::run_both(|name| Launch::new(name).args(line).run());
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), vec!["0".into(), "1".into()]));
}

/// What one worker, started with these arguments behind `--no-python`, prints.
#[track_caller]
fn worker_output(arguments: &[&str]) -> Vec<String> {
    let pair = Pair::run_both(|name| {
        Launch::standalone(name, 1).args(["--no-python"]).args(arguments.iter().copied()).run()
    });
    let (code, lines) = pair.expect_equal(status_and_out);
    assert_eq!(code, Some(0));
    lines
}

#[test]
fn script_args_verbatim() {
    assert_eq!(worker_output(&["echo", "-h", "--nnodes", "3", "--", "a"]), ["-h --nnodes 3 -- a"]);
}

#[test]
fn dashdash_before() {
    assert_eq!(worker_output(&["--", "echo", "a"]), ["a"]);
}

#[test]
fn dashdash_after() {
    assert_eq!(worker_output(&["echo", "--", "a"]), ["a"]);
}

#[test]
fn pet_default() {
    let pair = Pair::run_both(|name| {
        let launch = Launch::new(name).env("PET_NPROC_PER_NODE", "3").args(["--standalone"]);
        launch.shell("echo $WORLD_SIZE").run()
    });
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), vec!["3".into(); 3]));
}

#[test]
fn pet_loses() {
    let pair = Pair::run_both(|name| {
        Launch::standalone(name, 1).env("PET_NPROC_PER_NODE", "3").shell("echo $WORLD_SIZE").run()
    });
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), vec!["1".into()]));
}

#[test]
fn pet_flag() {
    let pair = Pair::run_both(|name| {
        // A port and an id are what `--standalone` drops: without the flag, the id would be `seven`.
        let port = harness::free_port().to_string();
        let launch = Launch::new(name).env("PET_STANDALONE", "1").args(["--master-port", &port]);
        launch.args(["--rdzv-id", "seven"]).shell("echo $TORCHELASTIC_RUN_ID").run()
    });
    let (code, length) =
        pair.expect_equal(|outcome| (outcome.status.code(), outcome.stdout().trim_end().len()));
    assert_eq!((code, length), (Some(0), "01234567-0123-0123-0123-0123456789ab".len()));
}

#[test]
fn pet_bad_int() {
    let pair = Pair::run_both(|name| {
        Launch::standalone(name, 1).env("PET_MAX_RESTARTS", "x").args(["--no-python", "true"]).run()
    });
    let (code, out, last) = pair.expect_equal(status_and_last_error);
    let bad = "torchrun: error: argument --max-restarts/--max_restarts: invalid int value: 'x'";
    assert_eq!((code, out.as_str(), last.as_str()), (Some(2), "", bad));
}

/// Options that every launcher under the name torchrun refuses after parsing, with exit status 1.
const REFUSED: [&[&str]; 11] = [
    &["--nnodes", "2:1"],
    &["--nnodes", "1:2:3"],
    &["--nnodes", "0"],
    &["--nnodes", "x"],
    &["--nproc-per-node", "0"],
    &["--nproc-per-node", "foo"],
    &["--nproc-per-node", "gpu"],
    &["-t", "4"],
    &["-t", "0:1,"],
    &["-t", "10:1"],
    &["-m"],
];

/// The exit status of PyTorch's torchrun for each of [`REFUSED`], all from one process, since each costs two seconds
/// to start.
fn torchrun_statuses() -> &'static [i32] {
    static STATUSES: OnceLock<Vec<i32>> = OnceLock::new();
    STATUSES.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/contract/refused.py");
        let mut command = Command::new(python());
        command.arg(script).env("CUDA_VISIBLE_DEVICES", "").env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHONPATH", python_modules(&[]));
        let output = command.args(REFUSED.map(|options| options.join("\t"))).output().expect("Python starts");
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output_text.lines().map(|line| line.parse().expect("an exit status")).collect()
    })
}

/// Fails unless both refuse `option` with each value with exit status 1, and ours before it starts anything.
#[track_caller]
fn assert_both_refuse(option: &str) {
    let cases = REFUSED.iter().zip(torchrun_statuses()).filter(|(options, _)| options[0] == option);
    let mut count = 0;
    for (options, torchrun_code) in cases {
        let outcome = run_with_options(Name::Torchrun, options);
        outcome.expect_exit_code(1).expect_absent("started");
        assert_eq!(*torchrun_code, 1, "PyTorch's torchrun with {options:?}");
        count += 1;
    }
    assert!(count > 0, "no case has {option}");
}

fn run_with_options(name: Name, options: &[&str]) -> Outcome {
    let launch = Launch::standalone(name, 1).env("CUDA_VISIBLE_DEVICES", "").args(options.iter().copied());
    launch.worker(["print=started"]).run()
}

#[test]
fn bad_nnodes() {
    assert_both_refuse("--nnodes");
}

#[test]
fn bad_nproc() {
    assert_both_refuse("--nproc-per-node");
}

#[test]
fn bad_tee() {
    assert_both_refuse("-t");
    // Under our own name a local rank may have two digits.
    run_with_options(Name::Rankrun, &["-t", "10:1"]).expect_exit_code(0).expect_stdout("started");
}

#[test]
fn no_python_module() {
    assert_both_refuse("-m");
}

#[test]
fn auto_no_gpu() {
    let pair = Pair::run_both(|name| {
        let launch = Launch::new(name).under(["taskset", "--cpu-list", "0"]).env("CUDA_VISIBLE_DEVICES", "");
        launch.args(["--standalone", "--nproc-per-node", "auto"]).shell("echo $LOCAL_WORLD_SIZE").run()
    });
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), vec!["1".into()]));
}

#[test]
fn r#macro() {
    let pair = Pair::run_both(|name| {
        let launch = Launch::standalone(name, 2).args(["--no-python", "echo"]);
        launch.args(["${local_rank}", "$local_rank", "${x}"]).run()
    });
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), vec!["0 0 ${x}".into(), "1 1 ${x}".into()]));
}

#[test]
fn python_exec() {
    let pair = Pair::run_both(|name| {
        Launch::standalone(name, 1).env("PYTHON_EXEC", "/bin/echo").args(["-m", "pkg.mod", "a"]).run()
    });
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), vec!["-u -m pkg.mod a".into()]));
}
