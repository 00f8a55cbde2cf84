//! What is known about the other agents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rankrun_contract::rank::{NodeRank, RestartCount};

use crate::rendezvous::NodeName;
use crate::rendezvous::descriptor::{AgentDescriptor, Mismatch, parse_and_compare};
use crate::rendezvous::failure_detector::FailureDetector;
use crate::rendezvous::ranks::Ranks;
use crate::rendezvous::round::RoundView;
use crate::rendezvous::state::{Node, RendezvousState};
use crate::spec::rendezvous::RoundTimes;

/// Everything known about the other agents. Pure.
#[derive(Debug)]
pub(super) struct Book {
    /// What rankrun agents say of themselves, this one included.
    pub(super) agents: BTreeMap<Node, AgentDescriptor>,
    /// Those that say nothing we understand: torchrun's, and such as will be refused.
    strangers: BTreeSet<Node>,
    /// This agent, once it has a name.
    own: Option<Node>,
    /// When each was last seen alive.
    pub(super) sightings: FailureDetector,
    /// The newest ranks that are known.
    pub(super) ranks: Option<Ranks>,
    /// Restart budgets of other nodes that are not ours, and were told.
    other_budgets: BTreeSet<RestartCount>,
}

impl Book {
    pub(super) fn new(times: &RoundTimes) -> Self {
        Self {
            agents: BTreeMap::new(),
            strangers: BTreeSet::new(),
            own: None,
            sightings: FailureDetector::new(times),
            ranks: None,
            other_budgets: BTreeSet::new(),
        }
    }

    /// Takes note of what this agent says of itself.
    pub(super) fn introduce(&mut self, node: &Node, descriptor: AgentDescriptor) {
        self.own = Some(node.clone());
        self.agents.insert(node.clone(), descriptor);
    }

    /// What this agent says of itself, once it does.
    pub(super) fn own(&self) -> Option<&AgentDescriptor> {
        self.agents.get(self.own.as_ref()?)
    }

    /// Nodes of the state of which nothing is known.
    pub(super) fn unknown(&self, state: &RendezvousState) -> Vec<Node> {
        let is_known = |node: &&Node| self.agents.contains_key(*node) || self.strangers.contains(*node);
        state.listed().filter(|node| !is_known(node)).cloned().collect()
    }

    /// Takes note of what a node says of itself, where it says anything.
    ///
    /// # Errors
    /// It does not belong to our job. It is a stranger then.
    pub(super) fn introduced(&mut self, node: Node, text: &[u8]) -> Result<(), Mismatch> {
        let met = match self.own() {
            Some(ours) if !text.is_empty() => parse_and_compare(ours, text).map(Some),
            _ => Ok(None),
        };
        match met {
            Ok(Some(descriptor)) => {
                self.agents.insert(node, descriptor);
                Ok(())
            }
            Ok(None) => {
                self.strangers.insert(node);
                Ok(())
            }
            Err(mismatch) => {
                self.strangers.insert(node);
                Err(mismatch)
            }
        }
    }

    /// Says once of each `--max-restarts` that another node has, and this one has not.
    pub(super) fn compare_budgets(&mut self, node: &Node) -> Option<String> {
        let ours = self.own()?.max_restarts?;
        let theirs = self.agents.get(node)?.max_restarts.filter(|theirs| *theirs != ours)?;
        let host = self.name(node);
        self.other_budgets.insert(theirs).then(|| {
            format!(
                "`--max-restarts` is {ours} on this node and {theirs} on {host}: the node whose worker fails counts by its own"
            )
        })
    }

    /// Takes note of a look at the state.
    pub(super) fn saw(&mut self, state: &RendezvousState, beats: &BTreeMap<Node, i64>, now: Instant) {
        self.sightings.record_snapshot(state, beats, now);
        let of_last_round =
            |node: &Node| self.ranks.as_ref().is_some_and(|ranks| ranks.of.contains_key(node));
        let is_here: BTreeSet<&Node> = state.listed().collect();
        self.strangers.retain(|node| is_here.contains(node));
        let own = self.own.as_ref();
        self.agents.retain(|node, _| is_here.contains(node) || of_last_round(node) || own == Some(node));
    }

    /// Takes note of the ranks of a round, unless newer ones are known.
    pub(super) fn ranked(&mut self, ranks: Ranks) {
        if self.ranks.as_ref().is_none_or(|known| known.round < ranks.round) {
            self.ranks = Some(ranks);
        }
    }

    /// The rankrun agents of the state.
    pub(super) fn rankrun(&self, state: &RendezvousState) -> Vec<Node> {
        state.listed().filter(|node| self.agents.contains_key(*node)).cloned().collect()
    }

    /// What is known beside a state.
    pub(super) fn view<'a>(&'a self, state: &'a RendezvousState) -> RoundView<'a> {
        let ranks = self.ranks.as_ref();
        RoundView { state, failure_detector: &self.sightings, agents: &self.agents, ranks }
    }

    /// What messages call a node; its rank is that of the newest known round, or the one that it was given.
    pub(super) fn name(&self, node: &Node) -> NodeName {
        let rank = self.ranks.as_ref().and_then(|ranks| ranks.of.get(node));
        let rank = rank.and_then(|rank| u32::try_from(*rank).ok()).map(NodeRank);
        let newcomer = self.newcomer(node);
        NodeName { rank: rank.or(newcomer.rank), ..newcomer }
    }

    /// What messages call a node that wants to be in the next round: of its ranks only the one that it was given holds.
    pub(super) fn newcomer(&self, node: &Node) -> NodeName {
        let agent = self.agents.get(node);
        let given = agent.and_then(|agent| agent.node_rank);
        NodeName::of_node(node, agent.map(|agent| agent.host.as_str()), given)
    }

    /// Whose connections have this number in their greeting.
    pub(super) fn of_nonce(&self, nonce: u32) -> Option<&Node> {
        self.agents.iter().find(|(_, agent)| agent.nonce == nonce).map(|(node, _)| node)
    }
}

/// The ranks of a complete round.
pub(super) fn ranks_of(state: &RendezvousState) -> Ranks {
    let of = state.participants.iter().map(|(node, rank)| (node.clone(), rank)).collect();
    Ranks { round: state.round, of }
}

/// The members of a complete round by rank.
pub(super) fn by_rank(state: &RendezvousState) -> Vec<Node> {
    let mut members: Vec<_> = state.participants.iter().collect();
    members.sort_by_key(|(_, rank)| *rank);
    members.into_iter().map(|(node, _)| node.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_node_name_is_escaped_for_terminal() {
        let book = Book::new(&RoundTimes::default());
        let node = Node { addr: format!("\x1b]0;{}\u{202e}", "x".repeat(500)), pid: 1, local_id: 0 };
        let name = book.name(&node).to_string();
        assert!(name.starts_with(" ]0;xxx") && name.chars().count() <= 255, "{name}");
    }
}
