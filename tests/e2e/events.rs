//! `--event-log-handler console`: torch's events, compared with those of torchrun itself.

use std::time::Duration;

use harness::{Gate, Launch, Name, Outcome, Scratch, only_ours, python};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The events of a job, in order, with the text inside each as an object. What differs from run to run is masked.
#[track_caller]
fn events(outcome: &Outcome) -> Vec<Value> {
    let lines = outcome.lines_with(r#"{"name": "torchelastic.worker.status."#);
    let events = lines.iter().map(|line| masked(serde_json::from_str(line).expect("an event is JSON")));
    events.collect()
}

fn masked(mut event: Value) -> Value {
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
fn both(run: impl Fn(Launch) -> Outcome) -> [Vec<Value>; 2] {
    [Name::Torchrun, Name::Reference].map(|name| {
        let launch = Launch::standalone(name, 2).args(["--event-log-handler", "console"]);
        // torchrun takes its time on a busy machine.
        let launch = launch.limit(Duration::from_secs(300));
        events(&run(launch))
    })
}

#[track_caller]
fn states(events: &[Value]) -> Vec<String> {
    let words = |event: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{} {}", text(&event["source"]), text(&event["metadata"]["state"]))
    };
    events.iter().map(words).collect()
}

const START: [&str; 4] = ["AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "WORKER START", "WORKER START"];

#[track_caller]
fn are(events: &[Value], end: &[&str]) {
    let expected: Vec<&str> = START.iter().chain(end).copied().collect();
    assert_eq!(states(events), expected, "{events:#?}");
}

#[test]
fn of_a_success() {
    let [ours, torchs] = both(|launch| launch.shell("true").run());
    are(&ours, &["WORKER SUCCEEDED", "WORKER SUCCEEDED", "AGENT SUCCEEDED"]);
    assert_eq!(ours, torchs);
}

#[test]
fn of_a_failure_after_a_restart() {
    let [ours, torchs] = both(|launch| {
        let gate = Gate::closed();
        let steps =
            ["rank0:catch", "rank0:alive", &format!("rank1:{}", gate.step()), "rank1:exit=3", "signal"];
        let job = launch.args(["--max-restarts", "1"]).worker(steps).start();
        for life in 0..2 {
            job.line(&format!("alive rank=0 life={life}"));
            gate.open(1);
        }
        job.wait()
    });
    let end = ["WORKER TERMINATED", "WORKER FAILED", "AGENT SUCCEEDED"];
    are(&ours, &START.iter().copied().chain(end).collect::<Vec<_>>());
    assert_eq!(ours, torchs);
}

#[test]
fn of_a_failure_with_an_error_file() {
    let report =
        r#"error-file={"message": {"message": "m", "extraInfo": {"timestamp": "5"}}, "é": [1, null]}"#;
    let [ours, torchs] = both(|launch| launch.worker([report, "rank1:exit=7"]).run());
    are(&ours, &["WORKER TERMINATED", "WORKER FAILED", "AGENT SUCCEEDED"]);
    let raw = |events: &[Value]| -> Value {
        let raw = events[5]["metadata"]["raw_error"].as_str().expect("a failed worker has an error");
        serde_json::from_str(raw).expect("the error is JSON")
    };
    assert_eq!(raw(&ours), raw(&torchs));
}

#[test]
fn of_a_signal() {
    let [ours, torchs] = both(|launch| {
        // torchrun loses a signal that comes while it writes its last event: it has a second to get over it.
        let job = launch.worker(["sleep-ms=1000", "alive", "forever"]).start();
        job.lines("torchelastic.worker.status.START", 2);
        job.lines("alive rank=", 2);
        job.signal(Signal::SIGTERM);
        job.wait()
    });
    are(&ours, &["AGENT FAILED"]);
    assert_eq!(ours, torchs);
}

#[test]
fn of_a_worker_that_cannot_be_started() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("script", "#!/nonexistent/interpreter\n", 0o755);
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--event-log-handler", "console", "--no-python"]);
        let outcome = launch.args([script.as_str()]).run();
        outcome.exits(1);
        let raw = outcome.lines_with("AGENT").pop().expect("there are events");
        assert!(raw.contains("FAILED") && raw.contains(&script), "{outcome}");
        assert_eq!(
            states(&events(&outcome)),
            ["AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "AGENT FAILED"]
        );
    }
}

/// What is asked of Python itself: our text is what its `json.dumps` makes of it.
#[test]
fn python_would_write_the_same_bytes() {
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
