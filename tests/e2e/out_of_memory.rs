//! Death by SIGKILL: the report names the kernel where its counters prove it, and no cause where they do not.

use harness::{Gate, Launch, MemoryCgroup, Name, Outcome, free_port, is_rankrun};

use crate::nodes::c10d;

/// Room for two launchers' processes and small workers.
const LIMIT: u64 = 96;

/// The memory that the report gives rank 1, in MiB.
#[track_caller]
fn reported_peak_mib(outcome: &Outcome) -> u64 {
    let line = outcome.lines_with("failed first: killed by the kernel").remove(0);
    let peak = line.split_once(", rank 1 had ").and_then(|(_, rest)| rest.split_once(" MiB)"));
    peak.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("no peak in `{line}`"))
}

#[test]
fn out_of_memory_in_a_cgroup_names_limit_and_peak() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
        let launch = Launch::standalone(*name, 2).under(cgroup.entered());
        let outcome = launch.worker(["rank1:eat", "forever"]).run();
        outcome.expect_exit_code(name.code(137));
        outcome.expect_stderr(
            "rank 1 failed first: killed by the kernel: out of memory (cgroup limit 96 MiB, rank 1 had ",
        );
        outcome.expect_stderr("hint: raise the limit where the job is started").expect_absent("dmesg");
        let peak = reported_peak_mib(&outcome);
        // It has pages of its program too, which another cgroup may have been charged for.
        assert!((LIMIT / 2..=LIMIT * 5 / 4).contains(&peak), "{peak} MiB\n{outcome}");
    }
}

/// The limit is that of the cgroup above the job's own, as in a container or a batch job.
#[test]
fn out_of_memory_names_the_limit_of_the_cgroup_above() {
    if !is_rankrun() {
        return;
    }
    let Some(above) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let cgroup = above.child();
    let launch = Launch::standalone(Name::Rankrun, 2).under(cgroup.entered());
    let outcome = launch.worker(["rank1:eat", "forever"]).run();
    outcome.expect_exit_code(137).expect_stderr("out of memory (cgroup limit 96 MiB, rank 1 had ");
}

/// The second generation ends by SIGKILL too, and the kernel has no part in it.
#[test]
fn oom_kill_before_restart_is_reported_for_first_attempt_only() {
    if !is_rankrun() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let launch = Launch::standalone(Name::Rankrun, 2).under(cgroup.entered()).args(["--max-restarts", "1"]);
    let outcome = launch.worker(["rank1:attempt0:eat", "rank1:die=SIGKILL", "forever"]).run();
    outcome.expect_exit_code(137);
    outcome.expect_stderr(") failed: killed by the kernel: out of memory (cgroup limit 96 MiB, rank 1 had ");
    outcome.expect_stderr("rank 1 failed first: killed by SIGKILL (not sent by rankrun)\n");
}

#[test]
fn external_sigkill_is_not_reported_as_out_of_memory() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let outcome = Launch::standalone(*name, 2).worker(["rank1:die=SIGKILL", "forever"]).run();
        outcome
            .expect_exit_code(name.code(137))
            .expect_stderr("rank 1 failed first: killed by SIGKILL (not sent by rankrun)\n");
        outcome.expect_absent("killed by the kernel");
    }
}

/// The launcher kills the worker itself, which is neither.
#[test]
fn launcher_sigkill_after_grace_is_not_reported_as_external() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--shutdown-timeout", "1"]);
    let steps = [&format!("rank1:{}", gate.step()), "rank1:exit=5", "deaf", "alive", "forever"];
    let job = launch.worker(steps).start();
    job.wait_for_line("alive rank=0");
    gate.open(1);
    let outcome = job.wait();
    outcome
        .expect_exit_code(5)
        .expect_stderr("others    rank 0: killed by SIGKILL\n")
        .expect_absent("not sent by rankrun");
}

/// The kernel takes a process that the worker has started, and the worker fails for want of it.
#[test]
fn oom_kill_of_worker_child_is_in_report() {
    if !is_rankrun() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let launch = Launch::standalone(Name::Rankrun, 1).under(cgroup.entered());
    let outcome = launch.shell("tail /dev/zero; echo 'a child is gone' >&2; exit 3").run();
    outcome.expect_exit_code(3).expect_stderr("rank 0 failed first: exit code 3\n");
    outcome.expect_stderr(
        "memory    the kernel killed 1 process of the job's cgroup for lack of memory (cgroup limit 96 MiB)",
    );
}

/// The kernel takes a process of the worker, which lives on and is killed later: no counter tells the two apart.
#[test]
fn sigkill_after_child_oom_kill_is_reported_as_probable_oom() {
    if !is_rankrun() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let launch = Launch::standalone(Name::Rankrun, 2).under(cgroup.entered());
    let outcome = launch.shell("[ $$RANK = 0 ] && exec sleep 1000; tail /dev/zero; kill -KILL $$$$").run();
    outcome.expect_exit_code(137).expect_absent("failed first: killed by the kernel");
    outcome.expect_stderr(
        "rank 1 failed first: killed by SIGKILL, probably by the kernel: out of memory (cgroup limit 96 MiB, rank 1 or a \
         process that it started had ",
    );
}

#[test]
fn only_memory_errors_after_child_oom_kill_get_memory_hint() {
    if !is_rankrun() {
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
        outcome
            .expect_exit_code(1)
            .expect_stderr("memory    the kernel killed 1 process of the job's cgroup");
        if is_advised {
            outcome
                .expect_stderr("hint: perhaps for lack of memory: raise the limit where the job is started");
        } else {
            outcome.expect_absent("raise the limit");
        }
    }
}

#[test]
fn oom_kill_is_reported_on_all_nodes() {
    if !is_rankrun() {
        return;
    }
    let Some(cgroup) = MemoryCgroup::new().map(|made| made.limited(LIMIT)) else { return };
    let endpoint = format!("localhost:{}", free_port());
    let job = |rank: &str| c10d(Name::Rankrun, &endpoint, "2").args(["--node-rank", rank]);
    let steps = ["join", "rank1:eat", "forever"];
    let one = job("0").worker(steps).start();
    let two = job("1").under(cgroup.entered()).worker(steps).start();
    let (one, two) = (one.wait(), two.wait());
    let expected = "failed first: killed by the kernel: out of memory (cgroup limit 96 MiB, rank 1 had ";
    one.expect_stderr(expected);
    two.expect_stderr(expected);
}
