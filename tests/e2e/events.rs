//! `--event-log-handler console`: torch's events, compared with those of torchrun itself.

use std::time::Duration;

use harness::{Gate, Launch, Name, Outcome, Scratch, is_rankrun, python};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The events of a job, in order, with the text inside each as an object. What differs from run to run is masked.
#[track_caller]
fn events(outcome: &Outcome) -> Vec<Value> {
    let lines = outcome.lines_with(r#"{"name": "torchelastic.worker.status."#);
    let events =
        lines.iter().map(|line| mask_variable_fields(serde_json::from_str(line).expect("an event is JSON")));
    events.collect()
}

fn mask_variable_fields(mut event: Value) -> Value {
    let is_failure_of_agent = event["source"] == "AGENT" && event["metadata"]["state"] == "FAILED";
    let metadata = event["metadata"].as_object_mut().expect("the metadata are an object");
    let inner = metadata["metadata"].as_str().expect("the inner metadata are a text");
    let mut inner: Value = serde_json::from_str(inner).expect("the text is JSON");
    if let Some(pid) = inner.get_mut("worker_pid").filter(|pid| pid[0].is_number()) {
        assert_eq!(pid[0].to_string(), metadata["worker_id"].as_str().unwrap_or_default());
        *pid = json!(["a pid"]);
    }
    metadata["metadata"] = inner;
    let mut mask = |key: &str, is_there: fn(&Value) -> bool| {
        let value = metadata.get_mut(key).unwrap_or_else(|| panic!("no `{key}`"));
        if is_there(value) {
            *value = json!("something");
        }
    };
    mask("run_id", Value::is_string);
    mask("worker_id", Value::is_string);
    mask("total_run_time", Value::is_u64);
    mask("duration_ms", Value::is_f64);
    if is_failure_of_agent {
        mask("raw_error", Value::is_string);
    }
    event
}

/// The same job by ours and by torchrun.
#[track_caller]
fn run_rankrun_and_torchrun(run: impl Fn(Launch) -> Outcome) -> [Vec<Value>; 2] {
    [Name::Torchrun, Name::Reference].map(|name| {
        let launch = Launch::standalone(name, 2).args(["--event-log-handler", "console"]);
        // torchrun takes its time on a busy machine.
        let launch = launch.limit(Duration::from_secs(300));
        events(&run(launch))
    })
}

#[track_caller]
fn event_states(events: &[Value]) -> Vec<String> {
    let state = |event: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{} {}", text(&event["source"]), text(&event["metadata"]["state"]))
    };
    events.iter().map(state).collect()
}

const START_STATES: [&str; 4] =
    ["AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "WORKER START", "WORKER START"];

#[track_caller]
fn assert_states(events: &[Value], end: &[&str]) {
    let expected: Vec<&str> = START_STATES.iter().chain(end).copied().collect();
    assert_eq!(event_states(events), expected, "{events:#?}");
}

#[test]
fn success_events_match_torchrun() {
    let [ours, torchs] = run_rankrun_and_torchrun(|launch| launch.shell("true").run());
    assert_states(&ours, &["WORKER SUCCEEDED", "WORKER SUCCEEDED", "AGENT SUCCEEDED"]);
    assert_eq!(ours, torchs);
}

#[test]
fn failure_after_restart_events_match_torchrun() {
    let [ours, torchs] = run_rankrun_and_torchrun(|launch| {
        let gate = Gate::closed();
        let steps =
            ["rank0:catch", "rank0:alive", &format!("rank1:{}", gate.step()), "rank1:exit=3", "signal"];
        let job = launch.args(["--max-restarts", "1"]).worker(steps).start();
        for attempt in 0..2 {
            job.wait_for_line(&format!("alive rank=0 attempt={attempt}"));
            gate.open(1);
        }
        job.wait()
    });
    let end = ["WORKER TERMINATED", "WORKER FAILED", "AGENT SUCCEEDED"];
    assert_states(&ours, &START_STATES.iter().copied().chain(end).collect::<Vec<_>>());
    assert_eq!(ours, torchs);
}

#[test]
fn failure_with_error_file_events_match_torchrun() {
    let report =
        r#"error-file={"message": {"message": "m", "extraInfo": {"timestamp": "5"}}, "é": [1, null]}"#;
    let [ours, torchs] = run_rankrun_and_torchrun(|launch| launch.worker([report, "rank1:exit=7"]).run());
    assert_states(&ours, &["WORKER TERMINATED", "WORKER FAILED", "AGENT SUCCEEDED"]);
    let raw = |events: &[Value]| -> Value {
        let raw = events[5]["metadata"]["raw_error"].as_str().expect("a failed worker has an error");
        serde_json::from_str(raw).expect("the error is JSON")
    };
    assert_eq!(raw(&ours), raw(&torchs));
}

#[test]
fn signal_events_match_torchrun() {
    let [ours, torchs] = run_rankrun_and_torchrun(|launch| {
        // torchrun loses a signal that comes while it writes its last event: it has a second to get over it.
        let job = launch.worker(["sleep-ms=1000", "alive", "forever"]).start();
        job.wait_for_lines("torchelastic.worker.status.START", 2);
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGTERM);
        job.wait()
    });
    assert_states(&ours, &["AGENT FAILED"]);
    assert_eq!(ours, torchs);
}

#[test]
fn worker_spawn_failure_events_end_with_agent_failed() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("script", "#!/nonexistent/interpreter\n", 0o755);
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--event-log-handler", "console", "--no-python"]);
        let outcome = launch.args([script.as_str()]).run();
        outcome.expect_exit_code(1);
        let raw = outcome.lines_with("AGENT").pop().expect("there are events");
        assert!(raw.contains("FAILED") && raw.contains(&script), "{outcome}");
        assert_eq!(
            event_states(&events(&outcome)),
            ["AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "AGENT FAILED"]
        );
    }
}

/// What is asked of Python itself: our text is what its `json.dumps` makes of it.
#[test]
fn event_json_is_byte_identical_to_python() {
    let launch =
        Launch::standalone(Name::Torchrun, 1).args(["--event-log-handler", "console", "--role", "é"]);
    let outcome = launch.worker(["exit=3"]).run();
    let lines = outcome.lines_with("torchelastic.worker.status.").join("\n");
    let program = "import json, sys\nfor line in sys.stdin: print(json.dumps(json.loads(line)))";
    #[expect(clippy::disallowed_methods, reason = "Python is asked")]
    let mut python = std::process::Command::new(python());
    let scratch = Scratch::new();
    let input = scratch.file("lines", &format!("{lines}\n"), 0o644);
    let input = std::fs::File::open(input).expect("it was just written");
    let output = python.args(["-c", program]).stdin(input).output().expect("Python runs");
    let written = String::from_utf8(output.stdout).expect("JSON is ASCII");
    assert_eq!(lines.lines().collect::<Vec<_>>(), written.lines().collect::<Vec<_>>());
}
