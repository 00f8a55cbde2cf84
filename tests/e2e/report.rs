//! `--report FILE`: each document fits `docs/report.schema.json`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use harness::{Job, Launch, Name, Outcome, Scratch, checkout, field, free_port, is_rankrun, schema_problems};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The report of a job that has ended, checked against the schema.
#[track_caller]
pub(crate) fn read_report(path: &str) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(problems(&report), [""; 0], "{text}");
    report
}

/// What is wrong with a report.
fn problems(report: &Value) -> Vec<String> {
    let schema = fs::read_to_string(checkout().join("docs/report.schema.json")).expect("it is there");
    schema_problems(&serde_json::from_str(&schema).expect("it is JSON"), report)
}

#[test]
fn report_in_guide_fits_schema_and_another_one_does_not() {
    let page = fs::read_to_string(checkout().join("docs/logs.md")).expect("it is text");
    let (_, section) = page.split_once("## The report as JSON").expect("the page has the section");
    let text =
        section.split("```json\n").nth(1).and_then(|text| text.split("```").next()).expect("an example");
    let mut report: Value = serde_json::from_str(text).expect("it is JSON");
    assert_eq!(problems(&report), [""; 0]);
    report["failure"]["kind"] = json!("bad luck");
    assert_eq!(problems(&report).len(), 1);
}

/// A job of this many workers, and the path of its report.
fn reporting(scratch: &Scratch, workers: usize) -> (Launch, String) {
    let path = scratch.at("report.json");
    let launch = Launch::standalone(Name::Rankrun, workers).args(["--device-type", "cpu", "--report", &path]);
    (launch, path)
}

#[test]
fn report_of_success_has_no_failure() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 2);
    // Of an earlier job.
    fs::write(&path, "old").expect("the folder is ours");
    let launch = launch.args(["--max-restarts", "1"]);
    launch.worker(["attempt0:exit=3", "exit=0"]).run().expect_exit_code(0);
    let report = read_report(&path);
    assert_eq!((&report["result"], &report["exit_code"]), (&json!("succeeded"), &json!(0)), "{report}");
    assert_eq!(report["restarts"], json!({"used": 1, "allowed": 1}));
    assert_eq!((report.get("failure"), report.get("stopped_by")), (None, None), "{report}");
    let mode = fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o133, 0, "no program, and written by its owner alone: {mode:o}");
    assert_eq!(fs::read_dir(scratch.path()).expect("it is there").count(), 1, "nothing is left beside it");
}

#[test]
fn report_of_exit_code_has_worker_and_other_ends() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 2);
    let mut job = launch
        .args(["--stdin", "1"])
        .stdin_open()
        .worker(["alive", "rank1:read", "rank1:exit=7", "forever"])
        .start();
    job.wait_for_lines("alive rank=", 2);
    job.type_text("\n");
    let outcome = job.wait();
    outcome.expect_exit_code(7);
    let report = read_report(&path);
    let failure = &report["failure"];
    assert_eq!((&report["result"], &failure["kind"]), (&json!("failed"), &json!("exit")), "{report}");
    let sentence = failure["sentence"].as_str().expect("a text");
    outcome.expect_stderr(&format!("error: {sentence}\n"));
    assert_eq!((&failure["rank"], &failure["exit"]), (&json!(1), &json!({"code": 7})), "{report}");
    assert_eq!(failure["device"], json!({"kind": "cpu", "index": 1}));
    assert_eq!(
        (&failure["others"][0]["rank"], &failure["others"][0]["exit"]["name"]),
        (&json!(0), &json!("SIGTERM"))
    );
    assert_eq!(failure["last_lines"].as_array().map(Vec::len), Some(2), "{report}");
}

#[test]
fn report_of_python_has_exception_with_its_place() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 1);
    let script = "def load_batch():\n    raise ValueError(\"no \\x1b[31mdata\")\n\nload_batch()\n";
    let script = scratch.file("data.py", script, 0o644);
    launch.args([&script]).run().expect_exit_code(1);
    let report = read_report(&path);
    let failure = &report["failure"];
    assert_eq!(failure["kind"], "exception", "{report}");
    let expected = json!({"type": "ValueError", "message": "no data", "file": script, "line": 2, "function": "load_batch"});
    assert_eq!(failure["exception"], expected);
    // `sys.exit` after a traceback that the program printed.
    let (launch, path) = reporting(&scratch, 1);
    let printing =
        "import sys, traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\nsys.exit(3)\n";
    launch.args([scratch.file("printing.py", printing, 0o644)]).run().expect_exit_code(3);
    let report = read_report(&path);
    assert_eq!(
        (&report["failure"]["kind"], report["failure"].get("exception")),
        (&json!("exit"), None),
        "{report}"
    );
}

