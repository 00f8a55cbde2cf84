//! `rankrun explain` on machines with accelerators.

use harness::{Fault, Machine};
use serde_json::Value;

use super::launch_from_line;

#[test]
fn explain_shows_device_of_each_rank() {
    let machine = Machine::gpus(4);
    let outcome = launch_from_line("rankrun explain --devices 3,1").on(&machine).worker(["alive"]).run();
    outcome.expect_exit_code(0).expect_absent("alive rank=");
    for card in [3, 1] {
        outcome.expect_stdout(&machine.pci(card)).expect_stdout("NVIDIA H100");
    }
    for (variable, value) in [("CUDA_VISIBLE_DEVICES", "3,1"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")] {
        let lines = outcome.lines_with(variable);
        assert!(lines.iter().any(|line| line.split_whitespace().nth(1) == Some(value)), "{outcome}");
    }
}

#[test]
fn explain_json_has_devices() {
    let machine = Machine::gpus(4);
    let outcome =
        launch_from_line("rankrun explain --json --devices 3,1").on(&machine).worker(["alive"]).run();
    outcome.expect_exit_code(0);
    let plan: Value = serde_json::from_slice(outcome.stdout_bytes()).expect("one JSON document");
    let text = plan.to_string();
    for card in [3, 1] {
        assert!(text.contains(&machine.pci(card)), "{outcome}");
        assert!(text.contains(machine.uuid(card)), "{outcome}");
    }
}

#[test]
fn explain_refuses_invalid_devices() {
    let outcome =
        launch_from_line("rankrun explain --devices 9").on(&Machine::gpus(2)).worker(["alive"]).run();
    outcome.expect_exit_code(1).expect_stderr("index 9");
    let machine = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Crash).without_library("libcuda.so.1");
    let machine = machine.without_library("libcuda.so");
    let outcome = launch_from_line("rankrun explain --devices 1").on(&machine).worker(["alive"]).run();
    outcome.expect_exit_code(1).expect_stderr("SIGABRT");
}
