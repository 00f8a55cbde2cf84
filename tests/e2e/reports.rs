//! The launcher's output for log searches and for its parent: torchrun's failure report and log lines, compared with
//! those of torchrun itself, and the launcher's own error file.

use std::env;
use std::path::Path;
use std::time::Duration;

use harness::{Gate, Launch, Name, Outcome, Scratch, fixture, namespaces, only_ours, python};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The last line of torchrun's traceback, which ends in a blank.
const RAISED: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";

/// The number behind each of these words differs from run to run.
const BEFORE_A_PID: [&str; 4] = ["(pid: ", "by PID ", "process ", "Process "];

/// torchrun's report, all of it. Pids are masked, and so are times, unless they are those of the file.
#[track_caller]
pub(crate) fn report(outcome: &Outcome) -> String {
    outcome.exits(1);
    let err = outcome.err();
    let (_, report) = err.split_once(RAISED).unwrap_or_else(|| panic!("no report\n{outcome}"));
    let lines = report.split('\n').map(|line| match line.strip_prefix("  time      : ") {
        Some(time) if !time.starts_with("2023-11-") => "  time      : now".to_owned(),
        _ => without_folders(&without_pids(line)),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn without_pids(line: &str) -> String {
    let mut line = line.to_owned();
    for word in BEFORE_A_PID {
        if let Some((before, after)) = line.split_once(word) {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            let pid = if rest.len() < after.len() { "N" } else { "" };
            line = format!("{before}{word}{pid}{rest}");
        }
    }
    line
}

/// The temporary folder and the run's own folder have random names.
fn without_folders(line: &str) -> String {
    let Some((before, after)) = line.split_once("/attempt_") else { return line.to_owned() };
    let start = before.rfind([' ', '(']).map_or(0, |at| at + 1);
    format!("{}FOLDER/attempt_{after}", &before[..start])
}

/// So many workers; torchrun takes its time on a busy machine.
pub(crate) fn workers(name: Name, count: usize) -> Launch {
    Launch::standalone(name, count).limit(Duration::from_secs(300))
}

/// The same job by ours and by torchrun.
#[track_caller]
fn both(run: impl Fn(Name) -> Outcome) -> [Outcome; 2] {
    [Name::Torchrun, Name::Reference].map(run)
}

#[track_caller]
pub(crate) fn same_report(run: impl Fn(Name) -> Outcome) -> String {
    let [ours, torchs] = both(run);
    assert_eq!(report(&ours), report(&torchs), "{ours}\n{torchs}");
    report(&ours)
}

/// One worker fails after the others are ready, and these are stopped: one ends by the signal, one well.
fn three(launch: Launch) -> Outcome {
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
    job.lines("alive rank=", 2);
    gate.open(1);
    job.wait()
}

#[test]
fn a_plain_failure() {
    let [ours, torchs] = both(|name| three(workers(name, 3)));
    let text = report(&ours);
    assert_eq!(text, report(&torchs), "{ours}\n{torchs}");
    assert!(text.contains("\nFailures:\n[1]:\n") && !text.contains("rank      : 2"), "{text}");
    let root = "Root Cause (first observed failure):\n[0]:\n  time      : now\n";
    assert!(text.contains(root) && text.contains("  exitcode  : 3 (pid: N) \n"), "{text}");
    assert_eq!(log(&ours), log(&torchs), "{ours}\n{torchs}");
    assert_eq!(log(&ours).len(), 7, "{ours}");
}

#[test]
fn a_death_by_a_signal() {
    let text = same_report(|name| workers(name, 1).shell("kill -9 $$$$").run());
    assert!(
        text.contains("\n  <NO_OTHER_FAILURES>\n") && text.contains(": -9 (pid: N)  (SIGKILL)\n"),
        "{text}"
    );
    assert!(text.contains("  traceback : Signal 9 (SIGKILL) received by PID N\n"), "{text}");
}

#[test]
fn a_message_with_a_time() {
    for (file, lines) in [
        (r#"{"message": "first line\nsecond line", "timestamp": "1700000000"}"#, 4),
        (r#"{"message": {"message": "a\nb", "extraInfo": {"timestamp": "1700000000"}}}"#, 2),
    ] {
        let [ours, torchs] = both(|name| {
            let launch = workers(name, 1).env("TZ", "XYZ-05:30");
            launch.worker([format!("error-file={file}"), "exit=9".to_owned()]).run()
        });
        let text = report(&ours);
        assert_eq!(text, report(&torchs), "{ours}\n{torchs}");
        assert!(text.contains("  time      : 2023-11-15_03:43:20\n"), "{text}");
        assert!(text.contains("error_file: FOLDER/attempt_0/0/error.json\n"), "{text}");
        // Among them is the line that no parent asked for an error file.
        assert_eq!(log(&ours), log(&torchs), "{ours}\n{torchs}");
        assert_eq!(log(&ours).len(), lines, "{ours}");
    }
}

/// With the interpreter that torchrun itself runs in.
fn in_venv(launch: Launch) -> Launch {
    let venv = python().parent().expect("Python is in a folder").to_owned();
    let path = env::join_paths([venv, "/usr/bin".into(), "/bin".into()]).expect("no colon in it");
    launch.env("PATH", path)
}

#[test]
fn a_recorded_exception() {
    let scratch = Scratch::new();
    let text = "from torch.distributed.elastic.multiprocessing.errors import record\n\
                @record\n\
                def main():\n    raise ValueError('bad\\nbatch é')\n\
                main()\n";
    let script = scratch.file("train.py", text, 0o644);
    let text = same_report(|name| in_venv(workers(name, 1)).args([script.as_str(), "--lr", "1"]).run());
    assert!(
        text.contains(&format!("{script} FAILED\n")) && text.contains("\n  ValueError: bad\n  batch é\n  \n"),
        "{text}"
    );
}

#[test]
fn a_module_gives_its_name() {
    let scratch = Scratch::new();
    let _ = scratch.file("fails.py", "raise SystemExit(4)\n", 0o644);
    let text =
        same_report(|name| in_venv(workers(name, 1)).cwd(scratch.path()).args(["-m", "fails", "x"]).run());
    assert!(text.contains("\nfails FAILED\n"), "{text}");
}

#[test]
fn a_text_without_a_time_is_not_of_1970() {
    let files = ["error-file={\"message\": \"m\"}", "exit=9"];
    let outcome = Launch::standalone(Name::Torchrun, 1).env("TZ", "UTC").worker(files).run();
    if only_ours() {
        outcome.exits(1).complains("  traceback : m\n").never_says("time      : 1970");
    }
}

#[test]
fn a_broken_error_file_is_as_good_as_none() {
    if only_ours() {
        let outcome = Launch::standalone(Name::Torchrun, 1).worker(["error-file={", "exit=9"]).run();
        outcome.exits(1).complains("/0/error.json` is left out").complains("  error_file: <N/A>\n");
        outcome.complains("  traceback : To enable traceback see: ");
    }
}

/// Everything after the beginning of torch's log lines, without pids; the place in the source is torch's.
pub(crate) fn log(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.err();
    let lines = lines.split('\n').filter_map(|line| {
        let (stamp, text) = line.split_once(" torch/")?;
        let words: Vec<&str> = stamp.split(' ').collect();
        let [date, time, pid] = words[..] else { return None };
        let is_date = date.len() == 5 && date.as_bytes()[1..].iter().all(u8::is_ascii_digit);
        let is_time = time.len() == 15 && time.ends_with("000") && time.matches(':').count() == 2;
        let looks_right = is_date && is_time && pid.parse::<u32>().is_ok();
        looks_right.then(|| format!("{} torch/{}", &date[..1], without_folders(&without_pids(text))))
    });
    lines.collect()
}

#[test]
fn the_log_of_a_signal_and_of_a_kill() {
    let [ours, torchs] = both(|name| {
        let launch = workers(name, 2).args(["--shutdown-timeout", "1"]);
        let launch = launch.args(["--event-log-handler", "console"]);
        // torchrun forgets those that it is just starting, and loses a signal that comes while it writes its last
        // event: it has a second to get over it.
        let job = launch.worker(["catch", "sleep-ms=1000", "alive", "forever"]).start();
        job.lines("worker.status.START", 2);
        job.lines("alive rank=", 2);
        job.signal(Signal::SIGINT);
        job.wait()
    });
    assert_eq!(log(&ours), log(&torchs), "{ours}\n{torchs}");
    assert_eq!(log(&ours).len(), 9, "{ours}");
    for outcome in [ours, torchs] {
        outcome.complains("SignalException: Process ").complains(" got signal: 2\n");
    }
}

/// The module that sends the signals does not ask for the level.
#[test]
fn loglevel_hides_what_it_hides_in_torchrun() {
    let outcome = three(workers(Name::Torchrun, 3).env("LOGLEVEL", "ERROR"));
    outcome.never_says("OMP_NUM_THREADS").complains(" closing signal SIGTERM\n").complains(" FAILED\n");
}

#[track_caller]
fn json(path: &str) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
}

#[test]
fn whoever_started_us_gets_the_workers_error_file() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.file("parent.json", r#"{"old": "contents"}"#, 0o644);
        let file = r#"error-file={"message": {"message": "m", "extraInfo": {"timestamp": "5"}, "more": [1]}, "x": "é"}"#;
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        let outcome = launch.worker([file, "exit=9"]).run();
        outcome.exits(name.code(9)).complains(r#""old""#).never_says("no error file defined");
        let expected = serde_json::json!({
            "message": {"message": "m", "extraInfo": {"timestamp": "5"}, "more": [1], "errorCode": 9},
            "x": "é",
        });
        assert_eq!(json(&path), expected, "{outcome}");
    }
}

#[test]
fn without_a_workers_error_file_nothing_is_written() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("parent.json");
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        let outcome = launch.worker(["exit=9"]).run();
        outcome.exits(name.code(9));
        assert!(!Path::new(&path).exists(), "{outcome}");
    }
}

#[test]
fn whoever_started_us_hears_of_a_signal() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("parent.json");
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        let job = launch.worker(["alive", "forever"]).start();
        job.line("alive rank=0");
        let launcher = job.pid();
        job.signal(Signal::SIGTERM);
        job.wait().exits(name.code(143));
        let told = json(&path);
        let expected = format!("SignalException: Process {launcher} got signal: 15");
        assert_eq!(told["message"]["message"], expected.as_str(), "{told}");
        let extra = &told["message"]["extraInfo"];
        assert!(extra["py_callstack"].is_string(), "{told}");
        assert!(extra["timestamp"].as_str().is_some_and(|time| time.parse::<u64>().is_ok()), "{told}");
    }
}

