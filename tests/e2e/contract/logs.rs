//! Appendix A, "Logs and errors".

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use harness::{Gate, Launch, Name, Outcome, Scratch, is_rankrun, python};
use serde_json::{Value, json};

use super::pair::{Pair, status_and_out};
use super::processes::exit_3_pair;
use super::report::{path_below_run, report_lines};

/// Two workers that log into the folder `logs` of the temporary folder; OpenMP is chosen, so that nothing warns.
fn launch_with_log_dir(name: Name, options: &[&str]) -> Launch {
    let launch = Launch::standalone(name, 2).env("OMP_NUM_THREADS", "1");
    let logs = launch.temporary().join("logs");
    launch.args(["--log-dir".into(), logs]).args(options.iter().copied())
}

/// A worker that writes its rank on both streams.
const PRINT_RANK_STEPS: [&str; 2] = ["print=out of {rank}", "eprint=err of {rank}"];

/// The folder of the only attempt.
#[track_caller]
fn attempt_folder(outcome: &Outcome) -> PathBuf {
    let runs = fs::read_dir(outcome.temporary().join("logs")).expect("the log folder exists");
    let runs: Vec<_> = runs.map(|run| run.expect("it can be listed").path()).collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].join("attempt_0")
}

/// Every file of the attempt with its bytes as text, and every folder, with their permissions.
#[track_caller]
fn log_tree(outcome: &Outcome) -> BTreeMap<String, String> {
    let (root, mut found) = (attempt_folder(outcome), BTreeMap::new());
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("it is a folder") {
            let path = entry.expect("it can be listed").path();
            let mode = fs::metadata(&path).expect("it exists").permissions().mode();
            let name = path.strip_prefix(&root).expect("it is below the root").display().to_string();
            if path.is_dir() {
                found.insert(name, format!("{mode:o}"));
                folders.push(path);
            } else {
                let bytes = fs::read(&path).expect("it can be read");
                found.insert(name, format!("{mode:o} {}", bytes.escape_ascii()));
            }
        }
    }
    found
}

/// The files of a tree without what is in them.
fn log_file_names(tree: &BTreeMap<String, String>) -> Vec<&str> {
    tree.keys().map(String::as_str).filter(|name| name.ends_with(".log")).collect()
}

/// The exit status and the lines of both streams, sorted, and the log tree.
fn status_streams_and_tree(
    outcome: &Outcome,
) -> (Option<i32>, Vec<String>, Vec<String>, BTreeMap<String, String>) {
    let (code, out) = status_and_out(outcome);
    let mut err: Vec<String> = outcome.stderr().lines().map(str::to_owned).collect();
    err.sort();
    (code, out, err, log_tree(outcome))
}

#[test]
fn tree() {
    let pair = Pair::run_both(|name| launch_with_log_dir(name, &["-r", "3"]).worker(PRINT_RANK_STEPS).run());
    let (code, out, err, tree) = pair.expect_equal(status_streams_and_tree);
    assert_eq!((code, out, err), (Some(0), Vec::new(), Vec::new()));
    assert_eq!(log_file_names(&tree), ["0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"]);
    assert!(tree["1/stdout.log"].ends_with(" out of 1\\n"), "{tree:?}");
    let run = pair.expect_equal(|outcome| {
        let run = attempt_folder(outcome).parent().expect("an attempt is in a run").to_owned();
        let name = run.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        // The random letters may be underscores too.
        let (id, random) = name.split_once('_').unwrap_or_else(|| panic!("{name}"));
        (id.len(), random.len(), fs::metadata(&run).expect("it exists").permissions().mode() & 0o777)
    });
    assert_eq!(run, (36, 8, 0o700));
}

#[test]
fn raw_bytes() {
    let pair = Pair::run_both(|name| launch_with_log_dir(name, &["-t", "3"]).worker(["bytes"]).run());
    for outcome in [&pair.rankrun, &pair.torchrun] {
        outcome.expect_exit_code(0);
        let bytes = fs::read(attempt_folder(outcome).join("1/stdout.log")).expect("the log is there");
        assert_eq!(bytes, b"a\xffb\rc\r\nlast");
    }
    pair.expect_equal(log_tree);
}

#[test]
fn prefix() {
    let pair = Pair::run_both(|name| {
        launch_with_log_dir(name, &["-t", "1", "--role", "trn"]).worker(PRINT_RANK_STEPS).run()
    });
    let (code, out, ..) = pair.expect_equal(status_streams_and_tree);
    assert_eq!((code, out), (Some(0), vec!["[trn0]:out of 0".into(), "[trn1]:out of 1".into()]));
}

