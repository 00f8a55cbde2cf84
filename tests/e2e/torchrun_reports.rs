//! The launcher's output for log searches and for its parent: torchrun's failure report and log lines, compared with
//! those of torchrun itself, and the launcher's own error file.

use std::env;
use std::path::Path;
use std::time::Duration;

use harness::{Gate, Launch, Name, Outcome, Scratch, can_use_namespaces, fixture, is_rankrun, python};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The last line of torchrun's traceback, which ends in a blank.
const RAISED: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";

/// The number behind each of these words differs from run to run.
const PID_MARKERS: [&str; 4] = ["(pid: ", "by PID ", "process ", "Process "];

/// torchrun's report, all of it. Pids are masked, and so are times, unless they are those of the file.
#[track_caller]
pub(crate) fn torchrun_report(outcome: &Outcome) -> String {
    outcome.expect_exit_code(1);
    let err = outcome.stderr();
    let (_, report) = err.split_once(RAISED).unwrap_or_else(|| panic!("no report\n{outcome}"));
    let lines = report.split('\n').map(|line| match line.strip_prefix("  time      : ") {
        Some(time) if !time.starts_with("2023-11-") => "  time      : now".to_owned(),
        _ => mask_folders(&mask_pids(line)),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn mask_pids(line: &str) -> String {
    let mut line = line.to_owned();
    for marker in PID_MARKERS {
        if let Some((before, after)) = line.split_once(marker) {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            let pid = if rest.len() < after.len() { "N" } else { "" };
            line = format!("{before}{marker}{pid}{rest}");
        }
    }
    line
}

/// The temporary folder and the run's own folder have random names.
fn mask_folders(line: &str) -> String {
    let Some((before, after)) = line.split_once("/attempt_") else { return line.to_owned() };
    let start = before.rfind([' ', '(']).map_or(0, |at| at + 1);
    format!("{}FOLDER/attempt_{after}", &before[..start])
}

/// So many workers; torchrun takes its time on a busy machine.
pub(crate) fn worker_launch(name: Name, count: usize) -> Launch {
    Launch::standalone(name, count).limit(Duration::from_secs(300))
}

/// The same job by ours and by torchrun.
#[track_caller]
fn run_both(run: impl Fn(Name) -> Outcome) -> [Outcome; 2] {
    [Name::Torchrun, Name::Reference].map(run)
}

#[track_caller]
pub(crate) fn assert_same_report(run: impl Fn(Name) -> Outcome) -> String {
    let [ours, torchs] = run_both(run);
    assert_eq!(torchrun_report(&ours), torchrun_report(&torchs), "{ours}\n{torchs}");
    torchrun_report(&ours)
}

/// One worker fails after the others are ready, and these are stopped: one ends by the signal, one well.
fn run_three_workers(launch: Launch) -> Outcome {
    let scratch = Scratch::new();
    let gate = Gate::new(&scratch, "gate");
    let steps = [
        "rank2:catch",
        "rank0:alive",
        "rank2:alive",
        &format!("rank1:{}", gate.step()),
        "rank1:exit=3",
        "rank0:forever",
        "signal",
    ];
    let job = launch.args(["--log-dir", &scratch.at("logs")]).worker(steps).start();
    job.wait_for_lines("alive rank=", 2);
    gate.open(1);
    job.wait()
}

#[test]
fn report_of_exit_code_equals_torchrun() {
    let [ours, torchs] = run_both(|name| run_three_workers(worker_launch(name, 3)));
    let text = torchrun_report(&ours);
    assert_eq!(text, torchrun_report(&torchs), "{ours}\n{torchs}");
    assert!(text.contains("\nFailures:\n[1]:\n") && !text.contains("rank      : 2"), "{text}");
    let root = "Root Cause (first observed failure):\n[0]:\n  time      : now\n";
    assert!(text.contains(root) && text.contains("  exitcode  : 3 (pid: N) \n"), "{text}");
    assert_eq!(torch_log_lines(&ours), torch_log_lines(&torchs), "{ours}\n{torchs}");
    assert_eq!(torch_log_lines(&ours).len(), 7, "{ours}");
}

#[test]
fn report_of_sigkill_equals_torchrun() {
    let text = assert_same_report(|name| worker_launch(name, 1).shell("kill -9 $$$$").run());
    assert!(
        text.contains("\n  <NO_OTHER_FAILURES>\n") && text.contains(": -9 (pid: N)  (SIGKILL)\n"),
        "{text}"
    );
    assert!(text.contains("  traceback : Signal 9 (SIGKILL) received by PID N\n"), "{text}");
}

#[test]
fn report_of_timed_message_equals_torchrun() {
    for (file, lines) in [
        (r#"{"message": "first line\nsecond line", "timestamp": "1700000000"}"#, 4),
        (r#"{"message": {"message": "a\nb", "extraInfo": {"timestamp": "1700000000"}}}"#, 2),
    ] {
        let [ours, torchs] = run_both(|name| {
            let launch = worker_launch(name, 1).env("TZ", "XYZ-05:30");
            launch.worker([format!("error-file={file}"), "exit=9".to_owned()]).run()
        });
        let text = torchrun_report(&ours);
        assert_eq!(text, torchrun_report(&torchs), "{ours}\n{torchs}");
        assert!(text.contains("  time      : 2023-11-15_03:43:20\n"), "{text}");
        assert!(text.contains("error_file: FOLDER/attempt_0/0/error.json\n"), "{text}");
        // Among them is the line that no parent asked for an error file.
        assert_eq!(torch_log_lines(&ours), torch_log_lines(&torchs), "{ours}\n{torchs}");
        assert_eq!(torch_log_lines(&ours).len(), lines, "{ours}");
    }
}

/// With the interpreter that torchrun itself runs in.
fn with_venv_path(launch: Launch) -> Launch {
    let venv = python().parent().expect("Python is in a folder").to_owned();
    let path = env::join_paths([venv, "/usr/bin".into(), "/bin".into()]).expect("no colon in it");
    launch.env("PATH", path)
}

#[test]
fn report_of_recorded_exception_equals_torchrun() {
    let scratch = Scratch::new();
    let text = "from torch.distributed.elastic.multiprocessing.errors import record\n\
                @record\n\
                def main():\n    raise ValueError('bad\\nbatch é')\n\
                main()\n";
    let script = scratch.file("train.py", text, 0o644);
    let text = assert_same_report(|name| {
        with_venv_path(worker_launch(name, 1)).args([script.as_str(), "--lr", "1"]).run()
    });
    assert!(
        text.contains(&format!("{script} FAILED\n")) && text.contains("\n  ValueError: bad\n  batch é\n  \n"),
        "{text}"
    );
}

#[test]
fn report_of_module_names_module() {
    let scratch = Scratch::new();
    let _ = scratch.file("fails.py", "raise SystemExit(4)\n", 0o644);
    let text = assert_same_report(|name| {
        with_venv_path(worker_launch(name, 1)).cwd(scratch.path()).args(["-m", "fails", "x"]).run()
    });
    assert!(text.contains("\nfails FAILED\n"), "{text}");
}

#[test]
fn message_without_timestamp_is_not_dated_1970() {
    let files = ["error-file={\"message\": \"m\"}", "exit=9"];
    let outcome = Launch::standalone(Name::Torchrun, 1).env("TZ", "UTC").worker(files).run();
    if is_rankrun() {
        outcome.expect_exit_code(1).expect_stderr("  traceback : m\n").expect_absent("time      : 1970");
    }
}

#[test]
fn invalid_error_file_is_ignored() {
    if is_rankrun() {
        let outcome = Launch::standalone(Name::Torchrun, 1).worker(["error-file={", "exit=9"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("/0/error.json` is left out")
            .expect_stderr("  error_file: <N/A>\n");
        outcome.expect_stderr("  traceback : To enable traceback see: ");
    }
}

/// Everything after the beginning of torch's log lines, without pids; the place in the source is torch's.
pub(crate) fn torch_log_lines(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.stderr();
    let lines = lines.split('\n').filter_map(|line| {
        let (stamp, text) = line.split_once(" torch/")?;
        let fields: Vec<&str> = stamp.split(' ').collect();
        let [date, time, pid] = fields[..] else { return None };
        let is_date = date.len() == 5 && date.as_bytes()[1..].iter().all(u8::is_ascii_digit);
        let is_time = time.len() == 15 && time.ends_with("000") && time.matches(':').count() == 2;
        let looks_right = is_date && is_time && pid.parse::<u32>().is_ok();
        looks_right.then(|| format!("{} torch/{}", &date[..1], mask_folders(&mask_pids(text))))
    });
    lines.collect()
}

#[test]
fn log_of_signal_and_kill_equals_torchrun() {
    let [ours, torchs] = run_both(|name| {
        let launch = worker_launch(name, 2).args(["--shutdown-timeout", "1"]);
        let launch = launch.args(["--event-log-handler", "console"]);
        // torchrun forgets those that it is just starting, and loses a signal that comes while it writes its last
        // event: it has a second to get over it.
        let job = launch.worker(["catch", "sleep-ms=1000", "alive", "forever"]).start();
        job.wait_for_lines("worker.status.START", 2);
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGINT);
        job.wait()
    });
    assert_eq!(torch_log_lines(&ours), torch_log_lines(&torchs), "{ours}\n{torchs}");
    assert_eq!(torch_log_lines(&ours).len(), 9, "{ours}");
    for outcome in [ours, torchs] {
        outcome.expect_stderr("SignalException: Process ").expect_stderr(" got signal: 2\n");
    }
}

/// The module that sends the signals does not ask for the level.
#[test]
fn loglevel_error_hides_same_lines_as_torchrun() {
    let outcome = run_three_workers(worker_launch(Name::Torchrun, 3).env("LOGLEVEL", "ERROR"));
    outcome
        .expect_absent("OMP_NUM_THREADS")
        .expect_stderr(" closing signal SIGTERM\n")
        .expect_stderr(" FAILED\n");
}

#[track_caller]
fn read_json(path: &str) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
}

#[test]
fn parent_error_file_gets_worker_error_file() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.file("parent.json", r#"{"old": "contents"}"#, 0o644);
        let file = r#"error-file={"message": {"message": "m", "extraInfo": {"timestamp": "5"}, "more": [1]}, "x": "é"}"#;
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        let outcome = launch.worker([file, "exit=9"]).run();
        outcome
            .expect_exit_code(name.code(9))
            .expect_stderr(r#""old""#)
            .expect_absent("no error file defined");
        let expected = serde_json::json!({
            "message": {"message": "m", "extraInfo": {"timestamp": "5"}, "more": [1], "errorCode": 9},
            "x": "é",
        });
        assert_eq!(read_json(&path), expected, "{outcome}");
    }
}

#[test]
fn parent_error_file_is_absent_without_worker_error_file() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("parent.json");
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        let outcome = launch.worker(["exit=9"]).run();
        outcome.expect_exit_code(name.code(9));
        assert!(!Path::new(&path).exists(), "{outcome}");
    }
}

#[test]
fn parent_error_file_names_signal() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("parent.json");
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        let job = launch.worker(["alive", "forever"]).start();
        job.wait_for_line("alive rank=0");
        let launcher = job.pid();
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(name.code(143));
        let error_file = read_json(&path);
        let expected = format!("SignalException: Process {launcher} got signal: 15");
        assert_eq!(error_file["message"]["message"], expected.as_str(), "{error_file}");
        let extra = &error_file["message"]["extraInfo"];
        assert!(extra["py_callstack"].is_string(), "{error_file}");
        assert!(extra["timestamp"].as_str().is_some_and(|time| time.parse::<u64>().is_ok()), "{error_file}");
    }
}

#[test]
fn parent_error_file_names_launcher_failure() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let script = scratch.file("script", "#!/nonexistent/interpreter\n", 0o755);
        for what in ["/nonexistent/program", &script] {
            let path = scratch.at("parent.json");
            let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
            launch.args(["--no-python", what]).run().expect_exit_code(1);
            let error_file = read_json(&path);
            let message = error_file["message"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("Error: ") && message.contains(what), "{error_file}");
        }
    }
}

