//! Where workers stand: the hook of Python workers, `rankrun stacks`, and the stacks before a SIGKILL.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use harness::{Job, Launch, Name};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::control::Runtime;

/// What each rank does, by its name on the command line; each says `ready` first.
const PROGRAM: &str = r#"
import ctypes, os, signal, sys, threading, time

def sleeps():
    print("ready", flush=True)
    time.sleep(1000)

def spins():
    print("ready", flush=True)
    while True:
        pass

def holds_gil():
    reader, writer = os.pipe()
    print("ready", flush=True)
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)

def replaces_handler():
    signal.signal(43, lambda *_: None)
    sleeps()

def closes_descriptors():
    os.closerange(3, 1000)
    sleeps()

def waits():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()

def ignores_stop():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleeps()

def blocks_all():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    sleeps()

def is_not_dumpable():
    ctypes.CDLL(None).prctl(4, 0)
    sleeps()

def recurses(depth):
    if depth:
        recurses(depth - 1)
    time.sleep(1000)

def deep_threads():
    threading.stack_size(1 << 20)
    for _ in range(80):
        threading.Thread(target=recurses, args=(90,), daemon=True).start()
    sleeps()

def gets_signal_when_handler_is_gone():
    import faulthandler
    # As Python does at its end.
    faulthandler.unregister(43)
    os.kill(os.getpid(), 43)
    print("alive", flush=True)

names = sys.argv[1].split(",")
globals()[names[int(os.environ["RANK"]) % len(names)]]()
"#;

/// Prints what a program can see of a hook.
const VISIBLE: &str = r#"
import os, subprocess, sys
show = "import os, sys; print('child', sys.path, os.environ.get('PYTHONPATH'), os.environ.get('RANKRUN_STACKS'))"
print("own", sys.path, os.environ.get("PYTHONPATH"), os.environ.get("RANKRUN_STACKS"), sorted(sys.path_importer_cache))
print("customized by", getattr(sys.modules.get("sitecustomize"), "__file__", None), flush=True)
subprocess.run([sys.executable, "-c", show], check=True)
"#;

pub(super) struct Workers {
    pub(super) runtime: Runtime,
}

impl Workers {
    /// `None` under another launcher.
    pub(super) fn new() -> Option<Self> {
        Some(Self { runtime: Runtime::new()? })
    }

    pub(super) fn file(&self, name: &str, content: &str) -> String {
        self.runtime.0.file(name, content, 0o600)
    }

    pub(super) fn launch(&self, name: Name, workers: usize) -> Launch {
        let launch = Launch::standalone(name, workers);
        launch.env("XDG_RUNTIME_DIR", self.runtime.path()).env("XDG_CACHE_HOME", self.cache())
    }

    fn cache(&self) -> PathBuf {
        self.runtime.0.path().join("cache")
    }

    /// A job whose ranks do these things, once all have begun.
    pub(super) fn start(&self, options: &[&str], names: &[&str]) -> Job {
        let launch = self.launch(Name::Rankrun, names.len()).args(options.iter().copied());
        self.start_launch(launch, names)
    }

    pub(super) fn start_launch(&self, launch: Launch, names: &[&str]) -> Job {
        let script = self.file("program.py", PROGRAM);
        let job = launch.args([&*script, &names.join(",")]).start();
        job.wait_for_lines("ready", names.len());
        job.wait_until("the job has a socket", || {
            self.runtime.ask(&["status", &job.pid().to_string()]).status.code() == Some(0)
        });
        // A line is printed a moment before the wait.
        let waits = |worker: &Value| {
            worker["threads"][0]["state"] != "R" || calls(worker).contains(&"spins".to_owned())
        };
        job.wait_until("all ranks stand", || self.stacks().iter().all(waits));
        job
    }