#[test]
fn report_of_error_file_has_its_exception_and_traceback() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 1);
    let stack =
        r#"Traceback (most recent call last):\n  File \"data.py\", line 17, in load\nValueError: bad batch"#;
    let extra = format!(r#"{{"py_callstack": "{stack}", "timestamp": "1700000000"}}"#);
    let text =
        format!(r#"error-file={{"message": {{"message": "ValueError: bad batch", "extraInfo": {extra}}}}}"#);
    launch
        .worker([text, "exit=9".to_owned()])
        .run()
        .expect_exit_code(9)
        .expect_stderr("    | ValueError: bad batch\n");
    let exception = &read_report(&path)["failure"]["exception"];
    assert_eq!((&exception["type"], &exception["line"]), (&json!("ValueError"), &json!(17)), "{exception}");
    assert!(exception["traceback"].as_str().expect("a text").starts_with("Traceback"), "{exception}");
}

#[test]
fn report_of_signal_has_its_name() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 1);
    launch.worker(["die=SIGKILL"]).run().expect_exit_code(137);
    let report = read_report(&path);
    let failure = &report["failure"];
    assert_eq!(
        (&failure["kind"], &failure["exit"]["name"]),
        (&json!("signal"), &json!("SIGKILL")),
        "{report}"
    );
    assert!(failure["memory"]["out_of_memory"].is_string() && failure["hint"].is_string(), "{report}");
    assert_eq!(report["exit_code"], 137);
}

#[test]
fn report_of_hang_has_verdict_and_stacks() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 2);
    launch.args(["--hang-timeout", "1"]).worker(["march=sleep,20,5"]).run().expect_exit_code(1);
    let report = read_report(&path);
    let failure = &report["failure"];
    assert_eq!((&failure["kind"], &failure["rank"]), (&json!("hang"), &json!(1)), "{report}");
    let waits = json!([{"collective": "all_reduce", "sequence": 10, "waiting": [0], "missing": [1]}]);
    assert_eq!(
        (&failure["hang"]["verdict"], &failure["hang"]["waits"]),
        (&json!("hang"), &waits),
        "{report}"
    );
    let rank = &failure["hang"]["ranks"][0];
    assert_eq!(
        (&rank["rank"], &rank["activity"], &rank["step"]),
        (&json!(1), &json!("step"), &json!(9)),
        "{report}"
    );
    assert!(rank["seconds"].as_f64().expect("a number") >= 1.0, "{report}");
    assert_eq!(failure["stacks"].as_array().map(Vec::len), Some(2), "{report}");
}

#[test]
fn report_of_stopped_job_has_signal() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 1);
    let job = launch.worker(["alive", "forever"]).start();
    job.wait_for_line("alive rank=0");
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143);
    let report = read_report(&path);
    assert_eq!((&report["result"], &report["exit_code"]), (&json!("stopped"), &json!(143)), "{report}");
    assert_eq!((&report["stopped_by"]["name"], report.get("failure")), (&json!("SIGTERM"), None), "{report}");
    let (launch, path) = reporting(&scratch, 1);
    launch.args(["--time-limit", "0.2"]).worker(["forever"]).run().expect_exit_code(124);
    let report = read_report(&path);
    assert_eq!(
        (&report["result"], &report["failure"]["kind"]),
        (&json!("failed"), &json!("time_limit")),
        "{report}"
    );
    assert_eq!(report["failure"]["limit"], 0.2);
}

#[test]
fn report_in_missing_folder_or_stdout_is_refused_before_start() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let missing = scratch.at("missing/report.json");
    let run = |path: &str| -> Outcome {
        Launch::standalone(Name::Rankrun, 1).args(["--report", path]).worker(["alive"]).run()
    };
    let outcome = run(&missing);
    outcome.expect_exit_code(1).expect_absent("alive rank").expect_stderr(&format!(
        "error: cannot write the report `{missing}`\n  caused by: the folder `{}` does not exist\n",
        scratch.at("missing")
    ));
    outcome.expect_stderr("hint: name a file with `--report` in a folder that exists and can be written\n");
    assert_eq!(outcome.lines_with("cannot write the report").len(), 1, "{outcome}");
    run(scratch.path().to_str().expect("a plain name")).expect_exit_code(1).expect_absent("alive rank");
    let outcome = run("-");
    outcome.expect_exit_code(1).expect_stderr("`--report` is `-`, which is not the path of a file");
    outcome.expect_stderr("hint: standard output has the lines of the workers: name a file");
}

#[test]
fn report_has_the_rule_that_decided_the_outcome() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 1);
    launch.args(["--restart-rules", "exit=3:no-requeue"]).worker(["exit=3"]).run().expect_exit_code(78);
    let report = read_report(&path);
    assert_eq!(report["rule"], json!({"text": "exit=3:no-requeue", "then": "no-requeue"}), "{report}");
    assert_eq!(
        (&report["result"], &report["failure"]["kind"]),
        (&json!("failed"), &json!("exit")),
        "{report}"
    );
}

