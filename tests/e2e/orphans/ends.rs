//! The launcher's other ends: a crash of the agent, and a machine without memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::yield_now;
use std::time::Duration;

use harness::{
    Fault, Job, Launch, Machine, Name, Process, fixture, is_rankrun, is_stopped, memory_kills_alone,
    print_notice,
};
use nix::sys::signal::Signal;

use super::{SWEEP_TIMEOUT, Victim, launch_under_subreaper, start_family};

/// As after a panic that aborts, or a fault of ours. (Rust handles SIGSEGV itself, and waits for the fault to come again.)
#[test]
fn agent_crash_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for signal in [Signal::SIGABRT, Signal::SIGILL] {
        for name in Name::both() {
            let job = start_family(*name, "30");
            Victim::Agent.find(&job).expect("the job runs").signal(signal);
            job.ends_within(SWEEP_TIMEOUT);
            let outcome = job.wait();
            outcome
                .expect_exit_code(1)
                .expect_stderr("the launcher's agent ended by itself")
                .expect_stderr(signal.as_str());
        }
    }
}

/// The job of this agent is a launcher with a job of its own.
#[test]
fn agent_panic_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    // A backtrace of a debug build takes its time.
    let launch = launch_under_subreaper(Name::Rankrun, 2)
        .env("RUST_BACKTRACE", "0")
        .under([fixture("panicking")])
        .stdin_open();
    let mut job = launch.worker(["catch", "helper=daemon", "helper=bare-daemon", "alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 6);
    job.type_text("\n");
    job.ends_within(SWEEP_TIMEOUT);
    job.wait().expect_exit_code(1).expect_stderr("the agent panics");
}

/// Whatever ends the guard.
#[test]
fn guard_ended_by_signal_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for signal in [Signal::SIGABRT, Signal::SIGALRM, Signal::SIGXCPU] {
        let job = start_family(Name::Rankrun, "3600");
        Victim::Guard.find(&job).expect("the job runs").signal(signal);
        job.ends_within(SWEEP_TIMEOUT);
    }
}

/// Frozen (SIGSTOP), the agent could not see that the guard is gone.
#[test]
fn frozen_launcher_killed_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let job = start_family(*name, "3600");
        let [guard, agent] = Victim::BOTH.map(|victim| victim.find(&job).expect("the job runs"));
        [&guard, &agent].into_iter().for_each(|process| process.signal(Signal::SIGSTOP));
        guard.signal(Signal::SIGKILL);
        job.ends_within(SWEEP_TIMEOUT);
    }
}

/// No process continues the stopped guard, which alone can sweep: the kernel does.
#[test]
fn agent_killed_while_guard_is_frozen_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let job = start_family(*name, "3600");
        let [guard, agent] = Victim::BOTH.map(|victim| victim.find(&job).expect("the job runs"));
        guard.signal(Signal::SIGSTOP);
        while !is_stopped(guard.pid) {
            yield_now();
        }
        agent.signal(Signal::SIGKILL);
        job.ends_within(SWEEP_TIMEOUT);
    }
}

/// A job with a launcher that has only its final report to write, to a reader that does not read.
#[track_caller]
fn start_job_with_stalled_reader(name: Name, options: &[&str]) -> Job {
    // The reader says when it has seen the first line, and reads no further.
    let line = "{ \"$@\" 2>&3 | { read line; echo \"read $line\" >&4; exec sleep 1111 >&4 2>&4 3>&- 4>&-; }; } 3>&1 4>&1";
    let launch = Launch::standalone(name, 1).under(["sh", "-c", line, "sh"]);
    let job = launch
        .args(["--tee", "3"])
        .args(options.iter().copied())
        .worker(["print=first", "flood=650", "eprint=over", "exit=0"])
        .start();
    job.wait_for_line("read ");
    job
}

/// Its shell has a reader to start, too.
#[track_caller]
fn find_launcher(job: &Job) -> Process {
    let named =
        |process: &Process| process.command.contains("--standalone") && !process.command.starts_with("sh ");
    let below = job.children_of(job.pid()).into_iter().filter_map(Process::open);
    below.into_iter().find(named).expect("the launcher runs")
}

#[test]
fn launcher_killed_while_output_is_unread_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for victim in Victim::BOTH {
        let job = start_job_with_stalled_reader(Name::Rankrun, &[]);
        job.wait_for_line("waiting for a reader");
        let guard = find_launcher(&job);
        let agent = job.first_child_of(guard.pid).expect("the job runs");
        match victim {
            Victim::Guard => guard.signal(Signal::SIGKILL),
            Victim::Agent => agent.signal(Signal::SIGKILL),
        }
        job.expect_processes_gone(&[guard, agent], SWEEP_TIMEOUT);
    }
}