#[test]
fn whoever_started_us_hears_of_our_own_failure() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let script = scratch.file("script", "#!/nonexistent/interpreter\n", 0o755);
        for what in ["/nonexistent/program", &script] {
            let path = scratch.at("parent.json");
            let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
            launch.args(["--no-python", what]).run().exits(1);
            let told = json(&path);
            let message = told["message"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("Error: ") && message.contains(what), "{told}");
        }
    }
}

#[test]
fn whoever_started_us_hears_that_the_agent_is_gone() {
    let scratch = Scratch::new();
    let path = scratch.at("parent.json");
    let launch = Launch::standalone(Name::Rankrun, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
    let job = launch.worker(["alive", "forever"]).start();
    job.line("alive rank=0");
    job.signal_to(job.only_child_of(job.pid()), Signal::SIGKILL);
    job.wait().exits(1);
    let told = json(&path);
    let message = told["message"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("agent") && message.contains("SIGKILL"), "{told}");
}

#[test]
fn an_error_file_that_cannot_be_written_is_no_failure() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("missing/parent.json");
        let launch = || Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", path.as_str());
        launch().worker(["alive"]).run().exits(0).never_says("parent.json");
        let file = r#"error-file={"message": "m"}"#;
        let outcome = launch().worker([file, "exit=9"]).run();
        outcome.exits(name.code(9));
        assert_eq!(outcome.lines_with("parent.json").len(), 1, "{outcome}");
    }
}

