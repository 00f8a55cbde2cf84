//! `--numa-binding`: the CPUs that a worker may use when it begins.

use std::collections::BTreeSet;

use harness::{Machine, MachineTree, Outcome, can_use_namespaces, is_rankrun};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::{assert_refused, assignment_lines, launch_from_line};

/// Two cards, each on a NUMA node of one core with two threads: CPUs 0 and 2, and 1 and 3.
fn run_on_two_gpus(line: &str) -> Outcome {
    let tree = MachineTree::new().sockets(2, 1);
    let launch = launch_from_line(line).under(tree.stage()).on(&Machine::gpus(2));
    launch.shell("echo cpus rank=$RANK list=$$(grep Cpus_allowed_list /proc/self/status | cut -f 2)").run()
}

/// Those of the CPUs that this machine has and lets us use, as the kernel writes them.
fn usable_cpus(cpus: &[usize]) -> String {
    let permitted: CpuSet = sched_getaffinity(Pid::from_raw(0)).expect("a process may ask for its own");
    let is_permitted = |cpu: &&usize| permitted.is_set(**cpu).unwrap_or(false);
    let list: Vec<String> = cpus.iter().filter(is_permitted).map(ToString::to_string).collect();
    list.join(",")
}

#[test]
fn numa_binding_uses_cpus_near_gpu() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    let nodes = [usable_cpus(&[0, 2]), usable_cpus(&[1, 3])];
    if nodes.iter().any(String::is_empty) {
        harness::print_notice("skipped: CPUs 0 and 1 are not both ours");
        return;
    }
    for (line, order) in [
        ("rankrun --numa-binding node", [0, 1]),
        ("rankrun --numa-binding socket --devices 1,0", [1, 0]),
        ("rankrun --numa-binding core-complex --device-visibility own --devices 1,0", [1, 0]),
        ("CUDA_VISIBLE_DEVICES=1,0 torchrun --nproc-per-node 2 --numa-binding node", [1, 0]),
        ("torchrun --nproc-per-node 2 --numa-binding exclusive", [0, 1]),
    ] {
        let outcome = run_on_two_gpus(line);
        outcome.expect_exit_code(0);
        for (rank, node) in order.into_iter().enumerate() {
            outcome.expect_stdout(&format!("cpus rank={rank} list={}\n", nodes[node]));
        }
    }
}

#[test]
fn numa_binding_without_gpu_is_refused() {
    if is_rankrun() {
        assert_refused("rankrun --numa-binding node", &Machine::empty(), &["--numa-binding", "node"]);
        assert_refused("torchrun --numa-binding node", &Machine::empty(), &["--numa-binding"]);
    }
}

/// Two cards on the node that every machine has.
fn machine_with_one_node() -> Machine {
    let mut machine = Machine::gpus(2);
    for card in 0..2 {
        machine.card(card).numa = Some(0);
    }
    machine
}

#[test]
fn exclusive_binding_gives_distinct_cpus() {
    let say = "echo bound to $(grep Cpus_allowed_list /proc/self/status)";
    let outcome =
        launch_from_line("rankrun --numa-binding exclusive").on(&machine_with_one_node()).shell(say).run();
    if !outcome.lines_with("cores that may be used here, for 2 devices").is_empty() {
        // One core is not enough for two.
        outcome.expect_exit_code(1).expect_absent("bound to");
        return;
    }
    let lines = outcome.expect_exit_code(0).lines_with("bound to Cpus_allowed_list:");
    let lists: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().last()).collect();
    let different: BTreeSet<&str> = lists.iter().copied().collect();
    assert_eq!((lists.len(), different.len()), (2, 2), "{outcome}");
    for line in assignment_lines(&outcome, 2) {
        let cpus = line.rsplit_once(' ').map(|(_, cpus)| cpus).unwrap_or_default();
        assert!(line.contains(", CPU") && different.contains(cpus), "`{cpus}` is not bound\n{outcome}");
    }
}

#[test]
fn numa_binding_to_missing_node_is_refused() {
    if !is_rankrun() {
        return;
    }
    let mut machine = machine_with_one_node();
    machine.card(1).numa = Some(77);
    for name in ["rankrun", "torchrun --nproc-per-node 2"] {
        let line = format!("{name} --numa-binding node");
        assert_refused(&line, &machine, &["--numa-binding", "local rank 1", "no CPUs of NUMA node 77"]);
    }
}
