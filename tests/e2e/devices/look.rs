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
    let machine = Machine::gpus(2).busy(1, std::process::id());
    let value = json("rankrun devices --json", &machine);
    let text = value.to_string();
    for card in 0..2 {
        assert!(text.contains(machine.uuid(card)) && text.contains(&machine.pci(card)), "{text}");
    }
    assert!(text.contains(&std::process::id().to_string()), "the process is there: {text}");
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

/// In a terminal the table stays in its place, and what changed is marked.
#[test]
fn watched() {
    let machine = Machine::gpus(2);
    let launch = typed("rankrun devices --watch").terminal().on(&machine);
    let description = launch.machine_file();
    let job = launch.start();
    job.text(" 41");
    let _ = machine.hot(1).describe(&description);
    job.text("91");
    job.signal(nix::sys::signal::Signal::SIGINT);
    let outcome = job.wait();
    // Home or up, and reverse video or another mark; never a second screenful below the first.
    assert!(outcome.out().contains("\u{1b}["), "{:?}", outcome.out());
}
