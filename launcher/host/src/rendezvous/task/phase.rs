//! What the agent wants at the moment, with what that needs.

use super::assigning::RankAssigning;
use super::joining::Joining;
use super::member::Membership;
use super::rendezvous_task::WakeReason;
use super::static_start::FirstRoundJoining;

/// What the agent wants at the moment.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing.
    Idle,
    /// To be in the next round.
    Joining(Joining),
    /// To be in the first round of a static job.
    FirstRound(FirstRoundJoining),
    /// The round is complete, and its members assign the ranks.
    AssigningRanks(RankAssigning),
    /// To know what becomes of its round.
    Member(Box<Membership>),
}

impl Phase {
    /// The common part of all phases on the way into a round.
    pub(super) const fn joining(&self) -> Option<&Joining> {
        match self {
            Self::Joining(joining) => Some(joining),
            Self::FirstRound(first) => Some(&first.joining),
            Self::AssigningRanks(assigning) => Some(&assigning.joining),
            Self::Idle | Self::Member(_) => None,
        }
    }

    /// The same, to change it.
    pub(super) const fn joining_mut(&mut self) -> Option<&mut Joining> {
        match self {
            Self::Joining(joining) => Some(joining),
            Self::FirstRound(first) => Some(&mut first.joining),
            Self::AssigningRanks(assigning) => Some(&mut assigning.joining),
            Self::Idle | Self::Member(_) => None,
        }
    }

    /// Drops an exchange that runs: the node still wants to join.
    pub(super) fn drop_exchange(&mut self) {
        *self = match std::mem::replace(self, Self::Idle) {
            Self::FirstRound(first) => Self::Joining(first.joining),
            Self::AssigningRanks(assigning) => Self::Joining(assigning.joining),
            phase => phase,
        };
    }

    /// The result of the exchange that runs; pending if none runs.
    pub(super) async fn exchange_result(&mut self) -> WakeReason {
        match self {
            Self::FirstRound(first) => WakeReason::FirstRound(first.exchange.result().await),
            Self::AssigningRanks(assigning) => WakeReason::Ranks(assigning.exchange.result().await),
            Self::Idle | Self::Joining(_) | Self::Member(_) => std::future::pending().await,
        }
    }
}
