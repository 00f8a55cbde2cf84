//! A simulation of the round logic: many agents around one store, on a virtual clock. Random histories contain crashes,
//! restarts, network cuts, lost and late messages, failing workers, leaving agents, closed jobs and wrong clocks.
//!
//! After every step the numbered invariants are checked. For each invariant there is round logic with a fault, which
//! the search must find.
//!
//! `RANKRUN_SEED=<number>` repeats a run. `RANKRUN_SOAK=1` runs forty times as many histories, with a random seed.

mod agent;
mod history;
mod invariants;
mod mutants;
mod network;
mod report;
mod store;
mod torch;
mod world;

use crate::simulated::{Seeds, is_soak, search_on_threads, shortest};
use history::History;
use invariants::INVARIANTS;
use mutants::{FAULTS, Fault, Machine};
use report::{Failing, render_failure, search};

const HISTORIES: u64 = 8_000;
const MIXED_HISTORIES: u64 = 2_000;
const SOAK_HISTORIES: u64 = 40 * HISTORIES;
/// Upper limit; the search stops at the first violation.
const HISTORIES_OF_A_MUTANT: u64 = 5_000;

const fn count_events(history: &History) -> usize {
    history.events.len()
}

/// Runs many histories on two threads.
fn hold_in_all(count: u64, history: impl Fn(u64) -> History + Sync) {
    let failing = search_on_threads(count, 4, |seeds| search(seeds, Machine::default(), &history));
    if let Some(shortest) = shortest(failing, count_events) {
        panic!("{}", render_failure(&shortest, Machine::default()));
    }
}

#[test]
fn round_logic_holds_invariants_in_every_history() {
    hold_in_all(if is_soak() { SOAK_HISTORIES } else { HISTORIES }, History::random);
}

#[test]
fn round_logic_holds_invariants_beside_torchrun_agents() {
    hold_in_all(if is_soak() { SOAK_HISTORIES } else { MIXED_HISTORIES }, History::mixed);
}

/// Returns the first history with a violation under this fault, shortened.
fn find(fault: Fault) -> Option<Failing> {
    // The seeds are fixed, because it depends on chance which invariant a fault violates first.
    let seeds = Seeds { first: 1, step: 1, count: HISTORIES_OF_A_MUTANT, enough: 1 };
    shortest(search(seeds, Machine::with(fault), History::random), count_events)
}

#[test]
fn every_mutant_is_found_by_its_invariant() {
    let mut missed = Vec::new();
    for (fault, numbers) in FAULTS {
        match find(fault) {
            Some(failing) if numbers.contains(&failing.broken.invariant.number) => {
                let number = failing.broken.invariant.number;
                println!("{fault:?} breaks {number} in {} events", failing.history.events.len());
            }
            Some(failing) => {
                missed.push(format!("{fault:?}: {}", render_failure(&failing, Machine::with(fault))))
            }
            None => missed.push(format!("{fault:?} is found by no invariant")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_invariant_has_a_mutant() {
    for invariant in &INVARIANTS {
        assert!(FAULTS.iter().any(|(_, numbers)| numbers.contains(&invariant.number)), "{invariant:?}");
    }
}

#[test]
fn failing_history_is_printed_minimal_with_its_seed() {
    let fault = Fault::ClosesWhenItLeaves;
    let failing = find(fault).unwrap();
    assert_eq!(failing.history.events.len(), 1, "an agent leaves, and no other event is needed");
    let text = render_failure(&failing, Machine::with(fault));
    assert!(text.starts_with("invariant R7: Leaving is not closing"), "{text}");
    assert!(text.contains(&format!("RANKRUN_SEED={}", failing.seed)), "{text}");
    assert!(text.contains("Leaves of n") && text.contains("writes [round"), "{text}");
    assert_eq!(History::random(failing.seed), History::random(failing.seed));
}
