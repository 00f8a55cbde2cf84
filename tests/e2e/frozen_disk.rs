//! A file system whose calls end by no signal: a disk that is frozen for a snapshot, or a file server whose client waits
//! in the kernel. Each such call holds a thread of the agent, which stays in state `D` when the agent ends.
#![expect(clippy::disallowed_methods, reason = "a wait for a process has a limit")]

use std::path::Path;
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

/// A launch whose standard error is a file on a disk that freezes at the first write.
fn with_frozen_stderr(launch: Launch, file: &str) -> Launch {
    let launch = launch.stdin_open().under(["unshare", "--mount", "--propagation", "private"]);
    let launch = launch.under([fixture("hanging_server").into_os_string(), "file".into(), file.into()]);
    launch.under(["sh", "-c", "file=$1; shift; exec \"$@\" 2>>\"$file\"", "sh", file])
}

#[test]
fn frozen_file_as_standard_error_does_not_hold_up_the_launcher() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (logs, file) = (scratch.folder("logs", 0o700), scratch.file("stderr", "", 0o600));
    // Without captured output the launcher's messages are the only writes. Else the log thread hangs as well, and the
    // rest of the output is awaited for the grace.
    let no_log_thread = ["--log-dir", &logs, "--redirects", "3"];
    let with_log_threads = ["--grace", "2s"];
    for (name, options) in
        [(Name::Rankrun, &no_log_thread[..]), (Name::Rankrun, &with_log_threads), (Name::Torchrun, &[])]
    {
        let launch = Launch::standalone(name, 2).args(options);
        let alive = format!("{}/alive-{name:?}-{}", scratch.path().display(), options.len());
        // Under the name torchrun a worker has the frozen file, too.
        let line = if name == Name::Rankrun { "echo line >&2; " } else { "" };
        let launch = launch.shell(&format!("{line}: >'{alive}'; exec sleep infinity"));
        let job = with_frozen_stderr(launch, &file).start();
        job.wait_until("a worker runs", || Path::new(&alive).exists());
        job.signal(Signal::SIGTERM);
        let _ = job.ends_within(AT_ONCE);
        job.wait().expect_exit_code(if name == Name::Rankrun { 143 } else { 1 });
    }
}
