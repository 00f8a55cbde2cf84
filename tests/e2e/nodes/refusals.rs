//! An agent that is of another job than the one it finds: it is refused with both values, and the job goes on.

use harness::{Fleet, Gate, Job, Launch, Name, only_ours, soak};

use super::{ENDPOINT, c10d, fixed, succeed};

/// A job of two of three hosts. The second one starts after the agent with other settings has been refused.
#[track_caller]
fn refused(right: impl Fn(usize) -> Launch, wrong: impl Fn(&Gate) -> Launch, both: &[&str]) {
    let Some(fleet) = Fleet::up(3) else { return };
    let gate = Gate::closed();
    let own = |host| fleet.on(host, right(host).worker(["seat", "sum", &gate.step()])).start();
    let first = own(1);
    first.line("1 of 2");
    let outcome = fleet.on(3, wrong(&gate)).run();
    outcome.exits(1).never_says("seat rank=").never_says("panicked");
    for value in both {
        outcome.complains(value);
    }
    let second = own(2);
    let jobs = [first, second];
    for job in &jobs {
        job.line("world=2 total=3");
    }
    gate.open(2);
    succeed(jobs);
    fleet.is_empty();
}

#[test]
fn another_number_of_nodes() {
    if only_ours() {
        let right = |_| c10d(Name::Rankrun, ENDPOINT, "2");
        let wrong = |gate: &Gate| c10d(Name::Rankrun, ENDPOINT, "2:5").worker(["seat", "sum", &gate.step()]);
        refused(right, wrong, &["--nnodes 2`", "--nnodes 2:5`", "th1"]);
    }
}

/// The others would go on without a node while its workers run until its own, longer lease is over.
#[test]
fn another_lease() {
    if only_ours() {
        let right = |_| c10d(Name::Rankrun, ENDPOINT, "2");
        let wrong = |gate: &Gate| {
            c10d(Name::Rankrun, ENDPOINT, "2").args(["--lease", "10"]).worker(["seat", "sum", &gate.step()])
        };
        refused(right, wrong, &["--lease 5s`", "--lease 10s`", "th1"]);
    }
}

#[test]
fn another_entrypoint() {
    if only_ours() {
        let right = |_| c10d(Name::Rankrun, ENDPOINT, "2");
        let wrong = |_: &Gate| c10d(Name::Rankrun, ENDPOINT, "2").shell("echo seat rank=");
        refused(right, wrong, &["`worker`", "`sh`", "th1"]);
    }
}

/// Of a static job; the first one has it.
#[test]
fn a_node_rank_that_is_taken() {
    if only_ours() {
        let right = |host| fixed(Name::Rankrun, "th1", 2, host - 1);
        let wrong = |gate: &Gate| fixed(Name::Rankrun, "th1", 2, 0).worker(["seat", "sum", &gate.step()]);
        // Node rank 0 would have to host the store on th1, where host 3 is not: it finds the store of host 1.
        refused(right, wrong, &["node rank", "0", "th1"]);
    }
}

/// All start in the same moment, and some are in the store before its host: the host goes on with the right node.
#[test]
fn static_nodes_with_wrong_nnodes_refuse_themselves_and_host_goes_on() {
    if !only_ours() {
        return;
    }
    let tries = if soak() { 60 } else { 5 };
    let Some(fleet) = Fleet::up(2) else { return };
    for _ in 0..tries {
        let own = |host, nodes, rank| {
            fleet.on(host, fixed(Name::Rankrun, "th1", nodes, rank).worker(["seat", "sum"]))
        };
        let wrong = [(3, 1), (3, 2), (4, 1), (4, 3)].map(|(nodes, rank)| own(1, nodes, rank).start());
        let host = own(1, 2, 0).start();
        for job in wrong {
            job.wait().exits(1).complains("--nnodes 2`").complains("th1").never_says("seat rank=");
        }
        for outcome in succeed([host, own(2, 2, 1).start()]) {
            outcome.says("world=2 total=3");
        }
        fleet.is_empty();
    }
    super::told("starts beside nodes of another number", tries);
}

