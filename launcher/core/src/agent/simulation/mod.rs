//! The state machine on a virtual node, through random histories under any restart policy. The events are
//! exits, signals, time and its limits, uninterruptible workers, workers that do not join, signals that hit
//! all processes, suspensions, checks of devices and of progress, an external worker, and other nodes that
//! fail, leave, join and end the job, in any order. After every turn the numbered invariants of
//! `ARCHITECTURE.md` are checked. For each invariant there are mutants that break it, which must be found.
//!
//! `RANKRUN_SEED=<number>` repeats a run, `RANKRUN_SOAK=1` makes it twenty times as long, with a seed of its
//! own.

mod actions;
mod budget;
mod causes;
mod faults;
mod groups;
mod history;
mod invariants;
mod limits;
mod mutants;
mod node;
mod oracle;
mod others;
mod report;
mod setup;
mod status;
mod suspension;
mod world;

use super::State;
use crate::simulated::{Seeds, is_soak, search_on_threads, seed, shortest};
use faults::{FAULTS, Fault};
use history::History;
use invariants::{Broken, INVARIANTS};
use mutants::{Mutant, SweptState};
use report::{Failing, render_failing, search};
use setup::Setup;

const HISTORIES: u64 = 100_000;
const SOAK_HISTORIES: u64 = 20 * HISTORIES;
/// Upper bound; the search ends when it has found a few.
const MUTANT_HISTORIES: u64 = 50_000;

const fn count_events(history: &History) -> usize {
    history.events.len()
}

/// The real machine for such a node.
fn machine(setup: &Setup) -> State {
    State::new(setup.rules()).with_seed(setup.policy.seed)
}

#[test]
fn state_machine_holds_invariants_in_every_history() {
    let count = if is_soak() { SOAK_HISTORIES } else { HISTORIES };
    let failing = search_on_threads(count, 80, |seeds| search(seeds, SweptState::new, |_| true));
    if let Some(shortest) = shortest(failing, count_events) {
        panic!("{}", render_failing(&shortest, SweptState::new));
    }
}

/// The shortest of `enough` histories that break this invariant and no other.
fn find(fault: Fault, number: &str, enough: usize) -> Option<Failing> {
    let alone = |broken: &[Broken]| matches!(broken, [only] if only.invariant.number == number);
    let seeds = Seeds { first: seed(), step: 1, count: MUTANT_HISTORIES, enough };
    shortest(search(seeds, |setup| Mutant::new(fault, setup), alone), count_events)
}

#[test]
fn every_mutant_is_found_by_its_invariant() {
    for (fault, number) in FAULTS {
        // Any short history serves; a search for more is only needed for a long one.
        let at_once = find(fault, number, 1).filter(|failing| failing.history.events.len() <= 5);
        let Some(failing) = at_once.or_else(|| find(fault, number, 8)) else {
            panic!("{fault:?} breaks invariant {number} unnoticed")
        };
        let length = failing.history.events.len();
        println!("{fault:?} breaks invariant {number} in {length} events");
        assert!(length <= 5, "{}", render_failing(&failing, |setup| Mutant::new(fault, setup)));
    }
}

#[test]
fn every_invariant_has_a_mutant() {
    for invariant in &INVARIANTS {
        assert!(FAULTS.iter().any(|(_, number)| *number == invariant.number), "{invariant:?}");
    }
}

#[test]
fn failing_history_is_minimized_and_printed_with_seed() {
    let fault = Fault::SwallowsTheKill;
    let failing = find(fault, "4", 8).unwrap();
    assert!(failing.history.events.len() <= 1, "a stop and time, which come at the end of every history");
    let text = render_failing(&failing, |setup| Mutant::new(fault, setup));
    let begins = "invariant 4: Every stop has a cause, a deadline and an end";
    assert!(text.starts_with(begins), "{text}");
    assert!(text.contains(&format!("RANKRUN_SEED={}", failing.seed)), "{text}");
    assert!(text.contains("-> Start") && text.contains("DeadlinePassed"), "{text}");
    let again = History::random(failing.seed);
    assert_eq!(again, History::random(failing.seed));
    assert!(again.events.len() >= failing.history.events.len());
}
