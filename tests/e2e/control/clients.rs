//! Clients of the socket that no command of ours is.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Runtime, request};

/// The name and the generation of each event.
fn lines(text: &str) -> impl Iterator<Item = (String, u64)> {
    text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        let (name, generation) = (&line["event"]["name"], &line["event"]["generation"]);
        (name.as_str().expect("a name").to_owned(), generation.as_u64().expect("a number"))
    })
}

#[test]
fn events_are_streamed_until_job_ends() {
    let Some(runtime) = Runtime::new() else { return };
    let job = runtime.job(&["--max-restarts", "1"]);
    let mut client = runtime.connect();
    client.write_all(request("events").as_bytes()).unwrap();
    let id = runtime.job_id();
    runtime.ask(&["status", &id]).expect_exit_code(0);
    let pid = runtime.status(&["status", &id, "--json"])["ranks"][0]["pid"].as_i64().unwrap();
    job.signal_to(i32::try_from(pid).unwrap(), Signal::SIGKILL);
    job.wait_for_lines("ready", 4);
    runtime.ask(&["stop", &id]).expect_exit_code(0);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    job.wait().expect_exit_code(143);
    let expected =
        ["worker_failed", "group_failed", "restarting", "workers_started", "stopping", "job_finished"];
    let names: Vec<String> = lines(&text).map(|(name, _)| name).collect();
    let actual: Vec<&str> = names.iter().map(String::as_str).filter(|name| expected.contains(name)).collect();
    assert_eq!(actual, expected, "{text}");
    assert!(text.contains("ends with exit status 143"), "{text}");
    let generations: Vec<_> =
        lines(&text).filter(|(name, _)| expected.contains(&&**name)).map(|(_, at)| at).collect();
    assert_eq!(generations, [0, 0, 1, 1, 1, 1], "{text}");
}

#[test]
fn event_of_rank_table_has_the_text_of_the_console() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(2).worker(["alive", "rank0:join", "forever"]);
    let job = launch.start();
    job.wait_for_line("joined rank=0");
    job.wait_until("the job has a socket", || runtime.socket().is_some());
    let mut client = runtime.connect();
    client.write_all(request("events").as_bytes()).unwrap();
    runtime.ask(&["status", &runtime.job_id()]).expect_exit_code(0);
    job.signal(Signal::SIGTERM);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    let outcome = job.wait();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    let table = lines.map(|line| line["event"].clone()).find(|event| event["name"] == "rank_table");
    let table = table.unwrap_or_else(|| panic!("{text}"));
    let table = table["text"].as_str().expect("a text");
    assert!(table.starts_with("rank 1 has not joined the store; the ranks when SIGTERM came:\n"), "{table}");
    outcome.expect_stderr(&format!("rankrun: {table}\n"));
}

/// The workers of the second generation cannot be started.
#[test]
fn failed_start_is_not_an_event_of_workers_started() {
    let Some(runtime) = Runtime::new() else { return };
    let script = runtime.0.file("program", "#!/bin/sh\necho ready; read line < \"$0.fifo\"; exit 3\n", 0o700);
    let fifo = format!("{script}.fifo");
    nix::unistd::mkfifo(&*fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let launch = runtime.launch(1).args(["--max-restarts", "1", "--no-python", &script]);
    let job = runtime.start_until_ready(launch, 1);
    let mut client = runtime.connect();
    client.write_all(request("events").as_bytes()).unwrap();
    runtime.ask(&["status", &runtime.job_id()]).expect_exit_code(0);
    std::fs::remove_file(&script).unwrap();
    std::fs::write(&fifo, "\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    job.wait().expect_exit_code(1);
    let names: Vec<String> = lines(&text).map(|(name, _)| name).collect();
    assert!(names.contains(&"restarting".to_owned()) && names.contains(&"job_finished".to_owned()), "{text}");
    assert!(!names.contains(&"workers_started".to_owned()), "{text}");
}

/// The clients may take all descriptors that are left, but for those of a restart.
#[test]
fn restart_has_descriptors_beside_many_clients() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(2).args(["--max-restarts", "1"]);
    let launch = launch.under(["sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"]);
    let job = runtime.start_until_ready(launch.shell("echo ready; exec sleep 1000"), 2);
    let mut clients: Vec<UnixStream> = (0..60).map(|_| runtime.connect()).collect();
    clients[0].write_all(request("status").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(&clients[0]).read_line(&mut line).unwrap();
    let status: Value = serde_json::from_str(&line).unwrap();
    let worker = status["status"]["ranks"][0]["pid"].as_i64().expect("the first client is answered");
    job.signal_to(i32::try_from(worker).unwrap(), Signal::SIGKILL);
    job.wait_for_lines("ready", 4);
    drop(clients);
    runtime.stop(job, &runtime.job_id());
}

/// A program that reads events learns what a person reads on the console.
#[test]
fn events_have_each_line_that_the_console_has() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(1).env("RANKRUN_LEFTOVER_GRACE", "600");
    let script =
        "setsid sh -c \"trap '' TERM; sleep 1000; :\" secret > /dev/null 2>&1 & echo ready; read line";
    let mut job = runtime.start_until_ready(launch.stdin_open().shell(script), 1);
    let mut client = runtime.connect();
    client.write_all(request("events").as_bytes()).unwrap();
    let id = runtime.job_id();
    runtime.ask(&["status", &id]).expect_exit_code(0);
    job.type_text("\n");
    job.wait_for_line("waiting up to 600 s");
    runtime.ask(&["stop", &id]).expect_exit_code(0);
    job.wait_for_line("SIGTERM: ending pid");
    runtime.ask(&["stop", &id]).expect_exit_code(0);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    let outcome = job.wait();
    outcome.expect_exit_code(143).expect_stderr("secret");
    let names: Vec<String> = lines(&text).map(|(name, _)| name).collect();
    let expected = [
        "waiting_for_leftovers",
        "client_asks_for_stop",
        "ending_leftovers",
        "client_asks_for_stop",
        "killing_leftovers",
        "job_finished",
    ];
    let actual: Vec<&str> = names.iter().map(String::as_str).filter(|name| expected.contains(name)).collect();
    assert_eq!(actual, expected, "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains("all workers have succeeded; waiting up to 600 s"), "{text}");
    assert!(text.contains("ends with exit status 143"), "{text}");
}
