//! `rankrun devices`.

use harness::{Fault, Lost, Machine, Outcome};
use serde_json::Value;

use super::typed;

#[track_caller]
fn devices(line: &str, machine: &Machine) -> Outcome {
    let outcome = typed(line).on(machine).run();
    outcome.exits(0);
    outcome
}

#[track_caller]
fn json(line: &str, machine: &Machine) -> Value {
    let outcome = devices(line, machine);
    serde_json::from_slice(outcome.out_bytes()).unwrap_or_else(|error| panic!("{error}\n{outcome}"))
}

#[test]
fn the_table() {
    let machine = Machine::mixed();
    let outcome = devices("rankrun devices", &machine);
    for card in 0..3 {
        outcome.says(&machine.pci(card)).says(machine.uuid(card));
    }
    for text in ["GTX 1080 Ti", "RTX 4090", "6.1", "8.9", "24.0 GiB", "23.5", "41", "120", "1980", "idle"] {
        outcome.says(text);
    }
}

/// Each order, as it would seat the ranks: `fastest` is the driver's.
#[test]
fn the_orders() {
    let outcome = devices("rankrun devices", &Machine::mixed());
    let of = |order: &str| {
        let line = outcome.out_lines().into_iter().find(|line| line.trim_start().starts_with(order));
        let line = line.unwrap_or_else(|| panic!("no order `{order}`\n{outcome}"));
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect::<Vec<u32>>()
    };
    assert_eq!(of("pci"), [0, 1, 2], "{outcome}");
    assert_eq!(of("fastest"), [1, 2, 0], "{outcome}");
}

#[test]
fn as_data() {
    let own = std::process::id();
    let machine = Machine::mixed().busy(2, own);
    let value = json("rankrun devices --json", &machine);
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
fn a_state_that_cannot_be_asked_for_hides_no_card() {
    for (fault, words) in [(Fault::Crash, "SIGABRT"), (Fault::Hang, "did not answer")] {
        let machine = Machine::gpus(4).with_fault("nvmlDeviceGetTemperature", fault);
        let outcome = devices("RANKRUN_PROBE_TIMEOUT=1 rankrun devices", &machine);
        assert!(!outcome.lines_with(words).is_empty(), "no `{words}`\n{outcome}");
        for card in 0..4 {
            outcome.says(&machine.pci(card)).says(machine.uuid(card));
        }
    }
}

/// What a launch would not see is shown all the same, and marked.
#[test]
fn what_is_hidden_is_marked() {
    let value = json("CUDA_VISIBLE_DEVICES=1 rankrun devices --json", &Machine::gpus(2));
    assert_eq!(value["devices"][0]["hidden_by"], "CUDA_VISIBLE_DEVICES", "{value:#}");
    assert_eq!(value["devices"][1]["hidden_by"], Value::Null, "{value:#}");
}

#[test]
fn what_is_wrong_is_said() {
    let mut machine = Machine::gpus(4).hot(0).busy(1, 1).lost(3, Lost::Calls);
    machine.card(2).limit = Some(400_000);
    machine.card(2).ecc = Some(2);
    let outcome = devices("rankrun devices", &machine);
    for text in ["91", "400", "ECC", "lost", "20.0 GiB"] {
        assert!(!outcome.lines_with(text).is_empty(), "no `{text}`\n{outcome}");
    }
}

#[test]
fn mig_devices() {
    let machine = Machine::mig();
    let outcome = devices("rankrun devices", &machine);
    for (card, mig) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        outcome.says(machine.mig_uuid(card, mig)).says(&format!("{card}:{mig}"));
    }
}

#[test]
fn no_card() {
    devices("rankrun devices", &Machine::empty());
    let _ = json("rankrun devices --json", &Machine::empty());
}

#[test]
fn a_library_that_does_not_answer() {
    for (fault, words) in
        [(Fault::Hang, "did not answer"), (Fault::Crash, "SIGABRT"), (Fault::Error(9), "Driver Not")]
    {
        let machine = Machine::gpus(2).with_fault("nvmlInit_v2", fault);
        let outcome = typed("RANKRUN_PROBE_TIMEOUT=1 rankrun devices").on(&machine).run();
        assert!(outcome.status.code().is_some(), "{outcome}");
        assert!(!outcome.lines_with(words).is_empty(), "no `{words}`\n{outcome}");
    }
}
