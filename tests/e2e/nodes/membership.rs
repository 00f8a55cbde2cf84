//! Nodes that die, leave, join and join again, while no worker fails.

use std::time::Duration;

use harness::{Fleet, Gate, Name, Process, field, is_rankrun};
use nix::sys::signal::Signal;

use super::{ENDPOINT, Team, c10d, static_launch};

/// Longer than the test: peers must notice a lost node at once, without its lease.
const NO_LEASE: [&str; 2] = ["--lease", "600"];

#[test]
fn killed_agent_is_detected_at_once_and_replaced() {
    if !is_rankrun() {
        return;
    }
    // The one that hosts the store, too, notices by the connections, not by the lease.
    let Some(mut team) = Team::start(3, "1:3", &[]) else { return };
    team.job(3).signal_to(team.agent_pid(3), Signal::SIGKILL);
    team.wait_for_world(2, &[(1, 1), (2, 1)]);
    team.job(3).expect_no_processes_within(Duration::from_secs(10));
    let _ = team.take_job(3).wait();
    team.start_agent(3);
    team.wait_for_world(3, &[(1, 2), (2, 2), (3, 1)]);
    team.finish(&[1, 2, 3]);
}

/// Nothing but the closed connections tells: the lease is longer than the test.
#[test]
fn killed_agent_and_guard_are_detected_by_closed_connections() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let gate = Gate::closed();
    let own = |host| {
        let launch =
            c10d(Name::Rankrun, ENDPOINT, "1:2").args(NO_LEASE).worker(["place", "sum", &gate.step()]);
        fleet.on(host, launch).start()
    };
    let (stays, dies) = (own(1), own(2));
    stays.wait_for_line("world=2 total=3");
    dies.wait_for_line("world=2 total=3");
    // The guard dies too, so no process of the node is left to report.
    for process in dies.processes() {
        process.signal(Signal::SIGKILL);
    }
    stays.wait_for_line("world=1 total=1");
    gate.open(1);
    stays.wait().expect_exit_code(0);
    drop(dies);
    fleet.is_empty();
}

#[test]
fn node_stopped_by_signal_may_rejoin() {
    if !is_rankrun() {
        return;
    }
    let Some(mut team) = Team::start(3, "2:3", &[]) else { return };
    team.job(2).signal(Signal::SIGTERM);
    team.take_job(2).wait().expect_exit_code(128 + Signal::SIGTERM as i32);
    team.wait_for_world(2, &[(1, 1), (3, 1)]);
    team.start_agent(2);
    team.wait_for_world(3, &[(1, 2), (3, 2), (2, 1)]);
    team.finish(&[1, 2, 3]);
}

/// Node 1 keeps rank 0, node 3 its rank 2, and the node that replaces node 2 gets rank 1.
#[test]
fn ranks_are_kept_and_replacement_gets_free_rank() {
    if !is_rankrun() {
        return;
    }
    let Some(mut team) = Team::start(3, "3", &[]) else { return };
    let placement_of = |team: &Team, host: usize| {
        let line = team.job(host).wait_for_lines("place rank=", 1).pop().expect("a placement");
        field(&line, "rank").map(str::to_owned).expect("a rank")
    };
    let before = [1, 2, 3].map(|host| placement_of(&team, host));
    team.job(2).signal_to(team.agent_pid(2), Signal::SIGKILL);
    let _ = team.take_job(2).wait();
    team.start_agent(2);
    team.wait_for_world(3, &[(1, 2), (3, 2), (2, 1)]);
    assert_eq!([1, 2, 3].map(|host| placement_of(&team, host)), before);
    team.finish(&[1, 2, 3]);
}

/// Below MIN nodes the launcher waits, names the missing nodes, and gives up after the join timeout.
#[test]
fn too_few_nodes_end_job_with_named_missing_node() {
    if !is_rankrun() {
        return;
    }
    let Some(mut team) = Team::start(2, "2", &["--rdzv-conf", "join_timeout=6"]) else { return };
    let worker = Process::open(team.worker_pid(1)).expect("the worker lives");
    team.fleet.crash(2);
    team.job(1).expect_processes_gone(&[worker], Duration::from_secs(30));
    let outcome = team.take_job(1).wait();
    outcome.expect_exit_code(1).expect_stderr("th2").expect_stderr("1 of 2");
    team.wait_for_all();
}