#[test]
fn time_limit_ends_wait_for_reader() {
    if !is_rankrun() {
        return;
    }
    let job = start_job_with_stalled_reader(Name::Rankrun, &["--time-limit", "5"]);
    let guard = find_launcher(&job);
    let agent = job.first_child_of(guard.pid).expect("the job runs");
    job.wait_for_line("waiting for a reader");
    job.expect_processes_gone(&[guard, agent], Duration::from_secs(30));
}

/// A launcher as the worker of another.
#[test]
fn launcher_killed_with_nested_job_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for victim in Victim::BOTH {
        let inner =
            [fixture("launcher-under-test").into_os_string(), "--standalone".into(), "--no-python".into()];
        let launch = launch_under_subreaper(Name::Rankrun, 2)
            .args(["--no-python"])
            .args(inner)
            .args([fixture("worker")]);
        let job = launch.args(["catch", "helper=daemon", "helper=bare-daemon", "alive", "forever"]).start();
        job.wait_for_lines("alive rank=", 6);
        victim.find(&job).expect("the job runs").signal(Signal::SIGKILL);
        job.ends_within(SWEEP_TIMEOUT);
    }
}

/// Before there is an agent.
#[test]
fn launcher_killed_during_device_probe_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Hang);
    for (name, options) in [(Name::Rankrun, "--devices=0"), (Name::Torchrun, "--nproc-per-node=gpu")] {
        let launch = Launch::new(name).under([fixture("subreaper")]).args(["--standalone", options]);
        let launch = launch.env("RANKRUN_PROBE_TIMEOUT", "60").on(&machine);
        let opening = launch.opening();
        let job = launch.worker(["alive"]).start();
        opening.wait();
        Victim::Guard.find(&job).expect("it looks").signal(Signal::SIGKILL);
        job.ends_within(SWEEP_TIMEOUT);
    }
}

/// A memory cgroup of one test, removed with it.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// Nothing where the machine does not let us make one.
    fn new(bytes: u32) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let of_kind =
            |kind: &str| own.lines().find_map(|line| line.split_once(kind).map(|(_, path)| path.to_owned()));
        let (root, limits) = match of_kind(":memory:") {
            Some(path) => (
                format!("/sys/fs/cgroup/memory{path}"),
                ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
            ),
            None => (format!("/sys/fs/cgroup{}", of_kind("0::")?), ["memory.max", "memory.swap.max"]),
        };
        let path = Path::new(&root).join(format!("rankrun-e2e-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join(limits[0]), bytes.to_string()).ok()?;
        // Without swap there is nothing to limit.
        let _ = fs::write(group.0.join(limits[1]), bytes.to_string());
        Some(group)
    }

    /// The launcher, and all that it starts, in this group.
    fn wrap_launch(&self, launch: Launch) -> Launch {
        let line = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", self.0.display());
        launch.under(["sh", "-c", &line, "sh"])
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The OOM score chooses the first victim of the kernel: guard, agent, or the worker that allocates.
#[test]
fn out_of_memory_kill_of_any_process_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    let _alone = memory_kills_alone();
    let Some(group) = MemoryCgroup::new(128 << 20) else {
        print_notice("skipped: no memory cgroup can be made here");
        return;
    };
    for victim in [Some(Victim::Guard), Some(Victim::Agent), None] {
        let launch = group.wrap_launch(Launch::standalone(Name::Rankrun, 1)).stdin_open();
        let launch = launch.under([fixture("subreaper")]);
        let mut job =
            launch.worker(["catch", "helper=daemon", "helper=session", "alive", "read", "eat"]).start();
        job.wait_for_lines("alive rank=0", 3);
        if let Some(victim) = victim {
            let pid = victim.find(&job).expect("the job runs").pid;
            fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").expect("we may offer our own");
        }
        job.type_text("\n");
        let outcome = job.wait();
        match victim {
            Some(Victim::Guard) => assert_eq!(outcome.status.code(), Some(137), "{outcome}"),
            Some(Victim::Agent) => {
                outcome.expect_exit_code(1).expect_stderr("the kernel ran out of memory");
            }
            None => {
                outcome
                    .expect_exit_code(137)
                    .expect_stderr("by the kernel: out of memory (cgroup limit 128 MiB");
            }
        }
    }
}
