//! Which device each worker really gets. The oracle is never the launcher: every worker opens the (fake) library of the
//! vendor under its own environment and says what its `LOCAL_RANK` selects there.

mod after_failure;
mod bad_input;
mod binding;
mod counters;
mod cpu;
mod device_health;
mod device_order;
mod devices_command;
mod explain;
mod hugging_face_guides;
mod inherited_lists;
mod libraries;
mod mig;
mod topo;
mod vendors;
mod worker_counts;
mod worker_environment;

use harness::{Launch, Machine, Name, Outcome, field};

/// A launch as one types it: `NAME=value …`, the launcher's name, its options. On one node, with no fixed port.
fn launch_from_line(line: &str) -> Launch {
    let mut tokens = line.split_whitespace();
    let mut environment = Vec::new();
    let name = loop {
        match tokens.next().expect("the line names a launcher") {
            "torchrun" => break Name::Torchrun,
            "rankrun" => break Name::Rankrun,
            variable => environment.push(variable.split_once('=').expect("a variable has a value")),
        }
    };
    let tokens: Vec<&str> = tokens.collect();
    let launch = match tokens.first() {
        // Commands of their own.
        Some(&("devices" | "topo" | "explain")) => Launch::new(name),
        _ => Launch::new(name).args(["--standalone"]),
    };
    let launch = launch.args(tokens);
    environment.into_iter().fold(launch, |launch, (name, value)| launch.env(name, value))
}

/// What a worker found.
#[derive(Debug, PartialEq, Eq)]
struct WorkerDevice {
    local_rank: usize,
    /// How many devices it sees, or the library's error.
    visible: String,
    /// The identity of its own; `none` where there is none.
    identity: String,
}

/// What the workers found, by rank.
#[track_caller]
fn worker_devices(outcome: &Outcome) -> Vec<WorkerDevice> {
    let mut all: Vec<(usize, WorkerDevice)> = outcome
        .lines_with("device rank=")
        .iter()
        .map(|line| {
            let of = |key| field(line, key).unwrap_or_else(|| panic!("`{line}` lacks `{key}`\n{outcome}"));
            let number = |key| of(key).parse().unwrap_or_else(|_| panic!("`{line}`\n{outcome}"));
            let got = WorkerDevice {
                local_rank: number("local_rank"),
                visible: of("sees").into(),
                identity: of("is").into(),
            };
            (number("rank"), got)
        })
        .collect();
    all.sort_by_key(|(rank, _)| *rank);
    assert!(
        (0..).zip(&all).all(|(rank, (rank_in_line, _))| rank == *rank_in_line),
        "not each rank once\n{outcome}"
    );
    all.into_iter().map(|(_, got)| got).collect()
}

/// Runs a launch with workers that query the CUDA driver, and fails unless each rank has the card given for it.
/// If the launcher prints the assignment beforehand, that must be the same.
#[track_caller]
fn assert_devices(line: &str, machine: &Machine, cards: &[usize]) -> Outcome {
    assert_launch_devices(launch_from_line(line), machine, cards)
}

#[track_caller]
fn assert_launch_devices(launch: Launch, machine: &Machine, cards: &[usize]) -> Outcome {
    let outcome = launch.on(machine).worker(["device=cuda"]).run();
    outcome.expect_exit_code(0);
    let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
    let expected: Vec<_> = cards.iter().map(|card| machine.uuid(*card)[4..].to_owned()).collect();
    assert_eq!(is, expected, "{outcome}");
    assert_lines_are_true(&outcome, |rank| machine.pci(cards[rank]));
    outcome
}

const DRIVER_DECIDES: &str = "the driver decides";

/// Fails unless each line about a worker has the name or address of the device that the worker got, or says that the
/// driver decides. How many lines name a device.
#[track_caller]
fn assert_lines_are_true(outcome: &Outcome, device: impl Fn(usize) -> String) -> usize {
    let mut naming = 0;
    for line in outcome.lines_with("→") {
        let rank = line.split("rank ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let rank: usize = rank.and_then(|rank| rank.parse().ok()).expect("a line names its rank");
        if line.contains(DRIVER_DECIDES) {
            assert!(!line.contains("0000:"), "a device is named all the same\n{outcome}");
        } else {
            assert!(line.contains(&device(rank)), "rank {rank} has another device\n{outcome}");
            naming += 1;
        }
    }
    naming
}

/// Fails unless every worker sees so many devices.
#[track_caller]
fn assert_visible_count(outcome: &Outcome, count: usize) {
    for got in worker_devices(outcome) {
        assert_eq!(got.visible, count.to_string(), "{outcome}");
    }
}

/// The lines with the device of each rank, in the order of the ranks.
#[track_caller]
fn assignment_lines(outcome: &Outcome, count: usize) -> Vec<String> {
    let lines = outcome.lines_with("→");
    assert_eq!(lines.len(), count, "one line for each worker\n{outcome}");
    lines
}

/// Runs a launch that is refused before any worker starts, and fails unless the complaint has these texts.
#[track_caller]
fn assert_refused(line: &str, machine: &Machine, texts: &[&str]) -> Outcome {
    let outcome = launch_from_line(line).on(machine).worker(["print=started"]).run();
    assert_ne!(outcome.status.code(), Some(0), "{outcome}");
    assert!(outcome.status.code().is_some(), "{outcome}");
    outcome.expect_absent("started").expect_absent("panicked");
    texts.iter().for_each(|text| {
        outcome.expect_stderr(text);
    });
    outcome
}
