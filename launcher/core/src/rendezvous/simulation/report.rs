//! The search for histories that violate an invariant, and the report of the shortest one.

use std::fmt::Write;

use super::history::{Event, History, MAX_EVENTS, Setup};
use super::invariants::Broken;
use super::mutants::Machine;
use super::world::run_world;
use crate::simulated::Seeds;

/// Maximum number of lines of the transcript.
const MOST_LINES: usize = 150;

/// A history that violates an invariant.
pub(super) type Failing = crate::simulated::Failing<History, Broken>;

/// Runs a history. If some of its clocks are wrong, runs it again with right clocks, and compares.
pub(super) fn run_history(history: &History, machine: Machine, second_in: u64) -> Result<(), Broken> {
    let trace = run_world(history, machine, None)?;
    let right = with_right_clocks(history);
    if right == *history || right.setup.torch != 0 || !history.seed.is_multiple_of(second_in) {
        return Ok(());
    }
    match run_world(&right, machine, None) {
        Ok(other) if other == trace => Ok(()),
        other => Err(Broken::new("R9", format!("with clocks that are right it goes another way: {other:?}"))),
    }
}

/// Returns the histories of these seeds that violate an invariant, shortened.
pub(super) fn search(seeds: Seeds, machine: Machine, history: impl Fn(u64) -> History) -> Vec<Failing> {
    let failing = seeds.iter().filter_map(|seed| {
        let history = history(seed);
        let broken = run_history(&history, machine, 4).err()?;
        Some(shrink(Failing { seed, history, broken }, machine))
    });
    failing.take(seeds.enough).collect()
}

/// Removes events and settings that the same failure does not need.
fn shrink(failing: Failing, machine: Machine) -> Failing {
    let first = failing.broken.invariant;
    failing.shrink(|history| {
        history.shrink_candidates().into_iter().find_map(|history| {
            let broken = run_history(&history, machine, 1).err()?;
            (broken.invariant == first).then_some((history, broken))
        })
    })
}

/// The report of a failing history: the violation, the command that repeats it, its events and its transcript.
pub(super) fn render_failure(failing: &Failing, machine: Machine) -> String {
    let Failing { history, broken, .. } = failing;
    let mut text = format!(
        "invariant {}: {}\n  {}\n",
        broken.invariant.number, broken.invariant.description, broken.why
    );
    let _ = writeln!(text, "\n{}\n  {:?}", failing.how_to_repeat(), history.setup);
    for Event { after, slot, what } in &history.events {
        let _ = writeln!(text, "  {after} ms later, n{slot}: {what:?}");
    }
    let transcript = |history: &History| {
        let mut lines = Vec::new();
        // The repeated run fails in the same way.
        let _ = run_world(history, machine, Some(&mut lines));
        lines.retain(|line| !line.ends_with(": waits") && !line.ends_with(": Sleep"));
        lines.truncate(MOST_LINES);
        lines.join("\n")
    };
    let _ = writeln!(text, "\nwhat happened:\n{}", transcript(history));
    if broken.invariant.number == "R9" {
        let _ = writeln!(text, "\nwith right clocks:\n{}", transcript(&with_right_clocks(history)));
    }
    text
}

fn with_right_clocks(history: &History) -> History {
    History { setup: Setup { offsets: [0; MAX_EVENTS], ..history.setup }, ..history.clone() }
}
