//! An agent that is of another job than the one it finds: it is refused with both values, and the job goes on.

use harness::{Fleet, Gate, Job, Launch, Name, is_rankrun, is_soak};

use super::{ENDPOINT, assert_all_succeed, assert_two_nodes_succeed, c10d, static_launch};

/// A job of two of three hosts. The second one starts after the agent with other settings has been refused.
#[track_caller]
fn assert_refused(right: impl Fn(usize) -> Launch, wrong: impl Fn(&Gate) -> Launch, both: &[&str]) {
    let Some(fleet) = Fleet::start(3) else { return };
    let gate = Gate::closed();
    let own = |host| fleet.on(host, right(host).worker(["place", "sum", &gate.step()])).start();
    let first = own(1);
    first.wait_for_line("1 of 2");
    let outcome = fleet.on(3, wrong(&gate)).run();
    outcome.expect_exit_code(1).expect_absent("place rank=").expect_absent("panicked");
    for value in both {
        outcome.expect_stderr(value);
    }
    let second = own(2);
    assert_two_nodes_succeed([first, second], &gate);
    fleet.is_empty();
}

#[test]
fn different_nnodes_is_refused() {
    if is_rankrun() {
        let right = |_| c10d(Name::Rankrun, ENDPOINT, "2");
        let wrong = |gate: &Gate| c10d(Name::Rankrun, ENDPOINT, "2:5").worker(["place", "sum", &gate.step()]);
        assert_refused(right, wrong, &["--nnodes 2`", "--nnodes 2:5`", "th1"]);
    }
}

/// The others would go on without a node while its workers run until its own, longer lease is over.
#[test]
fn different_lease_is_refused() {
    if is_rankrun() {
        let right = |_| c10d(Name::Rankrun, ENDPOINT, "2");
        let wrong = |gate: &Gate| {
            c10d(Name::Rankrun, ENDPOINT, "2").args(["--lease", "10"]).worker(["place", "sum", &gate.step()])
        };
        assert_refused(right, wrong, &["--lease 5s`", "--lease 10s`", "th1"]);
    }
}

#[test]
fn different_entrypoint_is_refused() {
    if is_rankrun() {
        let right = |_| c10d(Name::Rankrun, ENDPOINT, "2");
        let wrong = |_: &Gate| c10d(Name::Rankrun, ENDPOINT, "2").shell("echo place rank=");
        assert_refused(right, wrong, &["`worker`", "`sh`", "th1"]);
    }
}

/// Of a static job; the first one has it.
#[test]
fn taken_node_rank_is_refused() {
    if is_rankrun() {
        let right = |host| static_launch(Name::Rankrun, "th1", 2, host - 1);
        let wrong =
            |gate: &Gate| static_launch(Name::Rankrun, "th1", 2, 0).worker(["place", "sum", &gate.step()]);
        // Node rank 0 would have to host the store on th1, where host 3 is not: it finds the store of host 1.
        assert_refused(right, wrong, &["node rank", "0", "th1"]);
    }
}

/// All start in the same moment, and some are in the store before its host: the host goes on with the right node.
#[test]
fn static_nodes_with_wrong_nnodes_end_and_host_continues() {
    if !is_rankrun() {
        return;
    }
    let tries = if is_soak() { 60 } else { 5 };
    let Some(fleet) = Fleet::start(2) else { return };
    for _ in 0..tries {
        let own = |host, nodes, rank| {
            fleet.on(host, static_launch(Name::Rankrun, "th1", nodes, rank).worker(["place", "sum"]))
        };
        let wrong = [(3, 1), (3, 2), (4, 1), (4, 3)].map(|(nodes, rank)| own(1, nodes, rank).start());
        let host = own(1, 2, 0).start();
        for job in wrong {
            job.wait()
                .expect_exit_code(1)
                .expect_stderr("--nnodes 2`")
                .expect_stderr("th1")
                .expect_absent("place rank=");
        }
        for outcome in assert_all_succeed([host, own(2, 2, 1).start()]) {
            outcome.expect_stdout("world=2 total=3");
        }
        fleet.is_empty();
    }
    super::report_soak("starts beside nodes of another number", tries);
}

