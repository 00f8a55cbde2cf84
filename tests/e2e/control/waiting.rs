//! Jobs that wait before their first workers: for other nodes, or for a file system.

use std::io::{Read, Write};

use harness::{Job, Launch, Name, Scratch, free_port};

use super::{Runtime, request};
use crate::hanging_calls::{lacks_fuse, with_silent_folder};

/// The agent of node 0, which waits for node 1.
fn start_node_without_others(runtime: &Runtime, is_static: bool) -> Job {
    let port = free_port().to_string();
    let launch = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", runtime.path());
    let launch = launch.args(["--nproc-per-node", "3", "--nnodes", "2", "--max-restarts", "2"]);
    let launch = if is_static {
        launch.args(["--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", &port])
    } else {
        let endpoint = format!("127.0.0.1:{port}");
        launch.args(["--rdzv-backend", "c10d", "--rdzv-id", "waits", "--rdzv-endpoint", &endpoint])
    };
    let job = launch.shell("echo ready; exec sleep 1000").start();
    job.wait_until("the job has a socket", || runtime.socket().is_some());
    job
}

#[test]
fn job_that_waits_for_nodes_is_listed_and_stopped() {
    let Some(runtime) = Runtime::new() else { return };
    for is_static in [false, true] {
        let job = start_node_without_others(&runtime, is_static);
        let (id, pid) = (runtime.job_id(), job.pid().to_string());
        let status = runtime.status(&["status", &pid, "--json"]);
        assert_eq!((&status["job"], &status["state"]), (&id.as_str().into(), &"joining".into()));
        let facts = ["nodes", "world_size", "restarts", "max_restarts"].map(|name| status[name].as_u64());
        assert_eq!(facts, [Some(0), Some(0), Some(0), Some(2)], "no round is complete: {status}");
        assert_eq!(status["ranks"].as_array().map(Vec::len), Some(0), "{status}");
        runtime.ask(&["ls"]).expect_exit_code(0).expect_stdout(&id).expect_stdout("joining");
        let shown = runtime.ask(&["status", &id]);
        shown.expect_exit_code(0).expect_stdout("no worker was started so far").expect_absent("RANK");
        runtime.ask(&["status", &id, "--check"]).expect_exit_code(1);
        runtime.ask(&["stop", &id, "--wait"]).expect_exit_code(0).expect_stdout("has ended");
        job.wait().expect_exit_code(143).expect_stderr("asks for a stop").expect_absent("ready");
        runtime.expect_empty();
    }
}

#[test]
fn job_that_waits_for_nodes_keeps_its_socket_when_they_come() {
    let Some(runtime) = Runtime::new() else { return };
    let endpoint = format!("127.0.0.1:{}", free_port());
    let node = |launch: Launch| {
        let launch = launch.args(["--nproc-per-node", "2", "--nnodes", "2", "--rdzv-backend", "c10d"]);
        launch.args(["--rdzv-endpoint", &endpoint]).shell("echo ready; exec sleep 1000").start()
    };
    let first = node(Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", runtime.path()));
    first.wait_until("the job has a socket", || runtime.socket().is_some());
    let id = runtime.job_id();
    let elsewhere = Scratch::new();
    let folder = elsewhere.folder("runtime", 0o700);
    let second = node(Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", folder));
    first.wait_for_lines("ready", 2);
    first.wait_until("the status has the round", || {
        let status = runtime.status(&["status", &id, "--json"]);
        (&status["state"], &status["nodes"], &status["world_size"])
            == (&"running".into(), &2.into(), &4.into())
    });
    runtime.ask(&["stop", &id]).expect_exit_code(0);
    first.wait().expect_exit_code(143);
    second.signal(nix::sys::signal::Signal::SIGTERM);
    drop(second.wait());
    runtime.expect_empty();
}

/// Nothing listens at the endpoint, which is on another node.
#[test]
fn job_that_waits_for_its_store_is_listed_and_stopped() {
    let Some(runtime) = Runtime::new() else { return };
    let endpoint = format!("127.0.0.1:{}", free_port());
    let launch = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", runtime.path());
    let launch = launch.args(["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
    let job = launch.args(["--rdzv-conf", "is_host=0"]).shell("echo ready").start();
    job.wait_until("the job has a socket", || runtime.socket().is_some());
    let id = runtime.job_id();
    assert_eq!(runtime.status(&["status", &id, "--json"])["state"], "joining");
    runtime.ask(&["stop", &id, "--wait"]).expect_exit_code(0);
    job.wait().expect_exit_code(143).expect_absent("ready");
    runtime.expect_empty();
}

#[test]
fn job_that_waits_for_its_log_folder_is_listed_and_stopped() {
    let Some(runtime) = Runtime::new().filter(|_| !lacks_fuse()) else { return };
    let scratch = Scratch::new();
    let folder = scratch.folder("logs", 0o700);
    let launch = runtime.launch(1).args(["--log-dir", &folder]).shell("echo ready");
    let job = with_silent_folder(launch, &folder).start();
    job.wait_until("the job has a socket", || runtime.socket().is_some());
    let id = runtime.job_id();
    assert_eq!(runtime.status(&["status", &id, "--json"])["state"], "starting");
    runtime.ask(&["stop", &id, "--wait"]).expect_exit_code(0);
    job.wait().expect_exit_code(143).expect_absent("ready");
    runtime.expect_empty();
}

#[test]
fn commands_without_a_job_name_the_places_that_were_searched() {
    let Some(runtime) = Runtime::new() else { return };
    let place = format!("`{}/rankrun`", runtime.path().display());
    for command in [&["stop", "no-such-job"][..], &["status", "no-such-job"]] {
        runtime.ask(command).expect_exit_code(3).expect_stderr("searched").expect_stderr(&place);
    }
}

/// What the console says of other nodes, from the first reader on.
#[test]
fn events_say_that_the_job_waits_for_nodes() {
    let Some(runtime) = Runtime::new() else { return };
    let endpoint = format!("127.0.0.1:{}", free_port());
    let node = |launch: Launch| {
        let launch = launch.args(["--nnodes", "2", "--rdzv-backend", "c10d", "--max-restarts", "1"]);
        launch.args(["--rdzv-endpoint", &endpoint]).shell("echo ready; exec sleep 1000").start()
    };
    let first = node(Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", runtime.path()));
    first.wait_until("the job has a socket", || runtime.socket().is_some());
    let elsewhere = Scratch::new();
    let folder = elsewhere.folder("runtime", 0o700);
    let second = node(Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", folder));
    first.wait_for_line("ready");
    let mut client = runtime.connect();
    client.write_all(request("events").as_bytes()).unwrap();
    runtime.ask(&["status", &runtime.job_id()]).expect_exit_code(0);
    second.signal(nix::sys::signal::Signal::SIGTERM);
    drop(second.wait());
    // The job now has one node, and waits for a second one.
    first.wait_for_lines("waiting for", 2);
    runtime.ask(&["stop", &runtime.job_id()]).expect_exit_code(0);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    first.wait().expect_exit_code(143);
    assert!(text.contains("\"waiting_for_nodes\""), "{text}");
}