#[test]
fn parent_error_file_names_killed_agent() {
    let scratch = Scratch::new();
    let path = scratch.at("parent.json");
    let launch = Launch::standalone(Name::Rankrun, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
    let job = launch.worker(["alive", "forever"]).start();
    job.wait_for_line("alive rank=0");
    job.signal_to(job.only_child_of(job.pid()), Signal::SIGKILL);
    job.wait().expect_exit_code(1);
    let error_file = read_json(&path);
    let message = error_file["message"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("agent") && message.contains("SIGKILL"), "{error_file}");
}

#[test]
fn unwritable_parent_error_file_keeps_exit_status() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("missing/parent.json");
        let launch = || Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        launch().worker(["alive"]).run().expect_exit_code(0).expect_absent("parent.json");
        let file = r#"error-file={"message": "m"}"#;
        let outcome = launch().worker([file, "exit=9"]).run();
        outcome.expect_exit_code(name.code(9));
        assert_eq!(outcome.lines_with("parent.json").len(), 1, "{outcome}");
    }
}

#[test]
fn worker_in_dstate_ends_job_without_restart() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--max-restarts", "3"]);
        let launch = launch.env("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "1.5");
        let program = fixture("dstate").into_os_string();
        let outcome = launch.args(["--no-python".into(), program, "1".into()]).run();
        outcome.expect_exit_code(1).expect_stderr("error: rank 1 failed first: stuck in the kernel for ");
        let starts = outcome.stdout_lines().iter().filter(|line| line.starts_with("alive rank=1")).count();
        assert_eq!(starts, 1, "it was started again\n{outcome}");
        if *name == Name::Torchrun {
            outcome
                .expect_stderr(" stuck in uninterruptible sleep (D-state) for ")
                .expect_stderr("disabling restarts.");
            let report = torchrun_report(&outcome);
            let root = "  traceback : Worker stuck in uninterruptible sleep (D-state) for ";
            assert!(
                report.contains(root) && report.contains("\n  rank      : 1 (local_rank: 1)\n"),
                "{report}"
            );
        }
    }
}

