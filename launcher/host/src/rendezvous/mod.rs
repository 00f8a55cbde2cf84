//! The rendezvous: which nodes take part in the job, their order, and the master address of the workers. The agents of
//! several nodes, rankrun's and torchrun's, agree on that over one store.
//!
//! Agent and rendezvous exchange messages. A [`RendezvousCommand`] goes to the [`Rendezvous`], a [`RendezvousEvent`] comes
//! back. In a job of one node the event is there at once. Otherwise a task owns every connection to other agents, so a
//! slow or dead machine never delays a signal on this one. This module does not start or stop workers.

pub mod address;
pub(crate) mod assign_ranks;
pub(crate) mod c10d;
pub(crate) mod error;
pub(crate) mod host;
pub(crate) mod local;
pub(crate) mod port_owner;
pub(crate) mod static_rdzv;
pub mod task;
pub(crate) mod training_store;
pub(crate) mod unreached;

use std::sync::Arc;

use rankrun_core::rendezvous::{
    LostNode, MembershipChange, RendezvousCommand, RendezvousEnd, Round, WaitStatus,
};

use crate::hang::board::EvidenceBoard;
use crate::store::StoreServer;
use local::LocalRendezvous;
use task::{NetworkRendezvous, Setup};
use training_store::TrainingStore;

/// How this node gets into rounds.
#[derive(Debug)]
pub enum Rendezvous {
    /// A job of one node.
    Local(LocalRendezvous),
    /// A static or c10d job, in which other nodes may take part.
    Network(NetworkRendezvous),
}

impl Rendezvous {
    /// Opens the stores that this node hosts from the start. It joins no round yet.
    ///
    /// # Errors
    /// A store, or an address for this node, cannot be had.
    pub fn open(setup: Setup) -> Result<Self, error::RendezvousError> {
        if setup.spec.is_shared() {
            return Ok(Self::Network(NetworkRendezvous::open(setup)?));
        }
        let training_store = TrainingStore::open_local(&setup.spec, &setup.network)?;
        Ok(Self::Local(LocalRendezvous::new(training_store)))
    }

    /// Sends a command. Returns the answer if it needs no other node; otherwise it is an event of `NetworkRendezvous::receive`.
    pub fn send(&mut self, command: RendezvousCommand) -> Option<RendezvousEvent> {
        match self {
            Self::Local(local) => local.answer(&command),
            Self::Network(network) => {
                network.send_command(command);
                None
            }
        }
    }

    /// The connection to other nodes, if there may be any.
    #[must_use]
    pub const fn network(&self) -> Option<&NetworkRendezvous> {
        match self {
            Self::Local(_) => None,
            Self::Network(network) => Some(network),
        }
    }
}

/// A message of the rendezvous task to the agent.
#[derive(Debug)]
pub enum RendezvousEvent {
    /// A round is complete, and this node is in it.
    Joined {
        /// The members and their ranks.
        round: Box<Round>,
        /// The server of the round's training store, if it is this agent's.
        training_server: Option<Arc<StoreServer>>,
        /// What the nodes tell each other of the progress of their ranks.
        evidence_board: Option<Arc<EvidenceBoard>>,
    },
    /// The round ended for a reason on another node: stop the workers, then send [`RendezvousCommand::Join`].
    Changed(MembershipChange),
    /// The answer to [`RendezvousCommand::FindLostNode`]: the lost node, if any.
    LostNodeFound(Option<LostNode>),
    /// The workers of all nodes have succeeded.
    AllSucceeded,
    /// The rendezvous still waits for nodes.
    Waiting(WaitStatus),
    /// The store has not answered for a while: one line for the user.
    StoreUnreached(String),
    /// One line for the user, such as the chosen address or the host of the store.
    Note(String),
    /// There are no more rounds for this node.
    Ended(RendezvousEnd),
    /// The rendezvous failed: no round follows.
    Failed(error::RendezvousError),
}