/// A different budget is not a reason to refuse a node: the node with the failed worker decides.
#[test]
fn other_max_restarts_of_a_node_are_said_on_every_node() {
    if !only_ours() {
        return;
    }
    for meeting in
        [|_: usize| c10d(Name::Rankrun, ENDPOINT, "2"), |host| fixed(Name::Rankrun, "th1", 2, host - 1)]
            as [fn(usize) -> Launch; 2]
    {
        let Some(fleet) = Fleet::up(2) else { return };
        let start = |host: usize| {
            let launch = meeting(host).args(["--max-restarts", &host.to_string()]);
            fleet.on(host, launch.worker(["seat", "sum"])).start()
        };
        let outcomes = succeed(fleet.hosts().map(start).collect::<Vec<_>>());
        for (outcome, own, theirs, host) in [(&outcomes[0], 1, 2, "th2"), (&outcomes[1], 2, 1, "th1")] {
            let said = format!("`--max-restarts` is {own} on this node and {theirs} on ");
            let lines = outcome.lines_with(&said);
            assert!(matches!(&lines[..], [line] if line.contains(host)), "{outcome}");
        }
        fleet.is_empty();
    }
}

#[test]
fn a_node_rank_that_two_others_have() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(3) else { return };
    let own = |host, rank| {
        fleet.on(
            host,
            fixed(Name::Rankrun, "th1", 3, rank).args(["--rdzv-conf", "timeout=8"]).worker(["seat"]),
        )
    };
    let master = own(1, 0).start();
    let jobs = [own(2, 1).start(), own(3, 1).start()];
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    // The second agent is refused. The first one waits in vain for node rank 2.
    let refused = outcomes.iter().filter(|outcome| {
        let said = outcome.err();
        said.contains("node rank") && said.contains("th2") && said.contains("th3")
    });
    assert_eq!(refused.count(), 1, "{}\n{}", outcomes[0], outcomes[1]);
    outcomes.iter().for_each(|outcome| {
        outcome.exits(1).never_says("seat rank=");
    });
    master.wait().exits(1);
    fleet.is_empty();
}

/// Before anything is asked or opened: torchrun tries such a host for minutes.
#[test]
fn a_host_where_nobody_can_be() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        for host in ["th1:29400", "256.0.0.1", "255.255.255.255", "[ff02::1]", "[fe80::1]"] {
            let endpoint = format!("{host}:29400");
            let launch = c10d(*name, &endpoint, "2").worker(["seat"]);
            launch
                .run()
                .exits(1)
                .complains(&format!("`--rdzv-endpoint` is `{endpoint}`, whose host"))
                .complains("hint: ");
            let launch = fixed(*name, host, 2, 1).worker(["seat"]);
            launch.run().exits(1).complains(&format!("`--master-addr` is `{host}`"));
        }
    }
}

#[test]
fn a_host_that_nobody_knows_is_told_with_what_names_it() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(1) else { return };
    for name in Name::both() {
        let launch =
            Launch::new(*name).args(["--nnodes", "2", "--node-rank", "1", "--rdzv-conf", "timeout=1"]);
        let launch = launch.env("PET_MASTER_ADDR", "nope").worker(["seat"]);
        let outcome = fleet.on(1, launch).run();
        outcome
            .exits(1)
            .complains("cannot find the host `nope`, which `PET_MASTER_ADDR` names (tried for 1s)");
        let launch = Launch::new(*name).args(["--master-port", "29400", "--master-addr", "nope"]);
        let outcome = fleet.on(1, launch.worker(["seat"])).run();
        outcome
            .exits(1)
            .complains("cannot find an address of this machine for `nope`, which `--master-addr` names");
    }
}
