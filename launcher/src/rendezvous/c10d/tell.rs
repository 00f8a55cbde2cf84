//! What an agent tells the others, and what it reads of what they have told, beside the shared state.

use super::{Backend, number};
use crate::rendezvous::FailureNote;
use crate::rendezvous::note::ClosingNote;
use crate::rendezvous::state::Node;
use crate::store::client::ClientError;

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    /// Its descriptor; empty where it says nothing.
    pub text: Vec<u8>,
    /// Its signs of life.
    pub beat: Option<i64>,
}

impl Backend {
    /// One more sign of life.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn beat(&mut self, node: &Node) -> Result<(), ClientError> {
        self.calls.add(&self.keys.beat(node), 1).map(drop)
    }

    /// What nodes say of themselves, and their counters.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn introductions(&mut self, nodes: &[Node]) -> Result<Vec<Introduction>, ClientError> {
        let names: Vec<String> =
            nodes.iter().flat_map(|node| [self.keys.agent(node), self.keys.beat(node)]).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut values = self.calls.multi_get(&names)?.into_iter();
        let mut next = || values.next().unwrap_or_default();
        Ok(nodes.iter().map(|_| Introduction { text: next(), beat: number(&next()) }).collect())
    }

    /// Says who we are.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn introduce(&mut self, node: &Node, descriptor: &[u8]) -> Result<(), ClientError> {
        self.calls.set(&self.keys.agent(node), descriptor)?;
        self.beat(node)
    }

    /// Tells the failure that ends a round; the first that was told, which may be another node's.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_failure(&mut self, round: u64, note: &FailureNote) -> Result<FailureNote, ClientError> {
        let first = self.calls.compare_set(&self.keys.failure(round), b"", &note.to_json())?;
        self.ring()?;
        Ok(FailureNote::from_json(&first).unwrap_or_else(|| note.clone()))
    }

    /// Says how the job ends, unless that was said.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_end(&mut self, note: &ClosingNote) -> Result<(), ClientError> {
        self.calls.compare_set(&self.keys.end(), b"", &note.to_json()).map(drop)
    }

    /// Says why this node leaves.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_left(&mut self, node: &Node, why: &str) -> Result<(), ClientError> {
        self.calls.set(&self.keys.left(node), why.as_bytes())
    }

    /// What nodes have said about why they left.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn why_left(&mut self, node: &Node) -> Result<Vec<u8>, ClientError> {
        self.calls.get(&self.keys.left(node))
    }

    /// The first failure of a round, where one was told.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn failure(&mut self, round: u64) -> Result<Option<FailureNote>, ClientError> {
        Ok(FailureNote::from_json(&self.calls.get(&self.keys.failure(round))?))
    }

    /// Says that all workers of this node have succeeded, in torch's way and in ours.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_success(&mut self, round: u64, node: &Node, nodes: usize) -> Result<(), ClientError> {
        let torch = self.only.clone().unwrap_or_else(|| self.keys.round(round));
        // Told before over a connection that was lost: who is counted twice ends the round for the others too early.
        if self.calls.compare_set(&self.keys.done(round, node), b"", b"1")? == b"2" {
            return self.ring();
        }
        let members = self.calls.add(&torch.num_members(), 1)?;
        if usize::try_from(members).is_ok_and(|members| members >= nodes) {
            self.calls.set(&torch.last_member(), b"<val_ignored>")?;
        }
        self.calls.set(&self.keys.done(round, node), b"2")?;
        self.ring()
    }

    /// Keeps the ranks of a round for whoever completes the next one.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_ranks(&mut self, ranks: &[u8]) -> Result<(), ClientError> {
        self.calls.set(&self.keys.ranks(), ranks)
    }
}