#[test]
fn template() {
    let template = "${hostname}:${rank}/${local_rank} $role_name ${x} $$ ";
    let options = ["--log-line-prefix-template", template, "-t", "1", "--role", "trn"];
    let pair = Pair::run_both(|name| launch_with_log_dir(name, &options).worker(PRINT_RANK_STEPS).run());
    let (code, out, ..) = pair.expect_equal(status_streams_and_tree);
    let host = nix::unistd::gethostname().expect("the machine has a name").to_string_lossy().into_owned();
    let lines = [0, 1].map(|rank| format!("{host}:{rank}/{rank} trn ${{x}} $ out of {rank}"));
    assert_eq!((code, out), (Some(0), lines.to_vec()));
}

#[test]
fn map() {
    let pair =
        Pair::run_both(|name| launch_with_log_dir(name, &["-r", "0:1,1:2"]).worker(PRINT_RANK_STEPS).run());
    let (code, out, err, tree) = pair.expect_equal(status_streams_and_tree);
    assert_eq!((code, out, err), (Some(0), vec!["out of 1".into()], vec!["err of 0".into()]));
    assert_eq!(log_file_names(&tree), ["0/stdout.log", "1/stderr.log"]);
}

#[test]
fn filter() {
    // Standard output is a file and on the console, standard error has no file.
    let options = ["--local-ranks-filter", "0", "-t", "1"];
    let pair = Pair::run_both(|name| launch_with_log_dir(name, &options).worker(PRINT_RANK_STEPS).run());
    let (code, out, err, tree) = pair.expect_equal(status_streams_and_tree);
    assert_eq!((code, out, err), (Some(0), vec!["[default0]:out of 0".into()], vec!["err of 0".into()]));
    assert!(tree["1/stdout.log"].ends_with(" out of 1\\n"), "{tree:?}");
}

#[test]
fn duplicate() {
    let options = ["-t", "3", "--duplicate-stdout-filters", "a,,b,c"];
    let steps = ["print=a of {rank}", "print=a,b of {rank}", "print=b of {rank}", "print=c of {rank}"];
    let pair = Pair::run_both(|name| launch_with_log_dir(name, &options).worker(steps).run());
    let lines = pair.expect_equal(|outcome| {
        outcome.expect_exit_code(0);
        let text = fs::read_to_string(attempt_folder(outcome).join("filtered_stdout.log"))
            .expect("the copy is there");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    });
    let expected = [0, 1].map(|rank| ["a,b", "c"].map(|text| format!("[default{rank}]:{text} of {rank}")));
    assert_eq!(lines, expected.concat());
}

#[test]
fn tee_latency() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let gate = Gate::closed();
        let job = launch_with_log_dir(*name, &["-t", "1"]).worker(["print=early", &gate.step()]).start();
        // The workers are alive until the gate opens: the lines came before that.
        job.wait_for_lines("]:early", 2);
        gate.open(2);
        job.wait().expect_exit_code(0);
    }
}

#[test]
fn tee_whole_lines() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        // The pause between the pieces is what is tested.
        let steps = ["write=first-", "sleep-ms=300", "write=second\n"];
        let outcome = launch_with_log_dir(*name, &["-t", "1"]).worker(steps).run();
        let lines = ["[default0]:first-second", "[default1]:first-second"].map(str::to_owned);
        assert_eq!(status_and_out(&outcome), (Some(0), lines.to_vec()), "{outcome}");
    }
}

const SCRIPT: &str = "\
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError('the loss is n\\u00e4n')

main()
";

/// A Python worker with a decorated function that raises, under a launcher with an error file of its own.
fn raising_script_pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        let scratch = Scratch::new();
        let script = scratch.file("train.py", SCRIPT, 0o644);
        let bin = python().parent().expect("Python is in a folder").to_owned();
        Pair::run_both(|name| {
            let launch = Launch::standalone(name, 1).with_torch().without_env("PYTHON_EXEC");
            let own = launch.temporary().join("launcher.json");
            // Without `PYTHON_EXEC`, which torchrun names in the title in place of the script.
            let path = format!("{}:/usr/bin:/bin", bin.display());
            launch.env("PATH", path).env("TORCHELASTIC_ERROR_FILE", own).args([script.as_str()]).run()
        })
    })
}

/// The JSON in a file, with a word for the time.
#[track_caller]
fn read_error_file(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut error: Value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    let time = &mut error["message"]["extraInfo"]["timestamp"];
    assert!(time.as_str().is_some_and(|time| time.parse::<u64>().is_ok()), "{text}");
    *time = json!("TIME");
    error
}

