//! The simulated store in memory, with the requests and answers between store and agents.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::rendezvous::ranks::Ranks;
use crate::rendezvous::state::{Node, RendezvousState};

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) state: Rc<RendezvousState>,
    /// Counts the writes; equal versions mean equal states.
    pub(super) version: u64,
    pub(super) heartbeats: Rc<BTreeMap<Node, i64>>,
    pub(super) ranks: Option<Rc<Ranks>>,
}

/// A request of an agent.
#[derive(Debug, Clone)]
pub(super) enum Request {
    /// Reads the state, and the heartbeats too if this agent's heartbeat is due.
    Read { reads_heartbeats: bool },
    /// Replaces the state if it still has the `expected` version.
    Write { state: Rc<RendezvousState>, expected: u64, notifies: bool },
}

/// The store's answer to a request.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) state: Rc<RendezvousState>,
    pub(super) version: u64,
    pub(super) heartbeats: Option<Rc<BTreeMap<Node, i64>>>,
    pub(super) ranks: Option<Rc<Ranks>>,
}

impl Store {
    /// Whether a write against this version succeeds.
    pub(super) const fn accepts(&self, expected: u64) -> bool {
        self.version == expected
    }

    pub(super) fn write(&mut self, state: Rc<RendezvousState>) {
        let completes = state.complete && (!self.state.complete || self.state.round != state.round);
        if completes {
            let of = state.participants.iter().map(|(node, rank)| (node.clone(), rank)).collect();
            self.ranks = Some(Rc::new(Ranks { round: state.round, of }));
        }
        self.state = state;
        self.version += 1;
    }

    pub(super) fn write_heartbeat(&mut self, node: &Node) {
        let heartbeats = Rc::make_mut(&mut self.heartbeats);
        match heartbeats.get_mut(node) {
            Some(count) => *count += 1,
            None => drop(heartbeats.insert(node.clone(), 1)),
        }
    }

    pub(super) fn answer(&self, with_heartbeats: bool) -> Answer {
        Answer {
            state: Rc::clone(&self.state),
            version: self.version,
            heartbeats: with_heartbeats.then(|| Rc::clone(&self.heartbeats)),
            ranks: self.ranks.clone(),
        }
    }
}