#[test]
fn sleeping_workers_are_not_reported_as_dstate() {
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 2).env("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "2");
        launch.worker(["sleep-ms=3000"]).run().expect_exit_code(0);
    }
}

/// A network in which the only name server takes questions and never answers.
const SILENT_NAME_SERVER: &str = r#"
    ip link set lo up || exit 97
    echo 'nameserver 127.0.0.1
options timeout:30 attempts:5' > "$TMPDIR/resolv.conf"
    echo '127.0.0.1 localhost' > "$TMPDIR/hosts"
    echo 'hosts: files dns' > "$TMPDIR/nsswitch.conf"
    for file in resolv.conf hosts nsswitch.conf; do
        if [ ! -e "/etc/$file" ]; then continue; fi
        mount --bind "$TMPDIR/$file" "/etc/$file" || exit 97
    done
    hostname unresolvable-host || exit 97
    exec "$PYTHON" -c '
import os, socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
os.set_inheritable(server.fileno(), True)
os.execvp(sys.argv[1], sys.argv[1:])
' "$@""#;

#[test]
fn unanswered_hostname_lookup_does_not_delay_report() {
    if !is_rankrun() || !can_use_namespaces() {
        return;
    }
    let launch = Launch::standalone(Name::Torchrun, 1).env("PYTHON", python());
    let launch = launch.args(["--event-log-handler", "console"]);
    let unshare = ["unshare", "--net", "--uts", "--mount", "--propagation", "private"];
    let launch = launch.under(unshare).under(["sh", "-c", SILENT_NAME_SERVER, "sh"]);
    let outcome = launch.worker(["exit=3"]).run();
    outcome.expect_exit_code(1).expect_stderr("  host      : unresolvable-host\n");
    assert!(outcome.took < Duration::from_secs(29), "{outcome}");
}
