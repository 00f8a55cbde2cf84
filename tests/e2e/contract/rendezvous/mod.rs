//! Appendix A, "Rendezvous": several agents on one machine. On hosts of their own they are in `crate::nodes`.

mod agents;

use std::time::Duration;

use harness::{Gate, Job, Launch, Name, Scratch, Store, field, free_port, is_rankrun, library};
use nix::sys::signal::Signal;

use super::pair::run_both_expect_equal;
use agents::{
    ALONE, WORLD_OF_TWO, agent_launch, exit_codes, hostless_agent_launch, parse_placement, run_together,
    sorted_placements,
};

/// Long enough for two starts of Python on a busy machine.
const JOINS: &str = "join_timeout=60";

#[test]
fn two_nodes() {
    let found = run_both_expect_equal(|name| {
        let store = Store::open();
        let outcomes =
            run_together([0, 1].map(|_| hostless_agent_launch(name, &store, "2", JOINS).worker(["place"])));
        (exit_codes(&outcomes), sorted_placements(&outcomes))
    });
    assert_eq!(found.0, [Some(0), Some(0)]);
    assert_eq!(found.1, WORLD_OF_TWO);
}

#[test]
fn same_machine_host() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("localhost:{}", free_port());
        let outcomes =
            run_together([0, 1].map(|_| agent_launch(name, &endpoint, "2", JOINS).worker(["place"])));
        (exit_codes(&outcomes), sorted_placements(&outcomes))
    });
    assert_eq!(found.0, [Some(0), Some(0)]);
    assert_eq!(found.1, WORLD_OF_TWO);
}

#[test]
fn node_order() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("localhost:{}", free_port());
        let of = |address: &str| agent_launch(name, &endpoint, "2", JOINS).args(["--local-addr", address]);
        let outcomes = run_together(["localhost", "127.0.0.1"].map(|address| of(address).worker(["place"])));
        outcomes.iter().map(|outcome| sorted_placements(std::slice::from_ref(outcome))).collect::<Vec<_>>()
    });
    assert_eq!(found, [[WORLD_OF_TWO[1]], [WORLD_OF_TWO[0]]]);
}

#[test]
fn elastic_min() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("localhost:{}", free_port());
        let conf = format!("{JOINS},last_call_timeout=3");
        let outcomes = run_together([agent_launch(name, &endpoint, "1:2", &conf).worker(["place"])]);
        (exit_codes(&outcomes), sorted_placements(&outcomes), outcomes[0].took >= Duration::from_secs(3))
    });
    assert_eq!(found, (vec![Some(0)], ALONE.map(str::to_owned).to_vec(), true));
}

#[test]
fn elastic_max() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("localhost:{}", free_port());
        // Longer than the test may take: an agent that waits for the last call fails it.
        let conf = "join_timeout=1000,last_call_timeout=900";
        let outcomes =
            run_together([0, 1].map(|_| agent_launch(name, &endpoint, "1:2", conf).worker(["place"])));
        (exit_codes(&outcomes), sorted_placements(&outcomes))
    });
    assert_eq!(found.0, [Some(0), Some(0)]);
    assert_eq!(found.1, WORLD_OF_TWO);
}

#[test]
fn join_timeout() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("localhost:{}", free_port());
        let outcomes = run_together([agent_launch(name, &endpoint, "2", "join_timeout=4").worker(["place"])]);
        (exit_codes(&outcomes), sorted_placements(&outcomes), outcomes[0].took >= Duration::from_secs(4))
    });
    assert_eq!(found, (vec![Some(1)], vec![], true));
}

#[test]
fn no_store() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("127.0.0.1:{}", free_port());
        let launch = agent_launch(name, &endpoint, "2", "is_host=0,read_timeout=4");
        exit_codes(&run_together([launch.worker(["place"])]))
    });
    assert_eq!(found, [Some(1)]);
}

/// A node of a static job.
fn static_node_launch(name: Name, nodes: &str, rank: &str, port: u16, conf: &str) -> Launch {
    let launch = Launch::new(name).args(["--nnodes", nodes, "--node-rank", rank, "--nproc-per-node", "1"]);
    let launch = launch.args(["--master-addr", "127.0.0.1", "--master-port", &port.to_string()]);
    launch.args(["--rdzv-conf", conf])
}

