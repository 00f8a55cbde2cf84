//! A job whose server has as many clients as it takes.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use harness::Outcome;
use serde_json::Value;

use super::Runtime;

/// More than the server takes.
const CLIENTS: usize = 64;

/// Clients in all places of the server. It closes them when they have asked nothing for 5 seconds.
fn take_all_places(runtime: &Runtime) -> Vec<UnixStream> {
    let mut clients = Vec::new();
    loop {
        clients.extend((0..CLIENTS).map(|_| runtime.connect()));
        let (last, mut line) = (clients.last().expect("clients"), String::new());
        last.set_read_timeout(Some(Duration::from_millis(500))).expect("a time is a time");
        // The last one may have got the place of a client of an earlier question.
        if BufReader::new(last).read_line(&mut line).is_ok() && line.contains("too many clients") {
            return clients;
        }
    }
}

fn ask_full_job(runtime: &Runtime, arguments: &[&str]) -> Outcome {
    let clients = take_all_places(runtime);
    let outcome = runtime.ask(arguments);
    drop(clients);
    outcome
}

#[test]
fn commands_say_that_a_job_has_too_many_clients() {
    let Some(runtime) = Runtime::new() else { return };
    let job = runtime.job(&["--rdzv-id", "my-run"]);
    let (id, pid) = (runtime.job_id(), job.pid().to_string());
    let listed = ask_full_job(&runtime, &["ls"]);
    listed
        .expect_exit_code(0)
        .expect_stdout(&id)
        .expect_stdout("too many clients")
        .expect_absent("no answer");
    let listed = ask_full_job(&runtime, &["ls", "--json"]);
    let jobs: Value = serde_json::from_str(&listed.stdout()).expect("JSON");
    let of_job = jobs.as_array().and_then(|jobs| jobs.iter().find(|job| job["job"] == id.as_str()));
    assert_eq!(of_job.expect("the job is listed")["error"], "the job has too many clients");
    for name in [&id[..], &id[..8], &pid] {
        for verb in
            [&["status", name][..], &["status", name, "--check"], &["stop", name], &["stop", name, "--wait"]]
        {
            let refused = ask_full_job(&runtime, verb);
            refused.expect_exit_code(3).expect_stderr(&format!("the request to job {id} failed"));
            refused.expect_stderr("the job has too many clients").expect_stderr("hint: try again");
        }
    }
    // The run id is known to the job alone.
    let unknown = ask_full_job(&runtime, &["stop", "my-run"]);
    unknown.expect_exit_code(3).expect_stderr("`my-run` names no job that answers");
    unknown.expect_stderr(&format!("{id} (the job has too many clients)"));
    job.wait_until("the places are free", || runtime.ask(&["status", &id, "--check"]).status.success());
    runtime.stop(job, &id);
}
