//! Tools that fail in every way, in the place of `eu-stack` and of the reader of Python stacks.
#![expect(clippy::disallowed_methods, reason = "the tests start processes and read the clock")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rankrun_core::posix::Pid;
use rankrun_core::stacks::{StackSource, WorkerStacks};
use rankrun_core::worker_command::WorkerCommand;

use super::collect::{StackTarget, collect_stacks};
use super::tools::{StackTools, program_process};

/// For tools that end by themselves.
const ENOUGH: Duration = Duration::from_secs(60);
/// For tools that never end.
const SHORT: Duration = Duration::from_millis(300);
/// The most that the end of the tools may take behind the limit.
const MARGIN: Duration = Duration::from_secs(2);

/// A process that waits for its input, under the name of an interpreter or not; ends with this.
struct Worker {
    folder: PathBuf,
    child: Child,
}

impl Worker {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rankrun-tools-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&folder).unwrap();
        symlink("/bin/cat", folder.join(name)).unwrap();
        let mut command = Command::new(folder.join(name));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Self { folder, child }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// A script in the place of `eu-stack`; its `$6` is the process id of the worker.
    fn eu_stack(&self, script: &str) -> StackTools {
        let path = self.folder.join("eu-stack");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        StackTools::with(Some(path), |_, envp| reader("exit 3", envp))
    }

    fn stacks(&self, tools: &StackTools, limit: Duration) -> WorkerStacks {
        let target = StackTarget {
            rank: 0,
            local_rank: 0,
            pid: Some(self.pid()),
            is_live: true,
            dump: None,
            names_tracer: false,
            device_uuid: None,
        };
        let until = Instant::now() + limit;
        let stacks = collect_stacks(vec![target], Some(tools), until).remove(0);
        assert!(Instant::now() < until + MARGIN, "the tools delay the answer");
        stacks
    }

    fn state(&self) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1[..1].to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn reader(script: &str, envp: Vec<CString>) -> io::Result<WorkerCommand> {
    let argv = ["sh", "-c", script].map(|word| CString::new(word).unwrap()).to_vec();
    Ok(WorkerCommand { path: c"/bin/sh".to_owned(), argv, envp, cpus: None, names_tracer: false })
}

#[track_caller]
fn native_absence(script: &str, limit: Duration) -> String {
    let worker = Worker::start("cat");
    let stacks = worker.stacks(&worker.eu_stack(script), limit);
    assert_eq!(stacks.python_absence.as_deref(), Some("its program has no hook"), "no reader of Python");
    assert!(!stacks.threads.is_empty(), "the kernel's view stays");
    stacks.native_absence.unwrap()
}

/// Without nextest another test of this process may reap the tool, and its end is lost.
#[track_caller]
fn assert_crash(absence: &str) {
    let is_known = absence.ends_with(": it was killed by SIGSEGV");
    assert!(is_known || absence.ends_with(": it has written no stack"), "{absence}");
}

#[track_caller]
fn python_of(reader: fn(Pid, Vec<CString>) -> io::Result<WorkerCommand>, limit: Duration) -> WorkerStacks {
    let worker = Worker::start("python3");
    worker.stacks(&StackTools::with(None, reader), limit)
}

#[test]
fn calls_of_eu_stack_stand_at_their_threads() {
    let worker = Worker::start("cat");
    let script = "[ \"$1 $2 $3 $4 $5\" = '-m -s -n 32 -p' ] || exit 9\n\
        echo \"TID $6:\"; echo '#0  0x0000000000000001 wait - /lib/libc.so.6'; echo 'TID 1:'; echo '#0  0x1 f - /a'";
    let stacks = worker.stacks(&worker.eu_stack(script), ENOUGH);
    assert_eq!(stacks.native_absence, None);
    let [main] = &stacks.threads[..] else { panic!("{stacks:?}") };
    assert_eq!(main.native.iter().map(|frame| frame.title()).collect::<Vec<_>>(), ["wait (libc.so.6)"]);
}

#[test]
fn eu_stack_that_fails_costs_one_line() {
    let cases = [
        ("echo garbage; printf '\\377\\000'", "eu-stack: it has written no stack"),
        ("echo 'eu-stack: no such thing' >&2; exit 2", "eu-stack: eu-stack: no such thing"),
        ("exec cat /dev/zero", "eu-stack: its output is too long"),
        ("while :; do echo 'TID 7:'; done", "eu-stack: its output is too long"),
    ];
    assert_crash(&native_absence("kill -SEGV $$", ENOUGH));
    for (script, expected) in cases {
        let absence = native_absence(script, ENOUGH);
        assert!(absence.starts_with(expected), "{script}: {absence}");
    }
}

#[test]
fn eu_stack_that_the_kernel_refuses_has_the_cause() {
    let script = "echo \"eu-stack: dwfl_thread_getframes tid $6: Operation not permitted\" >&2; exit 2";
    let absence = native_absence(script, ENOUGH);
    assert!(absence.starts_with("ptrace is not permitted ("), "{absence}");
}