#[test]
fn static_two() {
    let found = run_both_expect_equal(|name| {
        let port = free_port();
        let of = |rank| static_node_launch(name, "2", rank, port, "timeout=60").worker(["place"]);
        let outcomes = run_together(["1", "0"].map(of));
        let master = format!(" addr=127.0.0.1 port={port} ");
        let has_master = outcomes.iter().all(|outcome| outcome.lines_with(&master).len() == 1);
        let own: Vec<_> =
            outcomes.iter().map(|outcome| sorted_placements(std::slice::from_ref(outcome))).collect();
        (exit_codes(&outcomes), own, has_master)
    });
    let own = [[WORLD_OF_TWO[1].to_owned()].to_vec(), [WORLD_OF_TWO[0].to_owned()].to_vec()];
    assert_eq!(found, (vec![Some(0), Some(0)], own.to_vec(), true));
}

#[test]
fn static_no_peer() {
    let found = run_both_expect_equal(|name| {
        // Each alone, on a port of its own.
        let of = |rank| static_node_launch(name, "2", rank, free_port(), "timeout=4").worker(["place"]);
        let outcomes = run_together(["0", "1"].map(of));
        (exit_codes(&outcomes), sorted_placements(&outcomes))
    });
    assert_eq!(found, (vec![Some(1), Some(1)], vec![]));
}

/// A job of one node on a store that no agent hosts, and another agent that has come too.
#[track_caller]
fn start_with_spare(name: Name, store: &Store, gate: &Gate) -> (Job, Job) {
    let conf = format!("{JOINS},keep_alive_interval=1,keep_alive_max_attempt=3");
    let own = || {
        hostless_agent_launch(name, store, "1", &conf)
            .args(lease_options(name))
            .worker(["place", &gate.step()])
    };
    let first = own().start();
    first.wait_for_line("place rank=");
    (first, own().start())
}

/// A short lease, where the launcher knows it.
fn lease_options(name: Name) -> &'static [&'static str] {
    if name == Name::Rankrun { &["--lease", "2"] } else { &[] }
}

#[test]
fn spare() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let (store, scratch) = (Store::open(), Scratch::new());
        let gate = Gate::new(&scratch, "gate");
        let (first, second) = start_with_spare(*name, &store, &gate);
        // It says that it waits as a spare.
        second.wait_for_line("spare");
        gate.open(1);
        first.wait().expect_exit_code(0);
        second.wait().expect_exit_code(0).expect_absent("place rank=");
    }
}

#[test]
fn spare_takes_over() {
    let found = run_both_expect_equal(|name| {
        let (store, scratch) = (Store::open(), Scratch::new());
        let gate = Gate::new(&scratch, "gate");
        let (first, second) = start_with_spare(name, &store, &gate);
        for process in first.processes() {
            process.signal(Signal::SIGKILL);
        }
        second.wait_for_line("place rank=");
        gate.open(1);
        let outcome = second.wait();
        (outcome.status.code(), sorted_placements(&[outcome]))
    });
    assert_eq!(found, (Some(0), ALONE.map(str::to_owned).to_vec()));
}

#[test]
fn closed() {
    let found = run_both_expect_equal(|name| {
        let store = Store::open();
        let own = || hostless_agent_launch(name, &store, "1", JOINS).worker(["place"]);
        let outcomes = [own().run(), own().run()];
        (exit_codes(&outcomes), sorted_placements(&outcomes))
    });
    assert_eq!(found, (vec![Some(0), Some(1)], ALONE.map(str::to_owned).to_vec()));
}

#[test]
fn fail_restarts_all() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("localhost:{}", free_port());
        let scratch = Scratch::new();
        let step = format!("first={},0,3", scratch.folder("attempts", 0o777));
        // The first address has rank 0.
        let own = |address: &str| {
            let launch = agent_launch(name, &endpoint, "2", JOINS).args(["--local-addr", address]);
            launch.args(["--max-restarts", "1"]).worker(["place", &step])
        };
        let outcomes = run_together([own("127.0.0.1"), own("localhost")]);
        let placements = outcomes[1].lines_with("place rank=");
        let attempt_counts: Vec<_> = outcomes
            .iter()
            .map(|outcome| {
                let lines = outcome.lines_with("place rank=");
                lines.iter().filter_map(|line| field(line, "attempt").map(str::to_owned)).collect::<Vec<_>>()
            })
            .collect();
        let worlds: Vec<_> =
            placements.iter().filter_map(|line| field(line, "world").map(str::to_owned)).collect();
        (exit_codes(&outcomes), attempt_counts, worlds)
    });
    assert_eq!(found.0, [Some(0), Some(0)]);
    // The count is each agent's own.
    assert_eq!(found.1, [["0", "1"], ["0", "0"]]);
    assert_eq!(found.2, ["2", "2"]);
}

