//! A runtime folder on a file system that does not answer.

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
    let cover = format!("'{}' cover '{hang}' '{folder}' || exit 9", fixture("silent").display());
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
