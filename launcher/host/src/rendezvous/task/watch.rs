//! Judges a snapshot of the store for a node in a round: does the round go on, and if not, which change ended it. Also
//! what a waiting node tells its user. Pure.

use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeRank;

use crate::rendezvous::c10d::StoreSnapshot;
use rankrun_core::rendezvous::note::{ClosingNote, RuleNote};
use rankrun_core::rendezvous::round::{LocalNode, is_spare, previous_round_members};
use rankrun_core::rendezvous::state::{Node, RendezvousState};
use rankrun_core::rendezvous::{FailureNote, NodeName, WaitReason, WaitStatus};

use super::member::{PastRound, Stage};
use super::peer_directory::PeerDirectory;

/// What the keys of a round say about it. The state says which nodes are in it.
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
    /// There are no more rounds, by a rule of another node.
    ByRule(RuleNote, Option<FailureNote>),
    /// There are no more rounds, since another node has succeeded. This node's workers run on.
    RunOn,
}

/// What is known of the round besides the keys that were read.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundFacts<'a> {
    /// The stage of this node's workers.
    pub(super) stage: Stage,
    /// Its members.
    pub(super) nodes: &'a [Node],
    /// Its first failure, if one is known already.
    pub(super) known_failure: Option<&'a FailureNote>,
    /// There are no more rounds.
    pub(super) is_closed: bool,
    /// Every node that has not reported success is gone.
    pub(super) all_gone: bool,
}

/// Judges the keys that were read.
pub(super) fn judge(known: &RoundFacts<'_>, look: &StoreSnapshot) -> Verdict {
    let RoundFacts { stage, nodes, known_failure, is_closed, all_gone } = *known;
    let is_done = look.all_succeeded || (!nodes.is_empty() && look.done.len() == nodes.len());
    if stage == Stage::Succeeded && is_done {
        return Verdict::Succeeded;
    }
    if is_closed {
        let failure = || look.failure.clone().or_else(|| known_failure.cloned());
        return match &look.end {
            Some(end) if end.succeeded && stage == Stage::Succeeded => Verdict::Succeeded,
            Some(ClosingNote { rule: Some(rule), failure: known_failure, .. }) => {
                Verdict::ByRule(rule.clone(), known_failure.clone().or_else(failure))
            }
            Some(end) => Verdict::Closed(end.failure.clone().or_else(failure)),
            None if may_go_on(stage, look, all_gone) => Verdict::RunOn,
            None => Verdict::Closed(failure()),
        };
    }
    match &look.failure {
        Some(failure) if known_failure != Some(failure) => Verdict::Failed(failure.clone()),
        _ => Verdict::Nothing,
    }
}

/// Only torchrun agents close without a note: one that has failed for good, or one that has succeeded and has waited long
/// enough for the others (contract 3.8, 5.8). The state does not say which of both, but successes are counted.
fn may_go_on(stage: Stage, look: &StoreSnapshot, all_gone: bool) -> bool {
    match stage {
        Stage::Running => look.successes > look.done.len(),
        Stage::Succeeded => look.failure.is_none() && !all_gone,
        Stage::Stopping | Stage::Ended => false,
    }
}

/// The open question whether a lost node caused the failure on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostNodeQuery {
    pub(super) asked: Instant,
    /// The time of the first look at the heartbeats since, and whether the store's host reports closed connections at once.
    pub(super) first_look: Option<(Instant, bool)>,
}