/// Two agents with workers that meet at the store, wait for the gate, and end.
#[track_caller]
fn elastic_agent_launch(name: Name, endpoint: &str, nodes: &str, gate: &Gate) -> Launch {
    let conf = format!("{JOINS},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3");
    agent_launch(name, endpoint, nodes, &conf).args(lease_options(name)).worker([
        "place",
        "sum",
        &gate.step(),
    ])
}

#[test]
fn scale_up() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let (gate, endpoint) = (Gate::new(&scratch, "gate"), format!("localhost:{}", free_port()));
        let first = elastic_agent_launch(*name, &endpoint, "1:2", &gate).start();
        assert_eq!(parse_placement(&first.wait_for_line("place rank=")), ALONE[0]);
        let second = elastic_agent_launch(*name, &endpoint, "1:2", &gate).start();
        first.wait_for_line("sum rank=0 world=2 total=3");
        second.wait_for_line("sum rank=1 world=2 total=3");
        gate.open(2);
        for outcome in [first, second].map(Job::wait) {
            outcome.expect_exit_code(0);
        }
    }
}

#[test]
fn replace() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let (store, scratch) = (Store::open(), Scratch::new());
        let gate = Gate::new(&scratch, "gate");
        let conf = format!("{JOINS},keep_alive_interval=1,keep_alive_max_attempt=3");
        let own = || {
            hostless_agent_launch(*name, &store, "2", &conf).args(lease_options(*name)).worker([
                "place",
                "sum",
                &gate.step(),
            ])
        };
        let [first, second] = [own().start(), own().start()];
        first.wait_for_line("world=2 total=3");
        for process in second.processes() {
            process.signal(Signal::SIGKILL);
        }
        let third = own().start();
        third.wait_for_line("world=2 total=3");
        first.wait_for_lines("world=2 total=3", 2);
        gate.open(2);
        for outcome in [first, third].map(Job::wait) {
            outcome.expect_exit_code(0);
        }
    }
}

#[test]
fn peer_fails() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let endpoint = format!("localhost:{}", free_port());
        let own = |address: &str| {
            let launch = agent_launch(*name, &endpoint, "2", JOINS).args(["--local-addr", address]);
            launch.worker(["place", "sum", "rank0:exit=3", "forever"]).start()
        };
        let outcomes = ["127.0.0.1", "localhost"].map(own).map(Job::wait);
        let expected = [name.code(3), 1].map(Some);
        assert_eq!(exit_codes(&outcomes), expected, "{}\n{}", outcomes[0], outcomes[1]);
    }
}

#[test]
fn clock_skew() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let endpoint = format!("localhost:{}", free_port());
        let own = || agent_launch(*name, &endpoint, "2", JOINS).worker(["place", "sum"]);
        let slow = own().env("LD_PRELOAD", library("fake_clock")).env("FAKE_CLOCK_SHIFT", "-20").start();
        let outcomes = [slow, own().start()].map(Job::wait);
        assert_eq!(exit_codes(&outcomes), [Some(0), Some(0)], "{}\n{}", outcomes[0], outcomes[1]);
        assert_eq!(sorted_placements(&outcomes), WORLD_OF_TWO);
    }
}

#[test]
fn mixed() {
    let endpoints = [0, 1].map(|_| format!("localhost:{}", free_port()));
    // Either hosts the store once.
    let pairs = endpoints.iter().zip([["1", "0"], ["0", "1"]]).map(|(endpoint, hosts)| {
        let names = [Name::Rankrun, Name::Reference];
        let own = |(name, host): (Name, &str)| {
            agent_launch(name, endpoint, "2", &format!("{JOINS},is_host={host}")).worker(["place"]).start()
        };
        let mut both = names.into_iter().zip(hosts).map(own);
        [both.next().expect("two"), both.next().expect("two")]
    });
    for jobs in pairs.collect::<Vec<_>>() {
        let outcomes = jobs.map(Job::wait);
        assert_eq!(exit_codes(&outcomes), [Some(0), Some(0)], "{}\n{}", outcomes[0], outcomes[1]);
        assert_eq!(sorted_placements(&outcomes), WORLD_OF_TWO);
    }
}
