//! What an agent tells the others, and what it reads of what they have told, beside the shared state.

use super::{Backend, number};
use crate::rendezvous::FailureNote;
use crate::rendezvous::note::ClosingNote;
use crate::rendezvous::state::Node;
use crate::store::client::ClientError;

/// That a node's workers have succeeded, where it need not be counted any more; before, the count that it had found.
const COUNTED: &[u8] = b"done";

/// Failures of a round that a further one takes the place of; agents change what stands there once or twice.
const MOST_TRIES: u32 = 8;

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    /// Its descriptor; empty where it says nothing.
    pub text: Vec<u8>,
    /// Its signs of life.
    pub beat: Option<i64>,
}

/// Who told the first failure of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstBy {
    /// This node.
    Us,
    /// Another one, which was faster.
    Another,
}

impl Backend {
    /// One more sign of life.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn beat(&mut self, node: &Node) -> Result<(), ClientError> {
        self.calls.add(&self.keys.beat(node), 1).map(drop)
    }

    /// Says, as the host of the store, that whose connections close is known at once.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_watched(&mut self) -> Result<(), ClientError> {
        self.calls.set(&self.keys.watched(), b"1")
    }

    /// Whether the host of the store has said so.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn is_watched(&mut self) -> Result<bool, ClientError> {
        self.calls.check(&[&self.keys.watched()])
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

    /// Tells the failure that ends a round, in place of `before` where this node has told that. A failure that lost no
    /// peer takes the place of one that did. What stands there afterwards, and by whom.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_failure(
        &mut self,
        round: u64,
        note: &FailureNote,
        before: Option<&FailureNote>,
    ) -> Result<(FailureNote, FirstBy), ClientError> {
        let (key, ours) = (self.keys.failure(round), note.to_json());
        let mut expected = before.map(FailureNote::to_json).unwrap_or_default();
        let mut found = self.calls.compare_set(&key, &expected, &ours)?;
        for _ in 0..MOST_TRIES {
            let is_absent = found == expected;
            let yields = FailureNote::from_json(&found).is_some_and(|told| note.outranks(&told));
            // By the bytes: what is read of them is made fit for a terminal, and need not be what was meant to be said.
            if found == ours || !is_absent && !yields {
                break;
            }
            expected = if is_absent { Vec::new() } else { found };
            found = self.calls.compare_set(&key, &expected, &ours)?;
        }
        self.ring()?;
        let by = if found == ours { FirstBy::Us } else { FirstBy::Another };
        Ok((FailureNote::from_json(&found).unwrap_or_else(|| note.clone()), by))
    }

    /// Puts what has turned out to be the cause in place of a failure of ours, where that is still the first.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn correct_failure(
        &mut self,
        round: u64,
        ours: &FailureNote,
        cause: &FailureNote,
    ) -> Result<(), ClientError> {
        self.calls.compare_set(&self.keys.failure(round), &ours.to_json(), &cause.to_json())?;
        self.ring()
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

    /// Says that all workers of this node have succeeded: by a key of this node, and where torchrun agents are among the
    /// members, whose count is `beside_torch`, also in torch's way, which counts.
    ///
    /// Among agents of ours only the last success of all `members` is news: before it nobody has anything to do, and if
    /// everybody looked at everybody's, a large job would do nothing else.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_success(
        &mut self,
        round: u64,
        node: &Node,
        members: &[Node],
        beside_torch: Option<usize>,
    ) -> Result<(), ClientError> {
        let done = self.keys.done(round, node);
        if let Some(nodes) = beside_torch {
            self.count_success(&done, round, nodes)?;
        }
        self.calls.set(&done, COUNTED)?;
        let all: Vec<String> = members.iter().map(|member| self.keys.done(round, member)).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        if beside_torch.is_some() || self.calls.check(&all)? {
            self.ring()?;
        }
        Ok(())
    }

    /// Counts this node once, although it may have been counted over a connection that was lost before the answer: twice
    /// would end the round for the others too early. The count only grows, and where it is what it was before the first
    /// try, that has done nothing. If others were counted meanwhile it may have, and is not repeated.
    fn count_success(&mut self, done: &str, round: u64, nodes: usize) -> Result<(), ClientError> {
        let torch = self.torch_keys(round);
        let before = number(&self.calls.get(&torch.num_members())?).unwrap_or(0);
        let tries = format!("{before}");
        let found = self.calls.compare_set(done, b"", tries.as_bytes())?;
        let is_counted = found != tries.as_bytes();
        let members = if is_counted { before } else { self.calls.add(&torch.num_members(), 1)? };
        if usize::try_from(members).is_ok_and(|members| members >= nodes) {
            self.calls.set(&torch.last_member(), b"<val_ignored>")?;
        }
        Ok(())
    }

    /// Keeps the ranks of a round for whoever completes the next one.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub fn tell_ranks(&mut self, ranks: &[u8]) -> Result<(), ClientError> {
        self.calls.set(&self.keys.ranks(), ranks)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rankrun_contract::rank::RunId;

    use super::*;
    use crate::rendezvous::keys::Keys;
    use crate::store::StoreServer;
    use crate::store::client::{Client, ClientSettings};

    const NODES: usize = 3;

    struct Seen {
        _store: StoreServer,
        other: Client,
        backend: Backend,
        node: Node,
    }

    impl Seen {
        #[expect(clippy::disallowed_methods, reason = "a test that hangs has to end")]
        fn new() -> Self {
            let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let answer = Duration::from_secs(30);
            let settings = ClientSettings { nonce: 1, answer, silence: answer };
            let deadline = Instant::now() + settings.answer;
            let addresses = [store.local_addr()];
            let keys = Keys::dynamic(&RunId("job".to_owned()));
            let backend = Backend::connect(&addresses, &settings, keys, answer).unwrap();
            let other = Client::connect(&addresses, settings, deadline).unwrap();
            let node = Node { addr: "th1".to_owned(), pid: 1, local_id: 0 };
            Self { _store: store, other, backend, node }
        }

        fn count(&mut self) -> i64 {
            let key = self.backend.keys().round(0).num_members();
            number(&self.other.get(&key).unwrap()).unwrap_or(0)
        }

        /// Somebody is counted.
        fn one_more(&mut self) {
            let key = self.backend.keys().round(0).num_members();
            self.other.add(&key, 1).unwrap();
        }

        /// The try before this one has come so far that it wrote what it had found.
        fn tried(&mut self) {
            let (key, found) = (self.backend.keys().done(0, &self.node), self.count());
            self.other.set(&key, found.to_string().as_bytes()).unwrap();
        }

        fn tell(&mut self) {
            self.backend.tell_success(0, &self.node, &[], Some(NODES)).unwrap();
        }

        fn all(&mut self) -> bool {
            let key = self.backend.keys().round(0).last_member();
            self.other.check(&[&key]).unwrap()
        }
    }

    #[test]
    fn a_success_is_counted_once_however_often_it_is_told() {
        let mut seen = Seen::new();
        seen.one_more();
        seen.tell();
        seen.tell();
        assert_eq!((seen.count(), seen.all()), (2, false));
    }

    #[test]
    fn what_was_counted_before_the_connection_was_lost_is_not_counted_again() {
        let mut seen = Seen::new();
        seen.tried();
        seen.one_more();
        seen.tell();
        assert_eq!((seen.count(), seen.all()), (1, false));
    }

    #[test]
    fn what_was_not_counted_before_the_connection_was_lost_is_counted() {
        let mut seen = Seen::new();
        seen.one_more();
        seen.tried();
        seen.tell();
        assert_eq!((seen.count(), seen.all()), (2, false));
    }

    #[test]
    fn the_last_one_says_so_also_over_the_next_connection() {
        let mut seen = Seen::new();
        (1..NODES).for_each(|_| seen.one_more());
        seen.tried();
        seen.one_more();
        seen.tell();
        assert_eq!((seen.count(), seen.all()), (3, true));
    }

    #[test]
    fn among_agents_of_ours_nobody_counts() {
        let mut seen = Seen::new();
        seen.backend.tell_success(0, &seen.node, &[], None).unwrap();
        assert_eq!(seen.count(), 0);
        let key = seen.backend.keys().done(0, &seen.node);
        assert!(seen.other.check(&[&key]).unwrap());
    }

    #[test]
    fn among_agents_of_ours_only_the_last_success_rings() {
        let mut seen = Seen::new();
        let other = Node { addr: "th2".to_owned(), pid: 2, local_id: 0 };
        let members = [seen.node.clone(), other.clone()];
        let rings = |seen: &mut Seen| {
            let version = seen.other.get(&seen.backend.keys().version()).unwrap();
            number(&version).unwrap_or(0)
        };
        seen.backend.tell_success(0, &members[0], &members, None).unwrap();
        assert_eq!(rings(&mut seen), 0);
        seen.backend.tell_success(0, &members[1], &members, None).unwrap();
        assert_eq!(rings(&mut seen), 1);
        // Over a new connection it is told once more.
        seen.backend.tell_success(0, &members[0], &members, None).unwrap();
        assert_eq!(rings(&mut seen), 2);
    }
}
