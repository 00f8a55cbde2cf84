//! `rankrun explain` on machines with accelerators.

use harness::{Fault, Machine};
use serde_json::Value;

use super::typed;

#[test]
fn each_rank_has_its_device() {
    let machine = Machine::gpus(4);
    let outcome = typed("rankrun explain --devices 3,1").on(&machine).worker(["alive"]).run();
    outcome.exits(0).never_says("alive rank=");
    for card in [3, 1] {
        outcome.says(&machine.pci(card)).says("NVIDIA H100");
    }
    for (variable, value) in [("CUDA_VISIBLE_DEVICES", "3,1"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")] {
        let lines = outcome.lines_with(variable);
        assert!(lines.iter().any(|line| line.split_whitespace().nth(1) == Some(value)), "{outcome}");
    }
}

#[test]
fn as_data() {
    let machine = Machine::gpus(4);
    let outcome = typed("rankrun explain --json --devices 3,1").on(&machine).worker(["alive"]).run();
    outcome.exits(0);
    let plan: Value = serde_json::from_slice(outcome.out_bytes()).expect("one JSON document");
    let text = plan.to_string();
    for card in [3, 1] {
        assert!(text.contains(&machine.pci(card)), "{outcome}");
        assert!(text.contains(machine.uuid(card)), "{outcome}");
    }
}

#[test]
fn a_refusal_is_the_same() {
    let outcome = typed("rankrun explain --devices 9").on(&Machine::gpus(2)).worker(["alive"]).run();
    outcome.exits(1).complains("index 9");
    let machine = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Crash).without_library("libcuda.so.1");
    let machine = machine.without_library("libcuda.so");
    let outcome = typed("rankrun explain --devices 1").on(&machine).worker(["alive"]).run();
    outcome.exits(1).complains("SIGABRT");
}