    #[track_caller]
    pub(super) fn stacks(&self) -> Vec<Value> {
        let outcome = self.runtime.ask(&["stacks", &self.runtime.job_id(), "--json"]);
        outcome.expect_exit_code(0);
        serde_json::from_str(&outcome.stdout()).unwrap_or_else(|error| panic!("{error}: {outcome}"))
    }

    fn run_visible(&self, launch: Launch) -> Vec<String> {
        let script = self.file("visible.py", VISIBLE);
        let outcome = launch.args([&*script]).run();
        outcome.expect_exit_code(0);
        outcome.stdout_lines()
    }
}

#[track_caller]
pub(super) fn stop(job: Job) {
    job.signal(Signal::SIGKILL);
    let _ = job.wait_or_kill();
}

/// The calls of the main thread, the innermost first.
pub(super) fn calls(worker: &Value) -> Vec<String> {
    let threads = worker["python"].as_array().expect("a list");
    let frames = threads.last().map(|thread| thread["frames"].as_array().expect("a list"));
    let function = |frame: &Value| frame["function"].as_str().expect("a name").to_owned();
    frames.into_iter().flatten().map(function).collect()
}

#[test]
fn stacks_show_where_each_python_worker_stands() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.start(&[], &["sleeps", "spins", "holds_gil", "waits"]);
    let stacks = workers.stacks();
    for (worker, own) in stacks.iter().zip(["sleeps", "spins", "holds_gil", "waits"]) {
        let calls = calls(worker);
        let program: Vec<&str> = calls.iter().map(String::as_str).filter(|name| *name != "wait").collect();
        assert_eq!(program, [own, "<module>"], "{worker}");
        assert!(worker["threads"][0]["state"].is_string(), "{worker}");
    }
    assert_eq!(stacks[3]["python"].as_array().map(Vec::len), Some(2), "{}", stacks[3]);
    // A second answer has nothing of the first.
    assert_eq!(
        workers.stacks().iter().map(calls).collect::<Vec<_>>(),
        stacks.iter().map(calls).collect::<Vec<_>>()
    );
    stop(job);
}

#[test]
fn equal_stacks_are_folded_and_one_rank_has_all_its_threads() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.start(&[], &["waits", "sleeps", "waits", "waits"]);
    let text = workers.runtime.ask(&["stacks", &workers.runtime.job_id()]).stdout();
    assert!(text.starts_with("rank 1: sleeps (program.py:6)\n"), "{text}");
    assert!(text.contains("\nranks 0, 2, 3: waits (program.py:29), in wait (threading.py:"), "{text}");
    let text = workers.runtime.ask(&["stacks", &workers.runtime.job_id(), "--rank", "2"]).stdout();
    assert!(text.starts_with("rank 2, pid ") && text.matches("Python thread").count() == 2, "{text}");
    let refused = workers.runtime.ask(&["stacks", &workers.runtime.job_id(), "--rank", "9"]);
    refused.expect_exit_code(1).expect_stderr("no rank 9 is on this node; its ranks are 0, 1, 2, 3");
    stop(job);
}

#[test]
fn worker_without_answer_is_read_from_its_memory() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.start(&[], &["sleeps", "replaces_handler", "closes_descriptors", "blocks_all"]);
    let stacks = workers.stacks();
    assert_eq!(stacks[0]["python_source"], "faulthandler");
    for (worker, own) in stacks.iter().zip(["sleeps", "replaces_handler", "closes_descriptors", "blocks_all"])
    {
        let calls = calls(worker);
        assert!(calls.contains(&own.to_owned()) && calls.contains(&"<module>".to_owned()), "{worker}");
        assert_eq!((&worker["threads"][0]["state"], &worker["python_absence"]), (&"S".into(), &Value::Null));
    }
    assert!(stacks[1..].iter().all(|worker| worker["python_source"] == "py-spy"), "{stacks:?}");
    let pid = i32::try_from(stacks[0]["pid"].as_i64().expect("a pid")).expect("a pid");
    job.signal_to(pid, Signal::SIGSTOP);
    job.wait_until("rank 0 is stopped", || harness::is_stopped(pid));
    let stopped = &workers.stacks()[0];
    assert_eq!((calls(stopped), &stopped["python_source"]), (calls(&stacks[0]), &"py-spy".into()));
    assert!(harness::is_stopped(pid), "the look has not continued it");
    job.signal_to(pid, Signal::SIGCONT);
    stop(job);
}

