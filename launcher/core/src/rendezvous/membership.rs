//! The changes of other nodes that end a round, and the one form of a lost node. Pure.
//!
//! A [`MembershipChange`] goes from the rendezvous task through the agent's state to the printed line.
//! `ARCHITECTURE.md` follows one ("The life of a lost node").

use std::time::Instant;

use super::{FailureNote, NodeName, WorkerFailure};

/// Why a round ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipChange {
    /// A worker of another node failed.
    Failed(WorkerFailure),
    /// A node disappeared without a message: its connections closed, or its heartbeat stopped.
    Lost(LostNode),
    /// A node left by its own decision.
    Left {
        /// Name of the node that left.
        node: NodeName,
        /// The reason that the node gave.
        why: String,
    },
    /// A node outside of the round waits for a place.
    NodeWaits {
        /// Name of the waiting node.
        node: NodeName,
    },
    /// This node cannot reach the store, and the other nodes will soon declare it dead.
    CutOff {
        /// All workers must have ended by this time.
        kill_by: Instant,
    },
    /// This launcher itself stood still past the end of its lease. The guard killed its workers, or nothing did yet.
    StoodStill,
    /// The other nodes continued without this node, which was silent for too long.
    Removed,
}

/// A lost node, and what its loss means for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostNode {
    /// Name of the lost node.
    pub node: NodeName,
    /// What the loss means for this node.
    pub role: LossRole,
}

/// What the loss of a node means for this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossRole {
    /// The loss ends the round. This node found it by its own failure detector.
    EndsRound,
    /// The loss is the first failure of the round. Another node reports it.
    FirstFailure,
    /// The loss caused the failure on this node.
    CausesFailureHere,
}

impl From<FailureNote> for MembershipChange {
    /// The change that another node's note tells of.
    fn from(note: FailureNote) -> Self {
        match note {
            FailureNote::Worker(worker) => Self::Failed(worker),
            FailureNote::NodeLost { node } => Self::Lost(LostNode { node, role: LossRole::FirstFailure }),
            FailureNote::NodeLeft { node, why } | FailureNote::LauncherFailed { node, why } => {
                Self::Left { node, why }
            }
        }
    }
}

impl MembershipChange {
    /// The change of a member that is in the round no more. `why` is the reason that it gave, empty if it gave none;
    /// `failure` is the first failure of the round. That one counts on every node, whichever a node reads first: with
    /// `--exclude-node-after` a node reports its failure and leaves. A failure elsewhere that lost a peer is a consequence.
    #[must_use]
    pub fn of_gone_member(node: NodeName, why: String, failure: Option<FailureNote>) -> Self {
        let is_cause = |note: &FailureNote| note.lost_peer().is_none() || note.node().rank == node.rank;
        match failure.filter(is_cause) {
            Some(note) => note.into(),
            None if why.is_empty() => Self::Lost(LostNode { node, role: LossRole::EndsRound }),
            None => Self::Left { node, why },
        }
    }

    /// The first failure of the round that this change tells of; `None` if no node has reported one.
    #[must_use]
    pub fn reported_failure(&self) -> Option<FailureNote> {
        match self {
            Self::Failed(worker) => Some(FailureNote::Worker(worker.clone())),
            Self::Lost(LostNode { node, role: LossRole::FirstFailure }) => {
                Some(FailureNote::NodeLost { node: node.clone() })
            }
            Self::Lost(LostNode { role: LossRole::EndsRound | LossRole::CausesFailureHere, .. })
            | Self::Left { .. }
            | Self::NodeWaits { .. }
            | Self::CutOff { .. }
            | Self::StoodStill
            | Self::Removed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rankrun_contract::rank::{LocalRank, NodeRank, Rank};

    use super::*;
    use crate::rendezvous::PeerLoss;

    fn node() -> NodeName {
        NodeName::of_rank(NodeRank(1))
    }

    fn worker() -> WorkerFailure {
        WorkerFailure {
            node: node(),
            rank: Rank(9),
            local_rank: LocalRank(1),
            pid: 4711,
            ended: "exit code 7".to_owned(),
            message: None,
            last_lines: Vec::new(),
            lost_peer: None,
        }
    }

    #[test]
    fn failure_of_round_precedes_leave_of_its_node() {
        let gone = |node, why: &str, failure: Option<&WorkerFailure>| {
            let failure = failure.cloned().map(FailureNote::Worker);
            MembershipChange::of_gone_member(node, why.to_owned(), failure)
        };
        let failed = MembershipChange::Failed(worker());
        assert_eq!(gone(node(), "it failed too often", Some(&worker())), failed);
        assert_eq!(gone(node(), "", Some(&worker())), failed);
        let left = MembershipChange::Left { node: node(), why: "SIGTERM".to_owned() };
        assert_eq!(gone(node(), "SIGTERM", None), left);
        let lost = |node| MembershipChange::Lost(LostNode { node, role: LossRole::EndsRound });
        assert_eq!(gone(node(), "", None), lost(node()));

        let connection = WorkerFailure { lost_peer: Some(PeerLoss::Unnamed), ..worker() };
        assert_eq!(
            gone(node(), "it failed too often", Some(&connection)),
            MembershipChange::Failed(connection.clone())
        );
        let other = NodeName::of_rank(NodeRank(2));
        assert_eq!(gone(other.clone(), "", Some(&connection)), lost(other), "the loss is the cause");
    }

    #[test]
    fn note_of_failure_or_lost_node_survives_as_change() {
        for note in [FailureNote::Worker(worker()), FailureNote::NodeLost { node: node() }] {
            assert_eq!(MembershipChange::from(note.clone()).reported_failure(), Some(note));
        }
        let left = FailureNote::NodeLeft { node: node(), why: "SIGTERM".to_owned() };
        assert_eq!(MembershipChange::from(left).reported_failure(), None, "leaving is not a failure");
    }

    #[test]
    fn loss_found_here_is_not_a_reported_failure() {
        for role in [LossRole::EndsRound, LossRole::CausesFailureHere] {
            let lost = LostNode { node: NodeName::of_host("th1"), role };
            assert_eq!(MembershipChange::Lost(lost).reported_failure(), None);
        }
    }
}