/// The status of a rendezvous that waits for nodes, for the user.
pub(super) fn wait_status(
    (state, now): (&RendezvousState, Instant),
    me: &LocalNode,
    peers: &PeerDirectory,
    before: Option<&PastRound>,
    left: Duration,
) -> WaitStatus {
    let is_spare = is_spare(state, &me.node);
    let ending = previous_round_members(&peers.view(state), &me.node);
    let mut here: Vec<&Node> = match (state.complete, is_spare) {
        (true, true) => state.participants.nodes().collect(),
        // A node that is still in the round before has not joined yet.
        (true, false) if !state.participants.contains(&me.node) => state.wait_list.iter().collect(),
        _ => state.listed().filter(|node| is_spare || !state.redundancy_list.contains(*node)).collect(),
    };
    // A node that has given up has removed itself from every list.
    if !is_spare && !here.contains(&&me.node) {
        here.push(&me.node);
    }
    here.sort();
    let given = |node: &Node| peers.agents.get(node).and_then(|agent| agent.node_rank);
    let known = || here.iter().chain(&ending);
    let ranks: Option<Vec<NodeRank>> = known().map(|node| given(node)).collect();
    let missing = match (before, ranks) {
        (_, Some(ranks)) if me.node_rank.is_some() && me.nodes.min == me.nodes.max => (0..me.nodes.max.get())
            .map(NodeRank)
            .filter(|rank| !ranks.contains(rank))
            .map(NodeName::of_rank)
            .collect(),
        (Some(past), _) => {
            let is_known = |node: &&Node| known().any(|other| other == node);
            past.nodes.iter().filter(|node| !is_known(node)).map(|node| peers.name(node)).collect()
        }
        (None, _) => Vec::new(),
    };
    let awaited = match (is_spare, ending.is_empty()) {
        (true, _) => WaitReason::Place,
        (false, true) => wait_reason(state, me, peers, now),
        (false, false) => {
            let mut nodes: Vec<NodeName> = ending.into_iter().map(|node| peers.name(node)).collect();
            nodes.sort_by_key(|name| name.rank);
            WaitReason::Stops { nodes }
        }
    };
    // A spare shows the ranks of the running round.
    let name = |node: &Node| if is_spare { peers.name(node) } else { peers.joining_name(node) };
    WaitStatus {
        here: here.into_iter().map(name).collect(),
        missing,
        min: me.nodes.min,
        max: me.nodes.max,
        left,
        awaited,
    }
}

/// The event that a node waits for if it is not a spare.
fn wait_reason(state: &RendezvousState, me: &LocalNode, peers: &PeerDirectory, now: Instant) -> WaitReason {
    if state.complete && state.participants.contains(&me.node) {
        return WaitReason::Ranks;
    }
    let is_enough = !state.complete && state.participants.len() >= me.nodes.min.get() as usize;
    match peers.failure_detector.last_call_observed_at(state).filter(|_| is_enough) {
        Some(seen) => {
            let starts_in = (seen + me.times.last_call).saturating_duration_since(now);
            WaitReason::More { starts_in }
        }
        None => WaitReason::Enough,
    }
}

#[cfg(test)]
mod tests {
    use rankrun_contract::rank::{LocalRank, Rank};

    use super::*;
    use rankrun_core::rendezvous::WorkerFailure;
    use rankrun_core::rendezvous::note::RuleEnd;

    fn note(rank: u32) -> FailureNote {
        FailureNote::Worker(WorkerFailure {
            node: NodeName { rank: Some(NodeRank(1)), ..NodeName::of_host("th1") },
            rank: Rank(rank),
            local_rank: LocalRank(0),
            pid: 7,
            ended: "exit code 7".to_owned(),
            message: None,
            last_lines: Vec::new(),
            lost_peer: None,
        })
    }

    fn node(addr: &str) -> Node {
        Node { addr: addr.to_owned(), pid: 1, local_id: 0 }
    }

    fn judged(stage: Stage, look: &StoreSnapshot, is_closed: bool) -> Verdict {
        let nodes = [node("a"), node("b")];
        judge(&RoundFacts { stage, nodes: &nodes, known_failure: None, is_closed, all_gone: false }, look)
    }

    #[test]
    fn remote_failure_is_reported_once() {
        let look = StoreSnapshot { failure: Some(note(3)), ..StoreSnapshot::default() };
        for stage in [Stage::Running, Stage::Succeeded] {
            assert_eq!(judged(stage, &look, false), Verdict::Failed(note(3)));
            let known_failure = note(3);
            let known = RoundFacts {
                stage,
                nodes: &[],
                known_failure: Some(&known_failure),
                is_closed: false,
                all_gone: false,
            };
            assert_eq!(judge(&known, &look), Verdict::Nothing);
        }
    }

