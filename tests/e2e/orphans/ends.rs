//! The launcher's other ends: a crash of the agent, and a machine without memory.

use std::fs;
use std::path::{Path, PathBuf};

use harness::{Launch, Name, only_ours, tell};
use nix::sys::signal::Signal;

use super::{LIMIT, Victim, family};

/// As after a panic that aborts, or a fault of ours. (Rust handles SIGSEGV itself, and waits for the fault to come again.)
#[test]
fn an_agent_that_crashes_leaves_nothing() {
    if !only_ours() {
        return;
    }
    for signal in [Signal::SIGABRT, Signal::SIGILL] {
        for name in Name::both() {
            let job = family(*name, "30");
            Victim::Agent.of(&job).expect("the job runs").signal(signal);
            job.ends_within(LIMIT);
            let outcome = job.wait();
            outcome.exits(1).complains("the launcher's agent ended by itself").complains(signal.as_str());
        }
    }
}

/// A memory cgroup of one test, removed with it.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
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
    fn around(&self, launch: Launch) -> Launch {
        let line = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", self.0.display());
        launch.under(["sh", "-c", &line, "sh"])
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The kernel takes whom it is told to take first: guard, agent, or the worker that eats.
#[test]
fn whoever_the_kernel_kills_for_memory_nothing_is_left() {
    if !only_ours() {
        return;
    }
    let Some(group) = MemoryGroup::new(128 << 20) else {
        tell("skipped: no memory cgroup can be made here");
        return;
    };
    for victim in [Some(Victim::Guard), Some(Victim::Agent), None] {
        let launch = group.around(Launch::standalone(Name::Rankrun, 1)).stdin_open();
        let launch = launch.under([harness::fixture("witness")]);
        let mut job =
            launch.worker(["catch", "helper=daemon", "helper=session", "alive", "read", "eat"]).start();
        job.lines("alive rank=0", 3);
        if let Some(victim) = victim {
            let pid = victim.of(&job).expect("the job runs").pid;
            fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").expect("we may offer our own");
        }
        job.type_text("\n");
        let outcome = job.wait();
        match victim {
            Some(Victim::Guard) => assert_eq!(outcome.status.code(), Some(137), "{outcome}"),
            Some(Victim::Agent) => drop(outcome.exits(1).complains("the kernel ran out of memory")),
            None => drop(outcome.exits(137).complains("killed by SIGKILL")),
        }
    }
}
