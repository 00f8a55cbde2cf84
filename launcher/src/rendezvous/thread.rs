//! The agent's end of the rendezvous: a handle that never blocks, and the thread behind it.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rankrun_contract::rank::LocalWorldSize;

use crate::error::LaunchError;
use crate::rendezvous::descriptor::Entry;
use crate::rendezvous::{News, Parting, Wish};
use crate::spec::RendezvousSpec;
use crate::spec::rendezvous::NetworkSpec;

/// What a rendezvous is told at its start.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How the workers find each other; not [`RendezvousSpec::Standalone`], and static with more than one node.
    pub spec: RendezvousSpec,
    /// How this node is reached, and where it may listen.
    pub network: NetworkSpec,
    /// `--role`
    pub role: String,
    /// Workers of this node in the first round.
    pub workers: LocalWorldSize,
    /// The program and its arguments: all nodes of a job run the same.
    pub entry: Entry,
    /// This launcher's version.
    pub version: String,
}

/// The rendezvous, as the agent has it. Nothing but [`Self::open`] and [`Self::end`] waits for anything.
#[derive(Debug)]
pub struct Rendezvous {}

impl Rendezvous {
    /// Opens the store where this node hosts it, and starts the thread that reaches it. No wish is made yet.
    ///
    /// The thread inherits the caller's signal mask.
    ///
    /// # Errors
    /// The store, or an address for this node, cannot be had.
    pub fn open(setup: Setup) -> Result<Self, LaunchError> {
        todo!("{setup:?}")
    }

    /// Tells the thread what the agent wants. It is obeyed in order, within milliseconds.
    pub fn wish(&self, wish: Wish) {
        todo!("{wish:?}")
    }

    /// The next news, if there are any; [`Self::as_fd`] is readable as long as there are.
    #[must_use]
    pub fn receive(&self) -> Option<News> {
        todo!()
    }

    /// The numbers by which clients of the workers' store have greeted in this round, where that store is ours.
    #[must_use]
    pub fn greeted(&self) -> Option<BTreeSet<u32>> {
        todo!()
    }

    /// Says how this node goes, keeps the stores that it hosts for the others for a while, and ends the thread. Returns
    /// within `limit`.
    pub fn end(self, parting: Parting, limit: Duration) {
        todo!("{parting:?} {limit:?}")
    }
}

impl AsFd for Rendezvous {
    fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}