#[test]
fn spare_node_replaces_lost_node() {
    if !is_rankrun() {
        return;
    }
    let Some(mut team) = Team::start(2, "2", &[]) else { return };
    // A third host, for which the job has no place: it is a spare until host 2 is lost.
    let spare = c10d(Name::Rankrun, ENDPOINT, "2").args(["--lease", super::LEASE]);
    let steps = ["place", "reduce=3", "sum", &team.gate.step(), "reduce=3", "print=finished"];
    let spare = team.fleet.on(0, spare.worker(steps)).start();
    spare.wait_for_line("spare");
    team.fleet.crash(2);
    team.wait_for_world(2, &[(1, 2)]);
    spare.wait_for_line("world=2 total=3");
    let _ = team.take_job(2).wait();
    team.gate.open(2);
    spare.wait().expect_exit_code(0).expect_stdout("finished");
    team.take_job(1).wait().expect_exit_code(0).expect_stdout("finished");
    team.wait_for_all();
}

/// The dead node's rank is free for another agent, on whatever host.
#[test]
fn dead_static_node_is_replaced() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let gate = Gate::closed();
    let own = |host, rank| {
        let launch = static_launch(Name::Rankrun, "th1", 2, rank).args(["--lease", super::LEASE]);
        fleet.on(host, launch.worker(["place", "sum", &gate.step()])).start()
    };
    let (stays, dies) = (own(1, 0), own(2, 1));
    dies.wait_for_line("world=2 total=3");
    stays.wait_for_line("world=2 total=3");
    fleet.crash(2);
    let _ = dies.wait();
    let comes = own(3, 1);
    stays.wait_for_lines("world=2 total=3", 2);
    comes.wait_for_line("sum rank=1 world=2 total=3");
    gate.open(2);
    super::assert_all_succeed([stays, comes]);
    fleet.is_empty();
}

/// The lease is longer than the test: the death of the agent is noticed at once, and its place is free.
#[test]
fn killed_static_agent_is_replaced_at_once() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let gate = Gate::closed();
    let own = |host: usize| {
        let launch = static_launch(Name::Rankrun, "th1", 2, host - 1).args(["--lease", "10m"]);
        fleet.on(host, launch.worker(["place", "sum", &gate.step()])).start()
    };
    let (stays, dies) = (own(1), own(2));
    dies.wait_for_line("world=2 total=3");
    stays.wait_for_line("world=2 total=3");
    dies.signal_to(dies.only_child_of(dies.pid()), Signal::SIGKILL);
    let comes = own(2);
    comes.wait_for_line("sum rank=1 world=2 total=3");
    stays.wait_for_lines("world=2 total=3", 2);
    let _ = dies.wait();
    gate.open(2);
    super::assert_all_succeed([stays, comes]);
    fleet.is_empty();
}

/// The store is on host 3 and rank 0 on host 1. The agent of host 1 is killed: the others go on with another rank 0,
/// and a new agent of host 1 may join.
#[test]
fn rank_0_moves_without_moving_store() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let gate = Gate::closed();
    let start = |host| {
        let launch = c10d(Name::Rankrun, "th3:29400", "2:3").worker(["place", "sum", &gate.step()]);
        fleet.on(host, launch).start()
    };
    let jobs = [1, 2, 3].map(start);
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=3 total=6")));
    let [first, second, third] = jobs;
    first.wait_for_line("rank=0");
    for process in first.processes() {
        process.signal(Signal::SIGKILL);
    }
    drop(first.wait());
    for job in [&second, &third] {
        job.wait_for_line("world=2 total=3");
    }
    let back = start(1);
    back.wait_for_line("world=3 total=6");
    for job in [&second, &third] {
        job.wait_for_lines("world=3 total=6", 2);
    }
    gate.open(3);
    for job in [back, second, third] {
        job.wait().expect_exit_code(0).expect_absent("panicked");
    }
    fleet.is_empty();
}
