//! Death by SIGKILL: the report names the kernel where its counters prove it, and no cause where they do not.

use harness::{Gate, Launch, MemoryCgroup, Name, Outcome, free_port, only_ours};

use crate::nodes::c10d;

/// Room for two launchers' processes and small workers.
const LIMIT: u64 = 96;

/// The memory that the report gives rank 1, in MiB.
#[track_caller]
fn peak_in(outcome: &Outcome) -> u64 {
    let line = outcome.lines_with("failed first: killed by the kernel").remove(0);
    let words = line.split_once(", rank 1 had ").and_then(|(_, rest)| rest.split_once(" MiB)"));
    words.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("no peak in `{line}`"))
}

#[test]
fn out_of_memory_in_a_cgroup_names_limit_and_peak() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
        let launch = Launch::standalone(*name, 2).under(cgroup.entered());
        let outcome = launch.worker(["rank1:eat", "forever"]).run();
        outcome.exits(name.code(137));
        outcome.complains(
            "rank 1 failed first: killed by the kernel: out of memory (cgroup limit 96 MiB, rank 1 had ",
        );
        outcome.complains("hint: raise the limit where the job is started").never_says("dmesg");
        let peak = peak_in(&outcome);
        // It has pages of its program too, which another cgroup may have been charged for.
        assert!((LIMIT / 2..=LIMIT * 5 / 4).contains(&peak), "{peak} MiB\n{outcome}");
    }
}

/// The limit is that of the cgroup above the job's own, as in a container or a batch job.
#[test]
fn out_of_memory_names_the_limit_of_the_cgroup_above() {
    if !only_ours() {
        return;
    }
    let Some(above) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let cgroup = above.child();
    let launch = Launch::standalone(Name::Rankrun, 2).under(cgroup.entered());
    let outcome = launch.worker(["rank1:eat", "forever"]).run();
    outcome.exits(137).complains("out of memory (cgroup limit 96 MiB, rank 1 had ");
}

/// The second life ends by SIGKILL too, and the kernel has no part in it.
#[test]
fn restart_after_out_of_memory_says_it_and_counts_anew() {
    if !only_ours() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let launch = Launch::standalone(Name::Rankrun, 2).under(cgroup.entered()).args(["--max-restarts", "1"]);
    let outcome = launch.worker(["rank1:life0:eat", "rank1:die=SIGKILL", "forever"]).run();
    outcome.exits(137);
    outcome.complains(") failed: killed by the kernel: out of memory (cgroup limit 96 MiB, rank 1 had ");
    outcome.complains("rank 1 failed first: killed by SIGKILL from outside\n");
}

#[test]
fn kill_from_outside_is_not_called_out_of_memory() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let outcome = Launch::standalone(*name, 2).worker(["rank1:die=SIGKILL", "forever"]).run();
        outcome.exits(name.code(137)).complains("rank 1 failed first: killed by SIGKILL from outside\n");
        outcome.never_says("killed by the kernel");
    }
}

/// The launcher kills the worker itself, which is neither.
#[test]
fn own_kill_after_the_grace_is_not_called_one_from_outside() {
    if !only_ours() {
        return;
    }
    let gate = Gate::closed();
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--shutdown-timeout", "1"]);
    let steps = [&format!("rank1:{}", gate.step()), "rank1:exit=5", "deaf", "alive", "forever"];
    let job = launch.worker(steps).start();
    job.line("alive rank=0");
    gate.open(1);
    let outcome = job.wait();
    outcome.exits(5).complains("others    rank 0: killed by SIGKILL\n").never_says("from outside");
}

/// The kernel takes a process that the worker has started, and the worker fails for want of it.
#[test]
fn kernel_kill_of_a_workers_child_stands_in_the_report() {
    if !only_ours() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let launch = Launch::standalone(Name::Rankrun, 1).under(cgroup.entered());
    let outcome = launch.shell("tail /dev/zero; echo 'a child is gone' >&2; exit 3").run();
    outcome.exits(3).complains("rank 0 failed first: exit code 3\n");
    outcome.complains(
        "memory    the kernel killed 1 process of the job's cgroup for lack of memory (cgroup limit 96 MiB)",
    );
}

/// The kernel takes a process of the worker, which lives on and is killed later: no counter tells the two apart.
#[test]
fn sigkill_after_a_childs_oom_kill_is_called_probable() {
    if !only_ours() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let launch = Launch::standalone(Name::Rankrun, 2).under(cgroup.entered());
    let outcome = launch.shell("[ $$RANK = 0 ] && exec sleep 1000; tail /dev/zero; kill -KILL $$$$").run();
    outcome.exits(137).never_says("failed first: killed by the kernel");
    outcome.complains(
        "rank 1 failed first: killed by SIGKILL, probably by the kernel: out of memory (cgroup limit 96 MiB, rank 1 or a \
         process that it started had ",
    );
}

#[test]
fn python_error_after_a_childs_oom_kill_gets_no_memory_hint() {
    if !only_ours() {
        return;
    }
    for (error, is_advised) in [
        ("ValueError: shapes do not match", false),
        ("MemoryError", true),
        ("subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.", true),
    ] {
        let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
        let launch = Launch::standalone(Name::Rankrun, 1).under(cgroup.entered());
        let outcome = launch.shell(&format!("tail /dev/zero; echo '{error}' >&2; exit 1")).run();
        outcome.exits(1).complains("memory    the kernel killed 1 process of the job's cgroup");
        if is_advised {
            outcome.complains("hint: perhaps for lack of memory: raise the limit where the job is started");
        } else {
            outcome.never_says("raise the limit");
        }
    }
}

#[test]
fn out_of_memory_on_one_node_is_named_on_the_other() {
    if !only_ours() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let endpoint = format!("localhost:{}", free_port());
    let job = |rank: &str| c10d(Name::Rankrun, &endpoint, "2").args(["--node-rank", rank]);
    let steps = ["join", "rank1:eat", "forever"];
    let one = job("0").worker(steps).start();
    let two = job("1").under(cgroup.entered()).worker(steps).start();
    let (one, two) = (one.wait(), two.wait());
    let words = "failed first: killed by the kernel: out of memory (cgroup limit 96 MiB, rank 1 had ";
    one.complains(words);
    two.complains(words);
}