#[test]
fn report_of_late_worker_has_limit_and_missing_ranks() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 2);
    launch.args(["--start-timeout", "0.3"]).worker(["forever"]).run().expect_exit_code(1);
    let failure = &read_report(&path)["failure"];
    assert_eq!((&failure["kind"], &failure["limit"]), (&json!("not_joined"), &json!(0.3)), "{failure}");
    assert_eq!(failure["not_joined"], json!([0, 1]), "{failure}");
}

/// Rank 0 exits with 0 before rank 1 fails, and rank 2 writes an error file when it is stopped.
#[test]
fn report_has_ranks_that_finished_early_and_errors_of_others() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, path) = reporting(&scratch, 3);
    let write = |rank: u32, text: &str| format!("rank{rank}:error-file={{\"message\": \"{text}\"}}");
    let steps = ["catch", "alive", "rank0:exit=0", "rank1:read"].map(str::to_owned);
    let fails = [
        write(1, "cause"),
        "rank1:exit=3".to_owned(),
        "signal".to_owned(),
        write(2, "lost 1"),
        "exit=1".to_owned(),
    ];
    let launch = launch.args(["--stdin", "1"]).stdin_open();
    let mut job = launch.worker(steps.into_iter().chain(fails)).start();
    job.wait_for_lines("alive rank=", 3);
    let line = job.wait_for_line("alive rank=0");
    let process = format!("/proc/{}", field(&line, "pid").expect("it has a pid"));
    job.wait_until("rank 0 is reaped", || !Path::new(&process).exists());
    job.type_text("\n");
    job.wait().expect_exit_code(3);
    let failure = &read_report(&path)["failure"];
    assert_eq!(failure["exception"], json!({"message": "cause"}), "{failure}");
    assert_eq!(failure["finished_early"][0]["rank"], 0, "{failure}");
    assert_eq!(failure["other_errors"], json!([{"ranks": [2], "message": "lost 1"}]), "{failure}");
}

/// The worker removes the folder.
#[test]
fn report_that_cannot_be_written_at_end_is_a_warning() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("reports", 0o755);
    let path = format!("{folder}/report.json");
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--report", &path]);
    let outcome = launch.shell(&format!("rmdir {folder}; exit 5")).run();
    outcome
        .expect_exit_code(5)
        .expect_stderr(&format!("rankrun: cannot write the report `{path}`: No such file"));
    outcome.expect_stderr("rank 0 failed first: exit code 5");
    assert!(!Path::new(&path).exists());
}

#[test]
fn report_is_written_under_torchrun_name_by_variable_alone() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.at("report.json");
    let launch = Launch::standalone(Name::Torchrun, 1).env("RANKRUN_REPORT", &path);
    // A worker does not find it: a launcher inside it has a report of its own.
    launch.shell("test -z \"$${RANKRUN_REPORT-}\" || exit 9; exit 3").run().expect_exit_code(1);
    let report = read_report(&path);
    assert_eq!(
        (&report["exit_code"], &report["failure"]["exit"]),
        (&json!(1), &json!({"code": 3})),
        "{report}"
    );
    let outcome = Launch::standalone(Name::Torchrun, 1).args(["--report", &path]).worker(["exit=0"]).run();
    outcome.expect_exit_code(2);
}

#[test]
fn each_node_writes_a_report_with_the_same_first_failure() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let endpoint = format!("localhost:{}", free_port());
    let node = |name: &str| {
        let launch =
            Launch::new(Name::Rankrun).args(["--nnodes", "2", "--nproc-per-node", "1", "--stdin", "all"]);
        let launch = launch.args(["--rdzv-backend", "c10d", "--rdzv-id", "x", "--iface", "lo"]);
        let launch = launch.args(["--rdzv-endpoint", &endpoint, "--report", &scratch.at(name)]);
        launch.stdin_open().worker(["alive", "rank1:read", "rank1:exit=3", "forever"]).start()
    };
    let mut jobs = [node("a.json"), node("b.json")];
    jobs.iter().for_each(|job| drop(job.wait_for_line("alive rank=")));
    jobs.iter_mut().for_each(|job| job.type_text("\n"));
    let outcomes = jobs.map(Job::wait);
    let reports = ["a.json", "b.json"].map(|name| read_report(&scratch.at(name)));
    let has_rank_1 = outcomes[0].stdout().contains("alive rank=1");
    let (near, far) = if has_rank_1 { (&reports[0], &reports[1]) } else { (&reports[1], &reports[0]) };
    assert_eq!(
        (&near["failure"]["kind"], &far["failure"]["kind"]),
        (&json!("exit"), &json!("remote")),
        "{reports:#?}"
    );
    for field in ["sentence", "rank", "pid"] {
        assert_eq!(near["failure"][field], far["failure"][field], "{reports:#?}");
    }
    assert_eq!((&near["node"]["nodes"], &far["result"]), (&json!(2), &json!("failed")), "{reports:#?}");
}