    #[test]
    fn all_succeeded_needs_torch_key_or_all_rankrun_keys() {
        let torch = StoreSnapshot { all_succeeded: true, ..StoreSnapshot::default() };
        let ours = StoreSnapshot { done: vec![node("a"), node("b")], ..StoreSnapshot::default() };
        let half = StoreSnapshot { done: vec![node("a")], ..StoreSnapshot::default() };
        assert_eq!(judged(Stage::Succeeded, &torch, true), Verdict::Succeeded);
        assert_eq!(judged(Stage::Succeeded, &ours, false), Verdict::Succeeded);
        assert_eq!(judged(Stage::Succeeded, &half, false), Verdict::Nothing);
    }

    #[test]
    fn closing_note_names_the_first_cause() {
        let end = |succeeded, failure| Some(ClosingNote { succeeded, failure, rule: None });
        let failed = StoreSnapshot {
            end: end(false, Some(note(3))),
            failure: Some(note(4)),
            ..StoreSnapshot::default()
        };
        assert_eq!(judged(Stage::Running, &failed, true), Verdict::Closed(Some(note(3))));
        let left =
            StoreSnapshot { end: end(false, None), failure: Some(note(4)), ..StoreSnapshot::default() };
        assert_eq!(judged(Stage::Succeeded, &left, true), Verdict::Closed(Some(note(4))));
        let over = StoreSnapshot { end: end(true, None), ..StoreSnapshot::default() };
        assert_eq!(judged(Stage::Succeeded, &over, true), Verdict::Succeeded);
    }

    #[test]
    fn rule_that_ends_job_overrides_reported_failure() {
        for then in [RuleEnd::Succeed, RuleEnd::Requeue] {
            let rule = RuleNote { text: "exit=5".to_owned(), then };
            let succeeded = rule.is_success();
            let end = Some(ClosingNote { succeeded, failure: Some(note(3)), rule: Some(rule.clone()) });
            let look = StoreSnapshot { end, failure: Some(note(3)), ..StoreSnapshot::default() };
            for stage in [Stage::Running, Stage::Stopping] {
                assert_eq!(judged(stage, &look, true), Verdict::ByRule(rule.clone(), Some(note(3))));
            }
        }
    }

    #[test]
    fn torchrun_agent_closes_without_note() {
        let silent = StoreSnapshot::default();
        assert_eq!(judged(Stage::Running, &silent, true), Verdict::Closed(None));
        let one_succeeded = StoreSnapshot { successes: 1, ..StoreSnapshot::default() };
        assert_eq!(judged(Stage::Running, &one_succeeded, true), Verdict::RunOn);
        assert_eq!(judged(Stage::Stopping, &one_succeeded, true), Verdict::Closed(None));
        let ours = StoreSnapshot { done: vec![node("a")], ..one_succeeded };
        assert_eq!(
            judged(Stage::Running, &ours, true),
            Verdict::Closed(None),
            "only one of ours has succeeded"
        );
    }

    #[test]
    fn succeeded_agent_waits_for_live_peers_after_torchrun_close() {
        let nodes = [node("a"), node("b")];
        let look = StoreSnapshot { done: vec![node("a")], successes: 1, ..StoreSnapshot::default() };
        let judged = |all_gone, look: &StoreSnapshot| {
            judge(
                &RoundFacts {
                    stage: Stage::Succeeded,
                    nodes: &nodes,
                    known_failure: None,
                    is_closed: true,
                    all_gone,
                },
                look,
            )
        };
        assert_eq!(judged(false, &look), Verdict::RunOn);
        assert_eq!(judged(true, &look), Verdict::Closed(None));
        let failed = StoreSnapshot { failure: Some(note(3)), ..look };
        assert_eq!(judged(false, &failed), Verdict::Closed(Some(note(3))));
    }
}
