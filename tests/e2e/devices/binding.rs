//! `--numa-binding`: on which CPUs the workers really run.

use std::collections::BTreeSet;

use harness::Machine;

use super::{refused, seat_lines, typed};

/// Two cards on the node that every machine has.
fn two_on_one_node() -> Machine {
    let mut machine = Machine::gpus(2);
    for card in 0..2 {
        machine.card(card).numa = Some(0);
    }
    machine
}

#[test]
fn workers_run_on_cpus_of_their_own() {
    let say = "echo bound to $(grep Cpus_allowed_list /proc/self/status)";
    let outcome = typed("rankrun --numa-binding exclusive").on(&two_on_one_node()).shell(say).run();
    if !outcome.lines_with("cores that may be used here, for 2 devices").is_empty() {
        // One core is not enough for two.
        outcome.exits(1).never_says("bound to");
        return;
    }
    let lines = outcome.exits(0).lines_with("bound to Cpus_allowed_list:");
    let lists: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().last()).collect();
    let different: BTreeSet<&str> = lists.iter().copied().collect();
    assert_eq!((lists.len(), different.len()), (2, 2), "{outcome}");
    for line in seat_lines(&outcome, 2) {
        let told = line.rsplit_once(' ').map(|(_, cpus)| cpus).unwrap_or_default();
        assert!(line.contains(", CPU") && different.contains(told), "`{told}` is not so\n{outcome}");
    }
}

#[test]
fn under_torchruns_name_too() {
    let say = "echo bound to $(grep Cpus_allowed_list /proc/self/status)";
    let launch = typed("torchrun --numa-binding node --nproc-per-node 2").on(&two_on_one_node());
    let bound = launch.shell(say).run();
    assert_eq!(bound.exits(0).lines_with("bound to Cpus_allowed_list:").len(), 2, "{bound}");
}

#[test]
fn a_node_that_is_not_there() {
    let mut machine = two_on_one_node();
    machine.card(1).numa = Some(77);
    for name in ["rankrun", "torchrun --nproc-per-node 2"] {
        let line = format!("{name} --numa-binding node");
        refused(&line, &machine, &["--numa-binding", "local rank 1", "no CPUs of NUMA node 77"]);
    }
}
