//! The search for histories that break something, and the shortest of them in words.

use std::fmt::Write;

use super::history::{Event, History, MOST, Setup};
use super::invariants::Broken;
use super::mutants::Machine;
use super::world::live;

/// What happened is told in so many lines.
const MOST_LINES: usize = 150;

/// A history that breaks something.
#[derive(Debug)]
pub(super) struct Failing {
    pub(super) seed: u64,
    pub(super) history: History,
    pub(super) broken: Broken,
}

/// Which histories are lived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seeds {
    pub(super) first: u64,
    pub(super) step: u64,
    pub(super) count: u64,
    /// So many failing ones are shortened before the shortest is told.
    pub(super) enough: usize,
}

/// Lives a history, and a second time with clocks that are right where some are not.
pub(super) fn try_out(history: &History, machine: Machine, second_in: u64) -> Result<(), Broken> {
    let trace = live(history, machine, None)?;
    let right = Setup { offsets: [0; MOST], ..history.setup };
    if right == history.setup || right.torch != 0 || !history.seed.is_multiple_of(second_in) {
        return Ok(());
    }
    match live(&History { setup: right, ..history.clone() }, machine, None) {
        Ok(other) if other == trace => Ok(()),
        other => Err(Broken::new("R9", format!("with clocks that are right it goes another way: {other:?}"))),
    }
}

/// The histories of these seeds that break something, shortened.
pub(super) fn search(
    Seeds { first, step, count, enough }: Seeds,
    machine: Machine,
    history: impl Fn(u64) -> History,
) -> Vec<Failing> {
    let seeds = (0..count).map(|index| first.wrapping_add(index.wrapping_mul(step)));
    let failing = seeds.filter_map(|seed| {
        let history = history(seed);
        let broken = try_out(&history, machine, 4).err()?;
        Some(shorten(Failing { seed, history, broken }, machine))
    });
    failing.take(enough).collect()
}

/// The one with the fewest events.
pub(super) fn shortest(failing: Vec<Failing>) -> Option<Failing> {
    failing.into_iter().min_by_key(|failing| failing.history.events.len())
}

/// Takes away what is not needed to fail in the same way, until nothing can be taken away.
fn shorten(mut failing: Failing, machine: Machine) -> Failing {
    let first = failing.broken.invariant;
    loop {
        let fails = |history: History| {
            let broken = try_out(&history, machine, 1).err()?;
            (broken.invariant == first).then_some((history, broken))
        };
        let Some((history, broken)) = failing.history.simpler().into_iter().find_map(fails) else {
            return failing;
        };
        failing = Failing { history, broken, ..failing };
    }
}

/// The failing history in words: what is broken, how to see it again, what was chosen and what happened.
pub(super) fn told(failing: &Failing, machine: Machine) -> String {
    let Failing { seed, history, broken } = failing;
    let mut text =
        format!("invariant {}: {}\n  {}\n", broken.invariant.number, broken.invariant.words, broken.why);
    let _ = writeln!(
        text,
        "\nthe shortest history that breaks it; RANKRUN_SEED={seed} begins with a longer one:\n  {:?}",
        history.setup
    );
    for Event { after, seat, what } in &history.events {
        let _ = writeln!(text, "  {after} ms later, n{seat}: {what:?}");
    }
    let mut transcript = Vec::new();
    // It fails as it did before.
    let _ = live(history, machine, Some(&mut transcript));
    transcript.retain(|line| !line.ends_with(": waits") && !line.ends_with(": Sleep"));
    transcript.truncate(MOST_LINES);
    let _ = writeln!(text, "\nwhat happened:\n{}", transcript.join("\n"));
    text
}