#[test]
fn missing_eu_stack_is_named() {
    let worker = Worker::start("cat");
    let tools = StackTools::with(None, |_, envp| reader("exit 3", envp));
    let absence = worker.stacks(&tools, ENOUGH).native_absence.unwrap();
    assert_eq!(absence, "eu-stack (elfutils) is not installed");
    let tools = StackTools::with(Some("/nonexistent/eu-stack".into()), |_, envp| reader("exit 3", envp));
    let absence = worker.stacks(&tools, ENOUGH).native_absence.unwrap();
    assert!(absence.starts_with("eu-stack cannot be started: No such file"), "{absence}");
}

/// It and its child hold the output open.
#[test]
fn eu_stack_that_hangs_is_killed_and_leaves_no_worker_stopped() {
    let worker = Worker::start("cat");
    let pids = worker.folder.join("pids");
    let script =
        format!("kill -STOP $6\nsleep 1000 & echo $$ $! >{0}.new; mv {0}.new {0}; wait", pids.display());
    let stacks = worker.stacks(&worker.eu_stack(&script), SHORT);
    assert_eq!(stacks.native_absence.as_deref(), Some("eu-stack: it did not end in time"));
    // Both signals were sent before the answer.
    let until = Instant::now() + ENOUGH;
    let is_gone = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    let pids = fs::read_to_string(pids).unwrap_or_default();
    while !(worker.state() == "S" && pids.split_whitespace().all(is_gone)) {
        assert!(Instant::now() < until, "worker in state {}, tools {pids}", worker.state());
        std::thread::yield_now();
    }
}

/// A crash behind the first thread too.
#[test]
fn eu_stack_that_crashes_leaves_no_worker_stopped() {
    let worker = Worker::start("cat");
    let script = "echo \"TID $6:\"; echo '#0  0x1 wait - /lib/libc.so.6'; kill -STOP $6; kill -SEGV $$";
    let stacks = worker.stacks(&worker.eu_stack(script), ENOUGH);
    assert_eq!(stacks.native_absence, None, "what it has written counts");
    let until = Instant::now() + ENOUGH;
    while worker.state() != "S" {
        assert!(Instant::now() < until, "worker in state {}", worker.state());
        std::thread::yield_now();
    }
}

/// A worker that ends meanwhile has not left them behind.
#[test]
fn tools_are_marked_as_no_leftovers() {
    let absence = native_absence("echo \"keep $RANKRUN_KEEP\" >&2; exit 2", ENOUGH);
    assert_eq!(absence, "eu-stack: keep 1");
}

#[test]
fn worker_that_was_stopped_stays_stopped() {
    let worker = Worker::start("cat");
    nix::sys::signal::kill(crate::process::nix_pid(worker.pid()), nix::sys::signal::Signal::SIGSTOP).unwrap();
    let until = Instant::now() + ENOUGH;
    while worker.state() != "T" {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    let _ = worker.stacks(&worker.eu_stack("kill -SEGV $$"), ENOUGH);
    assert_eq!(worker.state(), "T");
}

#[test]
fn stack_of_python_reader_takes_the_place_of_its_handlers() {
    let stacks = python_of(
        |_, envp| {
            let threads = r#"{"Ok":{"threads":[{"id":"7f","name":null,"is_current":false,"frames":[{"function":"f","file":"/u/a.py","line":3}]}],"is_cut":true}}"#;
            reader(&format!("echo '{threads}'"), envp)
        },
        ENOUGH,
    );
    assert_eq!((stacks.python_source, stacks.python_absence.as_deref()), (Some(StackSource::PySpy), None));
    assert_eq!((stacks.main_frames()[0].title(), stacks.is_python_cut), ("f (a.py:3)".to_owned(), true));
}

#[test]
fn python_reader_that_fails_costs_one_line() {
    let absence = |reader| python_of(reader, ENOUGH).python_absence.unwrap();
    let no_hook = "its program has no hook, and py-spy does not read it: ";
    let denied = absence(|_, envp| reader("echo '{\"Err\":\"x: Permission denied (os error 13)\"}'", envp));
    assert!(denied.starts_with(&format!("{no_hook}ptrace is not permitted (")), "{denied}");
    let failed = absence(|_, envp| reader("echo '{\"Err\":\"no interpreter\"}'", envp));
    assert_eq!(failed, format!("{no_hook}no interpreter"));
    let garbage = absence(|_, envp| reader("echo garbage", envp));
    assert!(garbage.starts_with(&format!("{no_hook}it has written no stack")), "{garbage}");
    let crashed = absence(|_, envp| reader("kill -SEGV $$", envp));
    assert_crash(&crashed);
    let endless = absence(|_, envp| reader("exec cat /dev/zero", envp));
    assert_eq!(endless, format!("{no_hook}its output is too long"));
    let hung = python_of(|_, envp| reader("exec sleep 1000", envp), SHORT).python_absence;
    assert_eq!(hung, Some(format!("{no_hook}it did not end in time")));
}

#[test]
fn python_below_a_wrapper_is_the_process_that_is_looked_into() {
    let worker = Worker::start("python3");
    assert_eq!(program_process(worker.pid()), worker.pid());
    let mut wrapper = Command::new("/bin/sh");
    let program = worker.folder.join("python3");
    let mut wrapper =
        wrapper.args(["-c", "\"$0\"; exit 0"]).arg(program).stdin(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(wrapper.id()).unwrap());
    let until = Instant::now() + ENOUGH;
    while program_process(pid) == pid {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    // Its program ends with its input.
    wrapper.wait().unwrap();
}