#[test]
fn python_below_a_wrapper_is_asked_in_its_place() {
    let Some(workers) = Workers::new() else { return };
    let wrapper = workers.runtime.0.file("wrapper", "#!/bin/sh\n\"$@\"\nexit 0\n", 0o700);
    let job = workers.start(&["--wrap", &format!("all:{wrapper}")], &["sleeps"]);
    let stacks = workers.stacks();
    assert_eq!(calls(&stacks[0]), ["sleeps", "<module>"], "{}", stacks[0]);
    stop(job);
}

/// `-I` and `-S` leave the hook out; the default action of its signal would kill the worker.
#[test]
fn worker_without_hook_survives_a_request_for_its_stack() {
    let Some(workers) = Workers::new() else { return };
    let script = workers.file("program.py", PROGRAM);
    for (options, is_python) in [(&["-I"][..], true), (&["-S"], true), (&[], false)] {
        let launch = workers.launch(Name::Rankrun, 1);
        let job = if is_python {
            launch
                .args(["--no-python", "python3"])
                .args(options.iter().copied())
                .args([&*script, "sleeps"])
                .start()
        } else {
            launch.shell("echo ready; exec sleep 1000").start()
        };
        job.wait_for_line("ready");
        job.wait_until("the job has a socket", || {
            workers.runtime.ask(&["status", &job.pid().to_string()]).status.code() == Some(0)
        });
        let stacks = workers.stacks();
        if is_python {
            assert_eq!(
                (&stacks[0]["python_source"], &calls(&stacks[0])[..2]),
                (&"py-spy".into(), &["sleeps".to_owned(), "<module>".to_owned()][..])
            );
        } else {
            assert_eq!(stacks[0]["python_absence"], "its program has no hook");
        }
        assert_eq!(stacks[0]["threads"][0]["state"], "S", "{options:?}");
        stop(job);
    }
}

#[test]
fn hook_leaves_no_trace_in_program_and_its_children() {
    let Some(workers) = Workers::new() else { return };
    for path in [None, Some("/some/where:/else")] {
        let launch = || {
            let launch = workers.launch(Name::Rankrun, 1);
            path.map_or_else(|| workers.launch(Name::Rankrun, 1), |path| launch.env("PYTHONPATH", path))
        };
        let without = workers.run_visible(launch().args(["--no-hooks"]));
        assert!(!workers.cache().exists() || path.is_some());
        assert_eq!(workers.run_visible(launch()), without);
        assert!(workers.cache().join("rankrun").exists());
    }
}

#[test]
fn sitecustomize_of_user_runs_behind_the_hook() {
    let Some(workers) = Workers::new() else { return };
    let folder = workers.runtime.0.folder("mine", 0o700);
    let own =
        workers.file("mine/sitecustomize.py", "import sys\nprint('customized', __name__, flush=True)\n");
    let lines = workers.run_visible(workers.launch(Name::Rankrun, 1).env("PYTHONPATH", folder));
    assert_eq!(lines.iter().filter(|line| line.contains("customized sitecustomize")).count(), 2, "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(&format!("customized by {own}"))), "{lines:?}");
}

#[test]
fn cache_of_foreign_mode_switches_hook_off() {
    let Some(workers) = Workers::new() else { return };
    workers.run_visible(workers.launch(Name::Rankrun, 1));
    let folder = fs::read_dir(workers.cache().join("rankrun")).unwrap().next().unwrap().unwrap().path();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let script = workers.file("visible.py", VISIBLE);
    let outcome = workers.launch(Name::Rankrun, 1).args(["-v", &*script]).run();
    outcome.expect_exit_code(0).expect_stderr("no hook in workers, so no Python stacks: `");
    outcome.expect_stderr("mode 777): it must be 700");
}

#[test]
fn torchrun_name_has_hooks_only_by_its_variable() {
    let Some(workers) = Workers::new() else { return };
    workers.run_visible(workers.launch(Name::Torchrun, 1));
    assert!(!workers.cache().exists());
    workers.run_visible(workers.launch(Name::Torchrun, 1).env("RANKRUN_HOOKS", "1"));
    assert!(workers.cache().exists());
}

#[test]
fn stacks_of_workers_that_ignore_the_stop_are_shown_before_sigkill() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.start(&["--shutdown-timeout", "1"], &["ignores_stop", "ignores_stop"]);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_exit_code(143);
    outcome
        .expect_stderr("SIGKILL follows; the workers that do not stop:\nranks 0, 1: sleeps (program.py:6)\n");
}

