//! Many agents with the round logic around one store, through random histories: crashes, restarts, cut-offs, lost and late
//! messages, failing workers, agents that leave, jobs that are closed, and clocks that are wrong, on a virtual clock. After
//! every turn the numbered invariants are asked, and for each of them there is round logic that breaks it, which must be
//! found.
//!
//! `RANKRUN_SEED=<number>` repeats a run, `RANKRUN_SOAK=1` makes it forty times as long, with a seed of its own.
#![expect(clippy::disallowed_methods, reason = "the seed comes from outside")]

mod agent;
mod history;
mod invariants;
mod mutants;
mod network;
mod report;
mod store;
mod torch;
mod world;

use std::time::{SystemTime, UNIX_EPOCH};

use history::History;
use invariants::INVARIANTS;
use mutants::{FAULTS, Fault, Machine};
use report::{Failing, Seeds, search, shortest, told};

const HISTORIES: u64 = 8_000;
const MIXED_HISTORIES: u64 = 2_000;
const SOAK_HISTORIES: u64 = 40 * HISTORIES;
/// At most; the search ends when it has found one.
const HISTORIES_OF_A_MUTANT: u64 = 5_000;
const THREADS: u64 = 2;
/// Histories that every change is judged by.
const SEED: u64 = 18;

/// `RANKRUN_SEED`, else always the same; under `RANKRUN_SOAK=1` another one each time. It is printed.
fn seed() -> u64 {
    let given = std::env::var("RANKRUN_SEED").ok().and_then(|seed| seed.parse().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |age| age.as_micros() as u64);
    let seed = given.unwrap_or_else(|| if is_soak() { clock() } else { SEED });
    println!("RANKRUN_SEED={seed}");
    seed
}

fn is_soak() -> bool {
    std::env::var_os("RANKRUN_SOAK").is_some_and(|value| value == "1")
}

/// Lives many histories on two threads.
fn hold_in_all(count: u64, history: impl Fn(u64) -> History + Sync) {
    let seed = seed();
    let seeds =
        |thread| Seeds { first: seed.wrapping_add(thread), step: THREADS, count: count / THREADS, enough: 4 };
    let history = &history;
    let failing: Vec<Failing> = std::thread::scope(|scope| {
        let part = |thread| scope.spawn(move || search(seeds(thread), Machine::default(), history));
        let threads: Vec<_> = (0..THREADS).map(part).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    if let Some(shortest) = shortest(failing) {
        panic!("{}", told(&shortest, Machine::default()));
    }
}

#[test]
fn the_round_logic_holds_its_invariants_in_every_history() {
    hold_in_all(if is_soak() { SOAK_HISTORIES } else { HISTORIES }, History::random);
}

#[test]
fn it_holds_them_beside_torchrun_agents() {
    hold_in_all(if is_soak() { SOAK_HISTORIES } else { MIXED_HISTORIES }, History::mixed);
}

/// The first of many histories that breaks something with this fault, shortened.
fn find(fault: Fault) -> Option<Failing> {
    // The same ones every time: which invariant a fault breaks first is a matter of chance.
    let seeds = Seeds { first: 1, step: 1, count: HISTORIES_OF_A_MUTANT, enough: 1 };
    shortest(search(seeds, Machine::with(fault), History::random))
}

#[test]
fn every_mutant_breaks_its_invariant_and_is_found() {
    let mut missed = Vec::new();
    for (fault, numbers) in FAULTS {
        match find(fault) {
            Some(failing) if numbers.contains(&failing.broken.invariant.number) => {
                let number = failing.broken.invariant.number;
                println!("{fault:?} breaks {number} in {} events", failing.history.events.len());
            }
            Some(failing) => missed.push(format!("{fault:?}: {}", told(&failing, Machine::with(fault)))),
            None => missed.push(format!("{fault:?} is found by nobody")),
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
fn a_failing_history_is_told_with_its_seed_and_without_what_it_does_not_need() {
    let fault = Fault::ClosesWhenItLeaves;
    let failing = find(fault).unwrap();
    assert_eq!(failing.history.events.len(), 1, "somebody leaves, and nothing else is needed");
    let text = told(&failing, Machine::with(fault));
    assert!(text.starts_with("invariant R7: Leaving is not closing"), "{text}");
    assert!(text.contains(&format!("RANKRUN_SEED={}", failing.seed)), "{text}");
    assert!(text.contains("Leaves of n") && text.contains("writes [round"), "{text}");
    assert_eq!(History::random(failing.seed), History::random(failing.seed));
}
