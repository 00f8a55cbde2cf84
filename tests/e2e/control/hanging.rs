//! A runtime folder on a file system that does not answer.

use std::fs;
use std::path::Path;
use std::time::Duration;

use harness::{Job, Launch, Name, Scratch, fixture};
use nix::sys::signal::Signal;

use crate::hanging_calls::{AT_ONCE, lacks_fuse, with_network_folder, with_silent_folder};

const SILENT: &str = "no control socket, so `rankrun status` does not see this job: the file system of its folder does \
                      not answer";

#[test]
fn silent_runtime_folder_leaves_signals_answered() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("runtime", 0o700);
    let launch = || Launch::standalone(Name::Rankrun, 1).args(["-v"]).env("XDG_RUNTIME_DIR", &*folder);
    let job = with_silent_folder(launch().shell("echo ready; exec sleep 1000"), &folder).start();
    job.wait_for_line("ready");
    job.signal(Signal::SIGTERM);
    let _ = job.ends_within(AT_ONCE);
    job.wait().expect_exit_code(143).expect_stderr(SILENT);
    // A job that ends by itself waits no longer.
    let outcome = with_silent_folder(launch().shell("exit 3"), &folder).run();
    outcome.expect_exit_code(3).expect_stderr(SILENT);
}

/// A job whose runtime folder stops to answer once the socket is in it.
fn start_and_cover_folder(scratch: &Scratch) -> Job {
    let (hang, folder) = (scratch.folder("hang", 0o700), scratch.folder("runtime", 0o700));
    let cover = format!("'{}' cover '{hang}' '{folder}' || exit 9", fixture("hanging_server").display());
    let wait = format!("until [ -S '{folder}'/rankrun/[0-9a-f]*/control.sock ]; do sleep 0.05; done");
    let launch = Launch::standalone(Name::Rankrun, 1).env("XDG_RUNTIME_DIR", &folder);
    let launch = launch.shell(&format!("{wait}; {cover}; echo ready; exec sleep 1000"));
    let job = with_network_folder(launch, &hang, &folder).start();
    job.wait_for_line("ready");
    job
}

#[test]
fn runtime_folder_that_falls_silent_does_not_hold_up_the_end() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let job = start_and_cover_folder(&scratch);
    job.signal(Signal::SIGTERM);
    let _ = job.ends_within(AT_ONCE);
    job.wait().expect_exit_code(143);
    // The guard would remove the folder of a killed agent.
    let scratch = Scratch::new();
    let job = start_and_cover_folder(&scratch);
    job.signal_to(job.only_child_of(job.pid()), Signal::SIGKILL);
    let _ = job.ends_within(AT_ONCE);
    job.wait().expect_exit_code(1);
}

#[test]
fn commands_name_the_runtime_folder_that_does_not_answer() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("runtime", 0o700);
    let launch = Launch::new(Name::Rankrun).args(["status", "--check"]).env("XDG_RUNTIME_DIR", &*folder);
    let outcome = with_silent_folder(launch, &folder).run();
    outcome.expect_exit_code(3);
    outcome
        .expect_stderr(&format!("the file system of the runtime folder `{folder}/rankrun` does not answer"));
}

#[test]
fn gc_and_completion_go_on_without_silent_runtime_folder() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("runtime", 0o700);
    let launch = || {
        let launch = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", &*folder);
        with_silent_folder(launch.limit(Duration::from_secs(30)), &folder)
    };
    let outcome = launch().args(["gc", "--dry-run"]).run();
    let silent =
        format!("the file system of the runtime folder `{folder}/rankrun` does not answer within 3 s");
    outcome.expect_exit_code(1).expect_stderr(&silent);
    let complete = |words: &[&str]| {
        let index = words.len().to_string();
        let launch = launch().env("RANKRUN_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index);
        let outcome = launch.args(["--", "rankrun"]).args(words.iter().copied()).run();
        outcome.expect_exit_code(0);
        outcome.stdout()
    };
    assert_eq!(complete(&["--no-pyt"]), "--no-python");
    assert_eq!(complete(&["status", ""]), "");
}

/// The numbers of threads and of open files of a process.
fn count_threads_and_files(pid: i32) -> (usize, usize) {
    let count = |name| fs::read_dir(format!("/proc/{pid}/{name}")).expect("the process lives").count();
    (count("task"), count("fd"))
}

#[test]
fn status_beside_silent_log_folder_takes_one_thread() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let [hang, logs, runtime] = ["hang", "logs", "runtime"].map(|name| scratch.folder(name, 0o700));
    let launch = Launch::standalone(Name::Rankrun, 1).env("XDG_RUNTIME_DIR", &*runtime);
    let launch = launch.args(["--log-dir", &logs, "--redirects", "3"]);
    let (socket, covered) = (format!("'{runtime}'/rankrun/[0-9a-f]*/control.sock"), scratch.at("covered"));
    let cover = format!(
        "'{}' cover '{hang}' '{logs}' || exit 9; : >'{covered}'",
        fixture("hanging_server").display()
    );
    let wait = format!("until [ -S {socket} ]; do sleep 0.05; done");
    let job = with_network_folder(launch.shell(&format!("{wait}; {cover}; exec sleep 1000")), &hang, &logs);
    let job = job.start();
    job.wait_until("the log folder hangs", || Path::new(&covered).exists());
    let agent = job.only_child_of(job.pid());
    let ask = || {
        let launch = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", &*runtime);
        launch.args(["status", &job.pid().to_string(), "--check"]).run().expect_exit_code(0);
    };
    let (threads, _) = count_threads_and_files(agent);
    ask();
    let (_, files) = count_threads_and_files(agent);
    (0..50).for_each(|_| ask());
    let (threads_after, files_after) = count_threads_and_files(agent);
    // The server, its helper thread, and the read that hangs.
    assert!(threads_after <= threads + 3, "{threads} threads became {threads_after}");
    assert!(files_after <= files + 3, "{files} open files became {files_after}");
    job.signal(Signal::SIGTERM);
    let _ = job.ends_within(AT_ONCE);
    let outcome = job.wait();
    outcome.expect_exit_code(143);
    assert_eq!(outcome.lines_with("last lines").len(), 1, "{outcome}");
}