/// A different budget is not a reason to refuse a node: the node with the failed worker decides.
#[test]
fn different_max_restarts_is_reported_on_every_node() {
    if !is_rankrun() {
        return;
    }
    for together in [
        |_: usize| c10d(Name::Rankrun, ENDPOINT, "2"),
        |host| static_launch(Name::Rankrun, "th1", 2, host - 1),
    ] as [fn(usize) -> Launch; 2]
    {
        let Some(fleet) = Fleet::start(2) else { return };
        let start = |host: usize| {
            let launch = together(host).args(["--max-restarts", &host.to_string()]);
            fleet.on(host, launch.worker(["place", "sum"])).start()
        };
        let outcomes = assert_all_succeed(fleet.hosts().map(start).collect::<Vec<_>>());
        for (outcome, own, other, host) in [(&outcomes[0], 1, 2, "th2"), (&outcomes[1], 2, 1, "th1")] {
            let message = format!("`--max-restarts` is {own} on this node and {other} on ");
            let lines = outcome.lines_with(&message);
            assert!(matches!(&lines[..], [line] if line.contains(host)), "{outcome}");
        }
        fleet.is_empty();
    }
}

#[test]
fn duplicate_node_rank_is_refused() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let own = |host, rank| {
        fleet.on(
            host,
            static_launch(Name::Rankrun, "th1", 3, rank).args(["--rdzv-conf", "timeout=8"]).worker(["place"]),
        )
    };
    let master = own(1, 0).start();
    let jobs = [own(2, 1).start(), own(3, 1).start()];
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    // The second agent is refused. The first one waits in vain for node rank 2.
    let refused = outcomes.iter().filter(|outcome| {
        let stderr = outcome.stderr();
        stderr.contains("node rank") && stderr.contains("th2") && stderr.contains("th3")
    });
    assert_eq!(refused.count(), 1, "{}\n{}", outcomes[0], outcomes[1]);
    outcomes.iter().for_each(|outcome| {
        outcome.expect_exit_code(1).expect_absent("place rank=");
    });
    master.wait().expect_exit_code(1);
    fleet.is_empty();
}

/// Before anything is asked or opened: torchrun tries such a host for minutes.
#[test]
fn invalid_endpoint_host_is_refused() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        for host in ["th1:29400", "256.0.0.1", "255.255.255.255", "[ff02::1]", "[fe80::1]"] {
            let endpoint = format!("{host}:29400");
            let launch = c10d(*name, &endpoint, "2").worker(["place"]);
            launch
                .run()
                .expect_exit_code(1)
                .expect_stderr(&format!("`--rdzv-endpoint` is `{endpoint}`, whose host"))
                .expect_stderr("hint: ");
            let launch = static_launch(*name, host, 2, 1).worker(["place"]);
            launch.run().expect_exit_code(1).expect_stderr(&format!("`--master-addr` is `{host}`"));
        }
    }
}

#[test]
fn unresolvable_host_error_names_its_option() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    for name in Name::both() {
        let launch =
            Launch::new(*name).args(["--nnodes", "2", "--node-rank", "1", "--rdzv-conf", "timeout=1"]);
        let launch = launch.env("PET_MASTER_ADDR", "nope").worker(["place"]);
        let outcome = fleet.on(1, launch).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("cannot find the host `nope`, which `PET_MASTER_ADDR` names (tried for 1s)");
        let launch = Launch::new(*name).args(["--master-port", "29400", "--master-addr", "nope"]);
        let outcome = fleet.on(1, launch.worker(["place"])).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("cannot find an address of this machine for `nope`, which `--master-addr` names");
    }
}