/// Another worker blocks every signal, so its handler never runs.
#[test]
fn stacks_before_sigkill_come_although_one_worker_does_not_answer() {
    let Some(workers) = Workers::new() else { return };
    let stop_job = || {
        let job = workers.start(&["--shutdown-timeout", "2"], &["ignores_stop", "blocks_all"]);
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_stderr("SIGKILL follows; the workers that do not stop:\n");
        outcome.expect_stderr("rank 0: sleeps (program.py:").stderr()
    };
    expect_one_of_three(stop_job, &["rank 1: sleeps (program.py:", " in blocks_all\n"]);
}

/// Fails unless one of up to three jobs says all of this: beside many other tests py-spy may be late.
#[track_caller]
pub(super) fn expect_one_of_three(stop_job: impl Fn() -> String, parts: &[&str]) {
    let lacks_some = |said: &String| !parts.iter().all(|part| said.contains(part));
    let said: Vec<String> = (0..3).map(|_| stop_job()).take_while(lacks_some).collect();
    assert!(said.len() < 3, "none has {parts:?}: {said:#?}");
}

/// A request may come when Python has already taken its handler away.
#[test]
fn request_at_the_end_of_python_does_not_kill_it() {
    let Some(workers) = Workers::new() else { return };
    let script = workers.file("program.py", PROGRAM);
    let launch = workers.launch(Name::Rankrun, 1).args([&*script, "gets_signal_when_handler_is_gone"]);
    launch.run().expect_exit_code(0).expect_stdout("alive\n");
}

#[test]
fn main_thread_is_shown_where_the_other_threads_fill_the_dump() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.start(&[], &["deep_threads"]);
    let [worker] = &workers.stacks()[..] else { panic!("one worker") };
    assert_eq!((&worker["is_python_cut"], &worker["is_main_missing"]), (&true.into(), &false.into()));
    assert_eq!(calls(worker)[0], "sleeps");
    stop(job);
}

/// Four clients: one of them takes the stacks, and a worker that does not answer costs all of them two seconds once.
#[test]
fn requests_for_stacks_at_the_same_time_share_one_answer() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.start(&[], &["sleeps", "blocks_all"]);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| workers.runtime.ask(&["stacks", &workers.runtime.job_id()])))
            .collect();
        for client in clients {
            client.join().unwrap().expect_exit_code(0).expect_stdout("rank 0: sleeps (program.py:");
        }
    });
    stop(job);
}

#[test]
fn report_of_a_late_start_shows_where_the_missing_worker_stands() {
    let Some(workers) = Workers::new() else { return };
    let script = workers.file("program.py", PROGRAM);
    let launch = workers.launch(Name::Rankrun, 2).args(["--start-timeout", "2", &*script, "sleeps"]);
    let outcome = launch.run();
    outcome
        .expect_stderr("  where workers stood that did not answer:\n    ranks 0, 1: sleeps (program.py:6)\n");
}
