//! Nodes that die, leave, join and join again, while no worker fails.

use std::time::Duration;

use harness::{Fleet, Gate, Name, Process, field, only_ours};
use nix::sys::signal::Signal;

use super::{ENDPOINT, Team, c10d, fixed};

/// Longer than the test: peers must notice a lost node at once, without its lease.
const NO_LEASE: [&str; 2] = ["--lease", "600"];

#[test]
fn a_killed_agent_is_noticed_at_once_and_a_new_one_let_in() {
    if !only_ours() {
        return;
    }
    // The one that hosts the store, too, notices by the connections, not by the lease.
    let Some(mut team) = Team::start(3, "1:3", &[]) else { return };
    team.job(3).signal_to(team.agent(3), Signal::SIGKILL);
    team.meets(2, &[(1, 1), (2, 1)]);
    team.job(3).leaves_nothing_within(Duration::from_secs(10));
    let _ = team.take(3).wait();
    team.begin(3);
    team.meets(3, &[(1, 2), (2, 2), (3, 1)]);
    team.finishes(&[1, 2, 3]);
}

/// Nothing but the closed connections tells: the lease is longer than the test.
#[test]
fn a_killed_agent_is_noticed_without_any_lease() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let gate = Gate::closed();
    let own = |host| {
        let launch =
            c10d(Name::Rankrun, ENDPOINT, "1:2").args(NO_LEASE).worker(["seat", "sum", &gate.step()]);
        fleet.on(host, launch).start()
    };
    let (stays, dies) = (own(1), own(2));
    stays.line("world=2 total=3");
    dies.line("world=2 total=3");
    // The guard dies too, so no process of the node is left to report.
    for process in dies.processes() {
        process.signal(Signal::SIGKILL);
    }
    stays.line("world=1 total=1");
    gate.open(1);
    stays.wait().exits(0);
    drop(dies);
    fleet.is_empty();
}

#[test]
fn leaving_is_not_closing_and_who_left_may_come_back() {
    if !only_ours() {
        return;
    }
    let Some(mut team) = Team::start(3, "2:3", &[]) else { return };
    team.job(2).signal(Signal::SIGTERM);
    team.take(2).wait().exits(128 + Signal::SIGTERM as i32);
    team.meets(2, &[(1, 1), (3, 1)]);
    team.begin(2);
    team.meets(3, &[(1, 2), (3, 2), (2, 1)]);
    team.finishes(&[1, 2, 3]);
}

/// Node 1 keeps rank 0, node 3 its rank 2, and the node that replaces node 2 gets rank 1.
#[test]
fn ranks_are_kept_and_gaps_are_filled() {
    if !only_ours() {
        return;
    }
    let Some(mut team) = Team::start(3, "3", &[]) else { return };
    let seat = |team: &Team, host: usize| {
        let line = team.job(host).lines("seat rank=", 1).pop().expect("a seat");
        field(&line, "rank").map(str::to_owned).expect("a rank")
    };
    let before = [1, 2, 3].map(|host| seat(&team, host));
    team.job(2).signal_to(team.agent(2), Signal::SIGKILL);
    let _ = team.take(2).wait();
    team.begin(2);
    team.meets(3, &[(1, 2), (3, 2), (2, 1)]);
    assert_eq!([1, 2, 3].map(|host| seat(&team, host)), before);
    team.finishes(&[1, 2, 3]);
}

/// Below MIN nodes the launcher waits, names the missing nodes, and gives up after the join timeout.
#[test]
fn below_the_smallest_number_the_missing_node_is_named() {
    if !only_ours() {
        return;
    }
    let Some(mut team) = Team::start(2, "2", &["--rdzv-conf", "join_timeout=6"]) else { return };
    let worker = Process::open(team.worker(1)).expect("the worker lives");
    team.fleet.crash(2);
    team.job(1).outlived_by_none(&[worker], Duration::from_secs(30));
    let outcome = team.take(1).wait();
    outcome.exits(1).complains("th2").complains("1 of 2");
    team.ends();
}