#[test]
fn a_worker_stuck_in_the_kernel_ends_the_job() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--max-restarts", "3"]);
        let launch = launch.env("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "1.5");
        let program = fixture("stuck").into_os_string();
        let outcome = launch.args(["--no-python".into(), program, "1".into()]).run();
        outcome.exits(1).complains("error: rank 1 failed first: stuck in the kernel for ");
        let starts = outcome.out_lines().iter().filter(|line| line.starts_with("alive rank=1")).count();
        assert_eq!(starts, 1, "it was started again\n{outcome}");
        if *name == Name::Torchrun {
            outcome
                .complains(" stuck in uninterruptible sleep (D-state) for ")
                .complains("disabling restarts.");
            let report = report(&outcome);
            let root = "  traceback : Worker stuck in uninterruptible sleep (D-state) for ";
            assert!(
                report.contains(root) && report.contains("\n  rank      : 1 (local_rank: 1)\n"),
                "{report}"
            );
        }
    }
}

#[test]
fn nobody_else_is_taken_for_stuck() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).env("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "2");
        launch.worker(["sleep-ms=3000"]).run().exits(0);
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
    hostname nobody-knows-me || exit 97
    exec "$PYTHON" -c '
import os, socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
os.set_inheritable(server.fileno(), True)
os.execvp(sys.argv[1], sys.argv[1:])
' "$@""#;

#[test]
fn a_host_name_that_nobody_answers_for_holds_up_nothing() {
    if !only_ours() || !namespaces() {
        return;
    }
    let launch = Launch::standalone(Name::Torchrun, 1).env("PYTHON", python());
    let launch = launch.args(["--event-log-handler", "console"]);
    let unshare = ["unshare", "--net", "--uts", "--mount", "--propagation", "private"];
    let launch = launch.under(unshare).under(["sh", "-c", SILENT_NAME_SERVER, "sh"]);
    let outcome = launch.worker(["exit=3"]).run();
    outcome.exits(1).complains("  host      : nobody-knows-me\n");
    assert!(outcome.took < Duration::from_secs(29), "{outcome}");
}
