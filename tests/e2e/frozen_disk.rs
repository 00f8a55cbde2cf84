//! A file system whose calls end by no signal: a disk that is frozen for a snapshot, or a file server whose client waits
//! in the kernel. Each such call holds a thread of the agent, which stays in state `D` when the agent ends.
#![expect(clippy::disallowed_methods, reason = "a wait for a process has a limit")]

use std::time::{Duration, Instant};

use harness::{Job, Launch, Name, Process, Scratch, fixture, has_thread_in_dstate};
use nix::sys::signal::Signal;

use crate::hanging_calls::{AT_ONCE, lacks_fuse};

/// A launch in a mount namespace where `folder` is on a frozen disk, until its standard input is closed.
#[track_caller]
pub(crate) fn with_frozen_folder(launch: Launch, folder: &str) -> Launch {
    let launch = launch.stdin_open().under(["unshare", "--mount", "--propagation", "private"]);
    launch.under([fixture("hanging_server").into_os_string(), "disk".into(), folder.into()])
}

/// A launcher that waits for its frozen log folder, and its agent.
fn start_with_frozen_log_folder(name: Name, folder: &str) -> (Job, Process) {
    let launch = Launch::standalone(name, 2).args(["--log-dir", folder, "--redirects", "3"]);
    let job = with_frozen_folder(launch.worker(["exit=0"]), folder).start();
    job.wait_for_line(&format!("waiting for the file system of the log folder `{folder}`"));
    let agent = Process::open(job.only_child_of(job.pid())).expect("the agent waits for the disk");
    (job, agent)
}

#[test]
fn frozen_log_folder_does_not_hold_up_the_launcher() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("logs", 0o700);
    for name in Name::both() {
        let (job, agent) = start_with_frozen_log_folder(*name, &folder);
        job.signal(Signal::SIGTERM);
        let _ = job.ends_within(AT_ONCE);
        assert!(has_thread_in_dstate(agent.pid), "the disk is frozen yet\n{job}");
        let outcome = job.wait();
        match name {
            Name::Rankrun => outcome.expect_exit_code(143),
            Name::Torchrun | Name::Reference => outcome.expect_signal(Signal::SIGTERM),
        };
        outcome.expect_stderr("gave up waiting for the file system of the log folder");
        outcome.expect_closed_output();
        // The job's standard input is closed by now, which thaws the disk.
        assert!(agent.ended_by(Instant::now() + Duration::from_secs(10)), "{outcome}");
    }
}