#[test]
fn a_spare_host_takes_over() {
    if !only_ours() {
        return;
    }
    let Some(mut team) = Team::start(2, "2", &[]) else { return };
    // A third host, for which the job has no seat: it is a spare until host 2 is lost.
    let spare = c10d(Name::Rankrun, ENDPOINT, "2").args(["--lease", super::LEASE]);
    let steps = ["seat", "reduce=3", "sum", &team.gate.step(), "reduce=3", "print=finished"];
    let spare = team.fleet.on(0, spare.worker(steps)).start();
    spare.line("spare");
    team.fleet.crash(2);
    team.meets(2, &[(1, 2)]);
    spare.line("world=2 total=3");
    let _ = team.take(2).wait();
    team.gate.open(2);
    spare.wait().exits(0).says("finished");
    team.take(1).wait().exits(0).says("finished");
    team.ends();
}

/// The dead node's rank is free for another agent, on whatever host.
#[test]
fn a_dead_static_node_is_replaced() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(3) else { return };
    let gate = Gate::closed();
    let own = |host, rank| {
        let launch = fixed(Name::Rankrun, "th1", 2, rank).args(["--lease", super::LEASE]);
        fleet.on(host, launch.worker(["seat", "sum", &gate.step()])).start()
    };
    let (stays, dies) = (own(1, 0), own(2, 1));
    dies.line("world=2 total=3");
    stays.line("world=2 total=3");
    fleet.crash(2);
    let _ = dies.wait();
    let comes = own(3, 1);
    stays.lines("world=2 total=3", 2);
    comes.line("sum rank=1 world=2 total=3");
    gate.open(2);
    super::succeed([stays, comes]);
    fleet.is_empty();
}

/// The lease is longer than the test: that the agent is dead is known as soon as it is, and its seat is free.
#[test]
fn a_killed_static_agent_is_replaced_at_once() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let gate = Gate::closed();
    let own = |host: usize| {
        let launch = fixed(Name::Rankrun, "th1", 2, host - 1).args(["--lease", "10m"]);
        fleet.on(host, launch.worker(["seat", "sum", &gate.step()])).start()
    };
    let (stays, dies) = (own(1), own(2));
    dies.line("world=2 total=3");
    stays.line("world=2 total=3");
    dies.signal_to(dies.only_child_of(dies.pid()), Signal::SIGKILL);
    let comes = own(2);
    comes.line("sum rank=1 world=2 total=3");
    stays.lines("world=2 total=3", 2);
    let _ = dies.wait();
    gate.open(2);
    super::succeed([stays, comes]);
    fleet.is_empty();
}

/// The store is on host 3 and rank 0 on host 1. The agent of host 1 is killed: the others go on with another rank 0,
/// and a new agent of host 1 may join.
#[test]
fn rank_0_moves_while_the_store_stays() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(3) else { return };
    let gate = Gate::closed();
    let start = |host| {
        let launch = c10d(Name::Rankrun, "th3:29400", "2:3").worker(["seat", "sum", &gate.step()]);
        fleet.on(host, launch).start()
    };
    let jobs = [1, 2, 3].map(start);
    jobs.iter().for_each(|job| drop(job.line("world=3 total=6")));
    let [first, second, third] = jobs;
    first.line("rank=0");
    for process in first.processes() {
        process.signal(Signal::SIGKILL);
    }
    drop(first.wait());
    for job in [&second, &third] {
        job.line("world=2 total=3");
    }
    let back = start(1);
    back.line("world=3 total=6");
    for job in [&second, &third] {
        job.lines("world=3 total=6", 2);
    }
    gate.open(3);
    for job in [back, second, third] {
        job.wait().exits(0).never_says("panicked");
    }
    fleet.is_empty();
}
