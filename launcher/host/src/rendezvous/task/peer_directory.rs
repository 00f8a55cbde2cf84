//! The agents of the job, as this agent knows them: their descriptors, ranks and liveness. The rendezvous task fills it
//! from each snapshot of the store; it reads nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rankrun_contract::rank::{NodeRank, RestartCount};

use rankrun_core::rendezvous::NodeName;
use rankrun_core::rendezvous::descriptor::{AgentDescriptor, Mismatch, parse_and_compare};
use rankrun_core::rendezvous::failure_detector::FailureDetector;
use rankrun_core::rendezvous::ranks::Ranks;
use rankrun_core::rendezvous::round::RoundView;
use rankrun_core::rendezvous::state::{Node, RendezvousState};
use rankrun_core::spec::rendezvous::RoundTimes;

/// The agents of the job, as this agent knows them. Pure.
#[derive(Debug)]
pub(super) struct PeerDirectory {
    /// Descriptors of the rankrun agents, this one included.
    pub(super) agents: BTreeMap<Node, AgentDescriptor>,
    /// Nodes without a descriptor that fits: torchrun agents, and agents that will be refused.
    others: BTreeSet<Node>,
    /// This agent, once it has a name.
    own: Option<Node>,
    /// Tells which nodes are dead.
    pub(super) failure_detector: FailureDetector,
    /// The newest known ranks.
    pub(super) ranks: Option<Ranks>,
    /// Restart budgets of other nodes that differ from this node's, and were reported.
    other_budgets: BTreeSet<RestartCount>,
}

impl PeerDirectory {
    pub(super) fn new(times: &RoundTimes) -> Self {
        Self {
            agents: BTreeMap::new(),
            others: BTreeSet::new(),
            own: None,
            failure_detector: FailureDetector::new(times),
            ranks: None,
            other_budgets: BTreeSet::new(),
        }
    }

    /// Records the descriptor of this agent.
    pub(super) fn set_own(&mut self, node: &Node, descriptor: AgentDescriptor) {
        self.own = Some(node.clone());
        self.agents.insert(node.clone(), descriptor);
    }

    /// The descriptor of this agent, once it is published.
    pub(super) fn own(&self) -> Option<&AgentDescriptor> {
        self.agents.get(self.own.as_ref()?)
    }

    /// Nodes of the state that are not in this directory.
    pub(super) fn unknown(&self, state: &RendezvousState) -> Vec<Node> {
        let is_known = |node: &&Node| self.agents.contains_key(*node) || self.others.contains(*node);
        state.listed().filter(|node| !is_known(node)).cloned().collect()
    }

    /// Records the descriptor of another node; an empty text means that it has none.
    ///
    /// # Errors
    /// The node does not belong to this job.
    pub(super) fn add(&mut self, node: Node, text: &[u8]) -> Result<(), Mismatch> {
        let parsed = match self.own() {
            Some(ours) if !text.is_empty() => parse_and_compare(ours, text).map(Some),
            _ => Ok(None),
        };
        match parsed {
            Ok(Some(descriptor)) => {
                self.agents.insert(node, descriptor);
                Ok(())
            }
            Ok(None) => {
                self.others.insert(node);
                Ok(())
            }
            Err(mismatch) => {
                self.others.insert(node);
                Err(mismatch)
            }
        }
    }

    /// A line for the user about a `--max-restarts` of another node that differs, once for each value.
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

    /// Records one read of the state and of heartbeats.
    pub(super) fn record_snapshot(
        &mut self,
        state: &RendezvousState,
        heartbeats: &BTreeMap<Node, i64>,
        now: Instant,
    ) {
        self.failure_detector.record_snapshot(state, heartbeats, now);
        let of_last_round =
            |node: &Node| self.ranks.as_ref().is_some_and(|ranks| ranks.of.contains_key(node));
        let listed: BTreeSet<&Node> = state.listed().collect();
        self.others.retain(|node| listed.contains(node));
        let own = self.own.as_ref();
        self.agents.retain(|node, _| listed.contains(node) || of_last_round(node) || own == Some(node));
    }

    /// Records the ranks of a round, unless newer ones are known.
    pub(super) fn record_ranks(&mut self, ranks: Ranks) {
        if self.ranks.as_ref().is_none_or(|known| known.round < ranks.round) {
            self.ranks = Some(ranks);
        }
    }

    /// The rankrun agents of the state.
    pub(super) fn rankrun_agents(&self, state: &RendezvousState) -> Vec<Node> {
        state.listed().filter(|node| self.agents.contains_key(*node)).cloned().collect()
    }

    /// The view of a state, for the next step.
    pub(super) fn view<'a>(&'a self, state: &'a RendezvousState) -> RoundView<'a> {
        let ranks = self.ranks.as_ref();
        RoundView { state, failure_detector: &self.failure_detector, agents: &self.agents, ranks }
    }

    /// What messages call a node, with its rank of the newest known round, or its given rank.
    pub(super) fn name(&self, node: &Node) -> NodeName {
        let rank = self.ranks.as_ref().and_then(|ranks| ranks.of.get(node));
        let rank = rank.and_then(|rank| u32::try_from(*rank).ok()).map(NodeRank);
        let name = self.joining_name(node);
        NodeName { rank: rank.or(name.rank), ..name }
    }

    /// What messages call a node that joins the next round, with its given rank only.
    pub(super) fn joining_name(&self, node: &Node) -> NodeName {
        let agent = self.agents.get(node);
        let given = agent.and_then(|agent| agent.node_rank);
        NodeName::of_node(node, agent.map(|agent| agent.host.as_str()), given)
    }

    /// The agent whose connections have this client id.
    pub(super) fn agent_of_nonce(&self, nonce: u32) -> Option<&Node> {
        self.agents.iter().find(|(_, agent)| agent.nonce == nonce).map(|(node, _)| node)
    }
}

/// The ranks of a complete round.
pub(super) fn ranks_of(state: &RendezvousState) -> Ranks {
    let of = state.participants.iter().map(|(node, rank)| (node.clone(), rank)).collect();
    Ranks { round: state.round, of }
}

/// The members of a complete round by rank.
pub(super) fn members_by_rank(state: &RendezvousState) -> Vec<Node> {
    let mut members: Vec<_> = state.participants.iter().collect();
    members.sort_by_key(|(_, rank)| *rank);
    members.into_iter().map(|(node, _)| node.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_node_name_is_escaped_for_terminal() {
        let peers = PeerDirectory::new(&RoundTimes::default());
        let node = Node { addr: format!("\x1b]0;{}\u{202e}", "x".repeat(500)), pid: 1, local_id: 0 };
        let name = peers.name(&node).to_string();
        assert!(name.starts_with(" ]0;xxx") && name.chars().count() <= 255, "{name}");
    }
}
