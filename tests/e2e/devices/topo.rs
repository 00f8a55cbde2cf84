//! `rankrun topo`.

use harness::{Machine, MachineTree, Outcome, Slot, can_use_namespaces};
use serde_json::Value;

use super::launch_from_line;

/// The matrix: for each card's row the cells of the cards.
#[track_caller]
fn matrix(outcome: &Outcome, cards: usize) -> Vec<Vec<String>> {
    let is_row =
        |line: &&String| line.trim_start().starts_with("GPU") && line.split_whitespace().any(|c| c == "X");
    let rows: Vec<Vec<String>> = outcome
        .stdout_lines()
        .iter()
        .filter(is_row)
        .map(|line| line.split_whitespace().skip(1).take(cards).map(ToOwned::to_owned).collect())
        .collect();
    assert_eq!(rows.len(), cards, "one row for each card\n{outcome}");
    rows
}

#[track_caller]
fn topo(machine: &Machine) -> Outcome {
    let outcome = launch_from_line("rankrun topo").on(machine).run();
    outcome.expect_exit_code(0).expect_stdout("CPU Affinity").expect_stdout("NUMA Affinity");
    outcome
}

#[test]
fn topo_of_two_nvlinked_gpus() {
    let outcome = topo(&Machine::linked_pair());
    assert_eq!(matrix(&outcome, 2), [["X", "NV2"], ["NV2", "X"]], "{outcome}");
}

#[test]
fn topo_of_two_gpus_on_host_bridge() {
    let outcome = topo(&Machine::bridged_pair());
    assert_eq!(matrix(&outcome, 2), [["X", "PHB"], ["PHB", "X"]], "{outcome}");
}

#[test]
fn topo_of_eight_gpus_on_switch() {
    let outcome = topo(&Machine::switched());
    for (at, row) in matrix(&outcome, 8).iter().enumerate() {
        for (other, cell) in row.iter().enumerate() {
            assert_eq!(cell, if at == other { "X" } else { "NV18" }, "{outcome}");
        }
    }
}

#[test]
fn topo_of_two_pairs_on_two_numa_nodes() {
    let outcome = topo(&Machine::two_linked_pairs());
    let expected = [
        ["X", "NODE", "NV4", "SYS"],
        ["NODE", "X", "SYS", "NV4"],
        ["NV4", "SYS", "X", "NODE"],
        ["SYS", "NV4", "NODE", "X"],
    ];
    assert_eq!(matrix(&outcome, 4), expected, "{outcome}");
}

#[test]
fn topo_legend_explains_shown_links() {
    let outcome = topo(&Machine::linked_pair());
    let after = outcome.stdout();
    let legend = after.split("Legend").nth(1).unwrap_or_else(|| panic!("no legend\n{outcome}"));
    for link in ["X", "NV#", "PIX", "PXB", "PHB", "NODE", "SYS"] {
        assert!(legend.contains(link), "no `{link}`\n{outcome}");
    }
}

#[test]
fn topo_json_has_matrix_and_affinity() {
    let outcome = launch_from_line("rankrun topo --json").on(&Machine::switched()).run();
    outcome.expect_exit_code(0);
    let value: Value = serde_json::from_slice(outcome.stdout_bytes()).expect("one JSON document");
    for at in 0..8 {
        for other in 0..8 {
            let expected = if at == other { "X" } else { "NV18" };
            assert_eq!(value["matrix"][at][other], expected, "{outcome}");
        }
        assert_eq!(value["devices"][at]["numa_affinity"], at / 4, "{outcome}");
    }
}

/// From sysfs alone, with CPUs, NUMA nodes and network cards.
#[test]
fn topo_without_library_reads_sysfs() {
    if !can_use_namespaces() {
        return;
    }
    let tree = MachineTree::new().sockets(2, 4).amd(4).rdma("mlx5_0", &Slot::of(7, 8));
    let outcome = launch_from_line("rankrun topo").under(tree.stage()).run();
    outcome
        .expect_exit_code(0)
        .expect_stdout("XGMI")
        .expect_stdout("mlx5_0")
        .expect_stdout("0-3,8-11")
        .expect_stdout("4-7,12-15");
}

/// CPUs near the cards that NVML shows.
#[test]
fn topo_shows_cpu_and_numa_affinity() {
    if !can_use_namespaces() {
        return;
    }
    let uuids: Vec<String> = (0..2).map(|at| Machine::gpus(2).uuid(at).to_owned()).collect();
    let uuids: Vec<&str> = uuids.iter().map(String::as_str).collect();
    let mut machine = Machine::linked_pair();
    for at in 0..2 {
        machine.card(at).pci = Slot::of(at, 2).address.parse().expect("an address");
    }
    let tree = MachineTree::new().sockets(2, 4).nvidia("NVIDIA H100 80GB HBM3", &uuids);
    let outcome = launch_from_line("rankrun topo").under(tree.stage()).on(&machine).run();
    outcome.expect_exit_code(0).expect_stdout("NV2").expect_stdout("0-3,8-11");
}
