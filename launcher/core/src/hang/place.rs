//! Adds to a verdict where the ranks stand.

use std::collections::{BTreeMap, BTreeSet};

use rankrun_contract::rank::Rank;

use crate::hang::verdict::Verdict;
use crate::stacks::{Frame, WorkerStacks};

impl Verdict {
    /// Puts the lines of the program that these stacks show into the verdict. A rank that makes progress has none.
    #[must_use]
    pub fn with_places(mut self, workers: &[WorkerStacks]) -> Self {
        let workers: BTreeMap<Rank, &WorkerStacks> = workers.iter().map(|it| (Rank(it.rank), it)).collect();
        match &mut self {
            Self::Hang(hang) => {
                hang.waits.iter_mut().for_each(|wait| wait.place = shared_line(&wait.waiting, &workers));
                for status in &mut hang.silent {
                    status.place = workers.get(&status.rank).and_then(|worker| place(worker));
                }
            }
            Self::Desync(desync) => {
                desync.calls.iter_mut().for_each(|call| call.place = shared_line(&call.ranks, &workers));
            }
            Self::Straggler(_) | Self::Progress | Self::NotEnoughEvidence => {}
        }
        self
    }
}

/// The innermost call of the program's own code.
fn own_frame(worker: &WorkerStacks) -> Option<&Frame> {
    worker.main_thread()?.frames.iter().find(|frame| frame.is_of_program())
}

/// The line of the program at which all of these ranks stand whose stack is known.
fn shared_line(ranks: &BTreeSet<Rank>, workers: &BTreeMap<Rank, &WorkerStacks>) -> Option<String> {
    let lines: BTreeSet<String> =
        ranks.iter().filter_map(|rank| Some(own_frame(workers.get(rank)?)?.line_text())).collect();
    let mut lines = lines.into_iter();
    lines.next().filter(|_| lines.next().is_none())
}

fn place(worker: &WorkerStacks) -> Option<String> {
    let is_stopped = worker.threads.first().is_some_and(|thread| matches!(thread.state.as_str(), "T" | "t"));
    match own_frame(worker) {
        _ if is_stopped => Some("stopped by a signal".to_owned()),
        Some(frame) => Some(format!("in {}", frame.title())),
        None => None,
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