#[test]
fn record() {
    let pair = raising_script_pair();
    let (code, report) = pair.expect_equal(|outcome| (outcome.status.code(), report_lines(outcome)));
    assert_eq!(code, Some(1));
    assert!(report.contains(&"  error_file: attempt_0/0/error.json".to_owned()), "{report:#?}");
    assert!(report.contains(&"  ValueError: the loss is n\u{e4}n".to_owned()), "{report:#?}");
    let error = pair.expect_equal(|outcome| {
        let lines = outcome.lines_with("  error_file: ");
        let path = lines[0].trim_start_matches("  error_file: ");
        assert_eq!(path_below_run(path), "attempt_0/0/error.json");
        read_error_file(Path::new(path))
    });
    assert_eq!(error["message"]["message"], json!("ValueError: the loss is n\u{e4}n"));
}

#[test]
fn parent_file() {
    let pair = raising_script_pair();
    let error = pair.expect_equal(|outcome| read_error_file(&outcome.temporary().join("launcher.json")));
    assert_eq!(error["message"]["errorCode"], json!(1));
    assert_eq!(error["message"]["message"], json!("ValueError: the loss is n\u{e4}n"));
}

#[test]
fn text_message() {
    let file = r#"error-file={"message":"m","timestamp":"1700000000"}"#;
    let pair = Pair::run_both(|name| Launch::standalone(name, 1).worker([file, "exit=9"]).run());
    let (code, report, time) = pair.expect_equal(|outcome| {
        (outcome.status.code(), report_lines(outcome), outcome.lines_with("  time      : "))
    });
    assert_eq!(code, Some(1));
    assert!(report.contains(&"  traceback : m".to_owned()), "{report:#?}");
    // 22:13:20 UTC; no time zone is 14 hours and more from there.
    assert!(time[0].contains("2023-11-14_") || time[0].contains("2023-11-15_"), "{time:?}");
}

#[test]
fn bad_json() {
    if is_rankrun() {
        for name in Name::both() {
            let outcome = Launch::standalone(*name, 1).worker(["error-file={", "exit=9"]).run();
            outcome.expect_exit_code(name.code(9)).expect_stderr("rank 0").expect_absent("panicked");
        }
        let outcome = Launch::standalone(Name::Torchrun, 1).worker(["error-file={", "exit=9"]).run();
        assert!(report_lines(&outcome).contains(&"  exitcode  : 9 (pid: PID) ".to_owned()), "{outcome}");
    }
}

#[test]
fn no_others() {
    let report = exit_3_pair().expect_equal(report_lines);
    let title = ["===", "sh FAILED", "---", "Failures:", "  <NO_OTHER_FAILURES>", "---"];
    assert_eq!(report[..6], title);
    assert_eq!(report[6..8], ["Root Cause (first observed failure):", "[0]:"]);
}

/// The events on standard error, with words for what is another one in each run.
#[track_caller]
fn normalized_events(outcome: &Outcome) -> Vec<Value> {
    let lines = outcome.lines_with("torchelastic.worker.status.");
    lines.iter().map(|line| normalized_event(line)).collect()
}

#[track_caller]
fn normalized_event(line: &str) -> Value {
    let mut event: Value = serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    let data = &mut event["metadata"];
    // A text with JSON in it.
    let inner = data["metadata"].as_str().unwrap_or_else(|| panic!("no text: {line}"));
    let mut inner: Value = serde_json::from_str(inner).unwrap_or_else(|why| panic!("{why}: {line}"));
    if let Some(pid) = inner.pointer_mut("/worker_pid/0").filter(|pid| pid.is_u64()) {
        *pid = json!("PID");
    }
    data["metadata"] = inner;
    for (key, mask) in [("run_id", "ID"), ("worker_id", "PID"), ("hostname", "HOST"), ("duration_ms", "TIME")]
    {
        if !data[key].is_null() {
            data[key] = json!(mask);
        }
    }
    assert!(data["total_run_time"].is_u64(), "{line}");
    data["total_run_time"] = json!("TIME");
    event
}

#[test]
fn events() {
    let pair = Pair::run_both(|name| {
        let gate = Gate::closed();
        let launch = Launch::standalone(name, 2).args(["--event-log-handler", "console"]);
        let steps = ["alive", &format!("rank1:{}", gate.step()), "rank1:exit=3", "forever"];
        let job = launch.worker(steps).start();
        job.wait_for_lines("alive rank=", 2);
        gate.open(1);
        job.wait()
    });
    let events = pair.expect_equal(normalized_events);
    let states: Vec<_> = events.iter().filter_map(|event| event["metadata"]["state"].as_str()).collect();
    let start = ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START"];
    assert_eq!(states, [&start[..], &["FAILED", "FAILED", "SUCCEEDED"]].concat());
}
