//! A job whose server has as many clients as it takes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use harness::{Launch, Outcome};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Runtime;

/// Clients in all places of the server. It closes a client that has asked nothing for 5 seconds.
#[derive(Default)]
struct Clients(Vec<BufReader<UnixStream>>);

impl Clients {
    /// Keeps the places, and takes those that are free.
    fn take_all_places(&mut self, runtime: &Runtime) {
        self.0.retain_mut(has_place);
        loop {
            let mut client = BufReader::new(runtime.connect());
            if !has_place(&mut client) {
                return;
            }
            self.0.push(client);
        }
    }

    fn ask_full_job(&mut self, runtime: &Runtime, arguments: &[&str]) -> Outcome {
        self.take_all_places(runtime);
        runtime.ask(arguments)
    }
}

/// The server answers an empty line of a client that has a place, and refuses any other client.
fn has_place(client: &mut BufReader<UnixStream>) -> bool {
    let mut line = String::new();
    // A server that refuses a client closes the connection, perhaps before this line.
    let _ = client.get_mut().write_all(b"\n");
    client.read_line(&mut line).is_ok() && line.contains("a request is one line of JSON")
}

#[test]
fn commands_say_that_a_job_has_too_many_clients() {
    let Some(runtime) = Runtime::new() else { return };
    let job = runtime.job(&["--rdzv-id", "my-run"]);
    let (id, pid) = (runtime.job_id(), job.pid().to_string());
    let mut clients = Clients::default();
    let listed = clients.ask_full_job(&runtime, &["ls"]);
    listed
        .expect_exit_code(0)
        .expect_stdout(&id)
        .expect_stdout("too many clients")
        .expect_absent("no answer");
    let listed = clients.ask_full_job(&runtime, &["ls", "--json"]);
    let jobs: Value = serde_json::from_str(&listed.stdout()).expect("JSON");
    let of_job = jobs.as_array().and_then(|jobs| jobs.iter().find(|job| job["job"] == id.as_str()));
    assert_eq!(of_job.expect("the job is listed")["error"], "the job has too many clients");
    for name in [&id[..], &id[..8], &pid] {
        for verb in
            [&["status", name][..], &["status", name, "--check"], &["stop", name], &["stop", name, "--wait"]]
        {
            let refused = clients.ask_full_job(&runtime, verb);
            refused.expect_exit_code(3).expect_stderr(&format!("the request to job {id} failed"));
            refused.expect_stderr("the job has too many clients").expect_stderr("hint: try again");
        }
    }
    // The run id is known to the job alone.
    let unknown = clients.ask_full_job(&runtime, &["stop", "my-run"]);
    unknown.expect_exit_code(3).expect_stderr("`my-run` names no job that answers");
    unknown.expect_stderr(&format!("{id} (the job has too many clients)"));
    drop(clients);
    job.wait_until("the places are free", || runtime.ask(&["status", &id, "--check"]).status.success());
    runtime.stop(job, &id);
}

/// A job whose launcher may open so many files.
fn limited(runtime: &Runtime, files: usize) -> Launch {
    runtime.launch(2).under(["sh", "-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"])
}

/// The first client comes when no descriptor is left, or only those that the job keeps. With the fewest descriptors the
/// job has no socket.
#[test]
fn job_without_free_descriptors_says_that_it_has_too_many_clients() {
    let Some(runtime) = Runtime::new() else { return };
    let starts = |files: &usize| limited(&runtime, *files).shell("true").run().status.success();
    let lowest = (20..64).find(starts).expect("a job starts");
    let (mut refusals, mut jobs_without_socket) = (0, 0);
    for files in lowest + 1..=lowest + 10 {
        let launch = limited(&runtime, files).args(["-v"]).shell("echo ready; exec sleep 1000");
        let job = launch.start();
        job.wait_for_lines("ready", 2);
        let is_refused = || job.to_string().contains("no control socket");
        job.wait_until("the socket is open or refused", || runtime.socket().is_some() || is_refused());
        if is_refused() {
            jobs_without_socket += 1;
            runtime.expect_empty();
        } else {
            let id = runtime.job_id();
            for words in [&["status", &id][..], &["status", &id, "--check"], &["ls"]] {
                let outcome = runtime.ask(words);
                if !outcome.status.success() {
                    outcome.expect_exit_code(3).expect_stderr("the job has too many clients");
                    refusals += 1;
                }
                outcome.expect_absent("no answer");
            }
        }
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(143);
    }
    assert!(refusals > 0 && jobs_without_socket > 0, "{refusals} {jobs_without_socket}");
}
