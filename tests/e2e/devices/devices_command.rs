//! `rankrun devices`.

use harness::{Fault, Lost, Machine, Outcome};
use serde_json::Value;

use super::launch_from_line;

#[track_caller]
fn run_devices(line: &str, machine: &Machine) -> Outcome {
    let outcome = launch_from_line(line).on(machine).run();
    outcome.expect_exit_code(0);
    outcome
}

#[track_caller]
fn devices_json(line: &str, machine: &Machine) -> Value {
    let outcome = run_devices(line, machine);
    serde_json::from_slice(outcome.stdout_bytes()).unwrap_or_else(|error| panic!("{error}\n{outcome}"))
}

#[test]
fn devices_table_lists_gpus() {
    let machine = Machine::mixed();
    let outcome = run_devices("rankrun devices", &machine);
    for card in 0..3 {
        outcome.expect_stdout(&machine.pci(card)).expect_stdout(machine.uuid(card));
    }
    for text in ["GTX 1080 Ti", "RTX 4090", "6.1", "8.9", "24.0 GiB", "23.5", "41", "120", "1980", "idle"] {
        outcome.expect_stdout(text);
    }
}

/// Each order, as it would assign devices to ranks: `fastest` is the driver's.
#[test]
fn devices_table_shows_each_order() {
    let outcome = run_devices("rankrun devices", &Machine::mixed());
    let of = |order: &str| {
        let line = outcome.stdout_lines().into_iter().find(|line| line.trim_start().starts_with(order));
        let line = line.unwrap_or_else(|| panic!("no order `{order}`\n{outcome}"));
        line.split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .collect::<Vec<u32>>()
    };
    assert_eq!(of("pci"), [0, 1, 2], "{outcome}");
    assert_eq!(of("fastest"), [1, 2, 0], "{outcome}");
}

#[test]
fn devices_json_has_identity_and_state() {
    let own = std::process::id();
    let machine = Machine::mixed().busy(2, own);
    let value = devices_json("rankrun devices --json", &machine);
    for card in 0..3 {
        let found = &value["devices"][card];
        assert_eq!(found["index"], card, "{value:#}");
        assert_eq!(found["uuid"], machine.uuid(card), "{value:#}");
        assert_eq!(found["pci"], machine.pci(card), "{value:#}");
        assert_eq!(found["answers"], true, "{value:#}");
        assert_eq!(found["state"]["temperature_celsius"], 41, "{value:#}");
        assert_eq!(found["state"]["power_milliwatts"], 120_000, "{value:#}");
    }
    assert_eq!(value["devices"][2]["state"]["processes"][0]["pid"], own, "{value:#}");
    let orders = value["orders"].as_array().expect("a list of orders");
    let of = |order: &str| orders.iter().find(|each| each["order"] == order).map(|each| &each["devices"]);
    assert_eq!(of("pci"), Some(&serde_json::json!([0, 1, 2])), "{value:#}");
    assert_eq!(of("fastest"), Some(&serde_json::json!([1, 2, 0])), "{value:#}");
}

/// A question too many costs its answer, and not the cards.
#[test]
fn failed_state_query_keeps_gpu_in_table() {
    for (fault, expected) in [(Fault::Crash, "SIGABRT"), (Fault::Hang, "did not answer")] {
        let machine = Machine::gpus(4).with_fault("nvmlDeviceGetTemperature", fault);
        let outcome = run_devices("RANKRUN_PROBE_TIMEOUT=1 rankrun devices", &machine);
        assert!(!outcome.lines_with(expected).is_empty(), "no `{expected}`\n{outcome}");
        for card in 0..4 {
            outcome.expect_stdout(&machine.pci(card)).expect_stdout(machine.uuid(card));
        }
    }
}

/// What a launch would not see is shown all the same, and marked.
#[test]
fn hidden_gpus_are_marked() {
    let value = devices_json("CUDA_VISIBLE_DEVICES=1 rankrun devices --json", &Machine::gpus(2));
    assert_eq!(value["devices"][0]["hidden_by"], "CUDA_VISIBLE_DEVICES", "{value:#}");
    assert_eq!(value["devices"][1]["hidden_by"], Value::Null, "{value:#}");
}

#[test]
fn unhealthy_state_is_shown() {
    let mut machine = Machine::gpus(4).hot(0).busy(1, 1).lost(3, Lost::Calls);
    machine.card(2).limit = Some(400_000);
    machine.card(2).ecc = Some(2);
    let outcome = run_devices("rankrun devices", &machine);
    for text in ["91", "400", "ECC", "lost", "20.0 GiB"] {
        assert!(!outcome.lines_with(text).is_empty(), "no `{text}`\n{outcome}");
    }
}

#[test]
fn devices_table_lists_mig_devices() {
    let machine = Machine::mig();
    let outcome = run_devices("rankrun devices", &machine);
    for (card, mig) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        outcome.expect_stdout(machine.mig_uuid(card, mig)).expect_stdout(&format!("{card}:{mig}"));
    }
}

#[test]
fn devices_without_gpu_succeeds() {
    run_devices("rankrun devices", &Machine::empty());
    let _ = devices_json("rankrun devices --json", &Machine::empty());
}

#[test]
fn devices_with_hanging_library_names_timeout() {
    for (fault, expected) in
        [(Fault::Hang, "did not answer"), (Fault::Crash, "SIGABRT"), (Fault::Error(9), "Driver Not")]
    {
        let machine = Machine::gpus(2).with_fault("nvmlInit_v2", fault);
        let outcome = launch_from_line("RANKRUN_PROBE_TIMEOUT=1 rankrun devices").on(&machine).run();
        assert!(outcome.status.code().is_some(), "{outcome}");
        assert!(!outcome.lines_with(expected).is_empty(), "no `{expected}`\n{outcome}");
    }
}
