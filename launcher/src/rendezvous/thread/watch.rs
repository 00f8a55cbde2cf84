//! What is to be said of what was seen. Pure.

use std::time::Duration;

use rankrun_contract::rank::NodeRank;

use crate::rendezvous::c10d::Look;
use crate::rendezvous::round::{Me, is_spare};
use crate::rendezvous::state::{Node, State};
use crate::rendezvous::{FailureNote, Waiting};

use super::book::{Book, listed};
use super::member::{Past, Stage};

/// What a look says about the round that this node is in, beside who is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: the members of the state decide.
    Nothing,
    /// A worker of another node has failed.
    Failed(FailureNote),
    /// The workers of all nodes have succeeded.
    Succeeded,
    /// There are no more rounds.
    Closed(Option<FailureNote>),
    /// There are no more rounds, since another node has succeeded: nobody disturbs ours.
    RunOn,
}

/// Judges a look. `told` is the failure of the round that is known already.
pub(super) fn judge(
    stage: Stage,
    look: &Look,
    is_closed: bool,
    nodes: &[Node],
    told: Option<&FailureNote>,
) -> Verdict {
    let is_done = look.all_succeeded || (!nodes.is_empty() && look.done.len() == nodes.len());
    if stage == Stage::Succeeded && is_done {
        return Verdict::Succeeded;
    }
    if is_closed {
        let failure = || look.failure.clone().or_else(|| told.cloned());
        return match &look.end {
            Some(end) if end.succeeded && stage == Stage::Succeeded => Verdict::Succeeded,
            Some(end) => Verdict::Closed(end.failure.clone().or_else(failure)),
            // Only torchrun's agents close without a word. One that has failed ends the job for all (contract 5.8).
            None if look.any_succeeded && stage != Stage::Stopping => Verdict::RunOn,
            None => Verdict::Closed(failure()),
        };
    }
    match &look.failure {
        Some(failure) if told != Some(failure) => Verdict::Failed(failure.clone()),
        _ => Verdict::Nothing,
    }
}

/// What people are told while it is waited for nodes.
pub(super) fn waiting(state: &State, me: &Me, book: &Book, before: Option<&Past>, left: Duration) -> Waiting {
    let is_spare = is_spare(state, &me.node);
    let runs = state.complete && is_spare;
    let mut here: Vec<&Node> = if runs {
        state.participants.nodes().collect()
    } else {
        listed(state).filter(|node| is_spare || !state.redundancy_list.contains(*node)).collect()
    };
    // Who has given up has taken itself out of every list.
    if !is_spare && !here.contains(&&me.node) {
        here.push(&me.node);
    }
    here.sort();
    let given = |node: &Node| book.agents.get(node).and_then(|agent| agent.node_rank);
    let ranks: Option<Vec<NodeRank>> = here.iter().map(|node| given(node)).collect();
    let missing = match (before, ranks) {
        (_, Some(ranks)) if me.node_rank.is_some() && me.nodes.min == me.nodes.max => (0..me.nodes.max.get())
            .map(NodeRank)
            .filter(|rank| !ranks.contains(rank))
            .map(|rank| format!("node rank {rank}"))
            .collect(),
        (Some(past), _) => {
            past.nodes.iter().filter(|node| !here.contains(node)).map(|node| book.name(node)).collect()
        }
        (None, _) => Vec::new(),
    };
    Waiting {
        here: here.into_iter().map(|node| book.name(node)).collect(),
        missing,
        min: me.nodes.min,
        max: me.nodes.max,
        left,
        is_spare,
    }
}

#[cfg(test)]
mod tests {
    use rankrun_contract::rank::{LocalRank, Rank};

    use super::*;
    use crate::rendezvous::note::ClosingNote;

    fn note(rank: u32) -> FailureNote {
        FailureNote {
            node_rank: NodeRank(1),
            host: "th1".to_owned(),
            rank: Rank(rank),
            local_rank: LocalRank(0),
            pid: 7,
            ended: "exit code 7".to_owned(),
            message: None,
        }
    }

    fn node(addr: &str) -> Node {
        Node { addr: addr.to_owned(), pid: 1, local_id: 0 }
    }

    fn judged(stage: Stage, look: &Look, is_closed: bool) -> Verdict {
        judge(stage, look, is_closed, &[node("a"), node("b")], None)
    }

    #[test]
    fn a_failure_elsewhere_is_told_once() {
        let look = Look { failure: Some(note(3)), ..Look::default() };
        for stage in [Stage::Running, Stage::Succeeded] {
            assert_eq!(judged(stage, &look, false), Verdict::Failed(note(3)));
            assert_eq!(judge(stage, &look, false, &[], Some(&note(3))), Verdict::Nothing);
        }
    }

    #[test]
    fn all_have_succeeded_when_torchs_key_or_all_of_ours_are_there() {
        let torch = Look { all_succeeded: true, ..Look::default() };
        let ours = Look { done: vec![node("a"), node("b")], ..Look::default() };
        let half = Look { done: vec![node("a")], ..Look::default() };
        assert_eq!(judged(Stage::Succeeded, &torch, true), Verdict::Succeeded);
        assert_eq!(judged(Stage::Succeeded, &ours, false), Verdict::Succeeded);
        assert_eq!(judged(Stage::Succeeded, &half, false), Verdict::Nothing);
    }

    #[test]
    fn a_closing_note_has_the_first_cause() {
        let end = |succeeded, failure| Some(ClosingNote { succeeded, failure });
        let failed = Look { end: end(false, Some(note(3))), failure: Some(note(4)), ..Look::default() };
        assert_eq!(judged(Stage::Running, &failed, true), Verdict::Closed(Some(note(3))));
        let left = Look { end: end(false, None), failure: Some(note(4)), ..Look::default() };
        assert_eq!(judged(Stage::Succeeded, &left, true), Verdict::Closed(Some(note(4))));
        let over = Look { end: end(true, None), ..Look::default() };
        assert_eq!(judged(Stage::Succeeded, &over, true), Verdict::Succeeded);
    }

    #[test]
    fn a_torchrun_agent_closes_without_a_word() {
        let silent = Look::default();
        assert_eq!(judged(Stage::Running, &silent, true), Verdict::Closed(None));
        let one_succeeded = Look { any_succeeded: true, ..Look::default() };
        assert_eq!(judged(Stage::Running, &one_succeeded, true), Verdict::RunOn);
        assert_eq!(judged(Stage::Stopping, &one_succeeded, true), Verdict::Closed(None));
    }
}
