//! Messages between agents besides the shared state: descriptors, heartbeats, failures, successes, and reasons for
//! leaving. This module writes and reads their keys through the backend; `note` and `descriptor` define the texts.

use super::{C10dBackend, parse_i64};
use crate::store::client::ClientError;
use rankrun_core::rendezvous::FailureNote;
use rankrun_core::rendezvous::note::ClosingNote;
use rankrun_core::rendezvous::state::Node;

/// Success of a node that has been counted. Before, the key holds the count that the node found.
const COUNTED: &[u8] = b"done";

/// How often a failure may replace another one. Agents change the key once or twice per round.
const MOST_TRIES: u32 = 8;

/// A node's descriptor and heartbeat, as read from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeDescription {
    /// Its descriptor; empty if it published none.
    pub text: Vec<u8>,
    /// Its heartbeat counter, if it exists.
    pub heartbeat: Option<i64>,
}

/// Which agent reported the first failure of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureAuthor {
    /// This node reported it.
    Us,
    /// Another node reported it earlier.
    Another,
}

impl C10dBackend {
    /// Increments this node's heartbeat counter.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn send_heartbeat(&mut self, node: &Node) -> Result<(), ClientError> {
        self.request_client.add(&self.keys.heartbeat(node), 1).await.map(drop)
    }

    /// As the host of the store: announces that closed connections are reported at once.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn mark_watched(&mut self) -> Result<(), ClientError> {
        self.request_client.set(&self.keys.watched(), b"1").await
    }

    /// Whether the host of the store reports closed connections.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn is_watched(&mut self) -> Result<bool, ClientError> {
        self.request_client.check(&[&self.keys.watched()]).await
    }

    /// Reads descriptors and heartbeats of nodes.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn node_descriptions(
        &mut self,
        nodes: &[Node],
    ) -> Result<Vec<NodeDescription>, ClientError> {
        let names: Vec<String> =
            nodes.iter().flat_map(|node| [self.keys.agent(node), self.keys.heartbeat(node)]).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut values = self.request_client.multi_get(&names).await?.into_iter();
        let mut next = || values.next().unwrap_or_default();
        Ok(nodes.iter().map(|_| NodeDescription { text: next(), heartbeat: parse_i64(&next()) }).collect())
    }

    /// Publishes this node's descriptor and first heartbeat.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn introduce(&mut self, node: &Node, descriptor: &[u8]) -> Result<(), ClientError> {
        self.request_client.set(&self.keys.agent(node), descriptor).await?;
        self.send_heartbeat(node).await
    }

    /// Reports the failure that ends a round, or replaces `before`, this node's earlier report. A failure without a
    /// lost peer replaces one with a lost peer. Returns the stored failure, and which agent reported it.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn publish_failure(
        &mut self,
        round: u64,
        note: &FailureNote,
        before: Option<&FailureNote>,
    ) -> Result<(FailureNote, FailureAuthor), ClientError> {
        let (key, ours) = (self.keys.failure(round), note.to_json());
        let mut expected = before.map(FailureNote::to_json).unwrap_or_default();
        let mut found = self.request_client.compare_set(&key, &expected, &ours).await?;
        for _ in 0..MOST_TRIES {
            let is_absent = found == expected;
            let yields = FailureNote::from_json(&found).is_some_and(|earlier| note.overrides(&earlier));
            // Compares bytes: the parsed form is sanitized and may differ from the writer's.
            if found == ours || !is_absent && !yields {
                break;
            }
            expected = if is_absent { Vec::new() } else { found };
            found = self.request_client.compare_set(&key, &expected, &ours).await?;
        }
        self.notify_change().await?;
        let by = if found == ours { FailureAuthor::Us } else { FailureAuthor::Another };
        Ok((FailureNote::from_json(&found).unwrap_or_else(|| note.clone()), by))
    }

    /// Replaces this node's failure by its real cause, if it is still the first failure of the round.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn correct_failure(
        &mut self,
        round: u64,
        ours: &FailureNote,
        cause: &FailureNote,
    ) -> Result<(), ClientError> {
        self.request_client.compare_set(&self.keys.failure(round), &ours.to_json(), &cause.to_json()).await?;
        self.notify_change().await
    }

    /// Writes the closing note, unless the job has one.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn publish_end(&mut self, note: &ClosingNote) -> Result<(), ClientError> {
        self.request_client.compare_set(&self.keys.end(), b"", &note.to_json()).await.map(drop)
    }

    /// Publishes why this node leaves the job.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn publish_left(&mut self, node: &Node, why: &str) -> Result<(), ClientError> {
        self.request_client.set(&self.keys.left(node), why.as_bytes()).await
    }

    /// The reason that a node gave when it left.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn why_left(&mut self, node: &Node) -> Result<Vec<u8>, ClientError> {
        self.request_client.get(&self.keys.left(node)).await
    }

    /// The first failure of a round; `None` if no node reported one.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn failure(&mut self, round: u64) -> Result<Option<FailureNote>, ClientError> {
        Ok(FailureNote::from_json(&self.request_client.get(&self.keys.failure(round)).await?))
    }

    /// Reports that all workers of this node have succeeded, with a key of this node. `beside_torch` is the number of
    /// members if torchrun agents are among them. Then torch's counter is incremented too.
    ///
    /// Among rankrun agents only the last success of all `members` sends a notification. No agent can act before it. In
    /// a large job, a notification of every success would keep all agents busy.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn publish_success(
        &mut self,
        round: u64,
        node: &Node,
        members: &[Node],
        beside_torch: Option<usize>,
    ) -> Result<(), ClientError> {
        let done = self.keys.succeeded(round, node);
        if let Some(nodes) = beside_torch {
            self.count_success(&done, round, nodes).await?;
        }
        self.request_client.set(&done, COUNTED).await?;
        let all: Vec<String> = members.iter().map(|member| self.keys.succeeded(round, member)).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        if beside_torch.is_some() || self.request_client.check(&all).await? {
            self.notify_change().await?;
        }
        Ok(())
    }

    /// Counts this node once in torch's counter. Counted twice, the node would end the round too early for the others.
    /// The first try may have lost its connection before the answer. The counter only grows: if it is unchanged since
    /// before that try, the try did nothing. If it has grown, the try may have succeeded, and is not repeated.
    async fn count_success(&mut self, done: &str, round: u64, nodes: usize) -> Result<(), ClientError> {
        let torch = self.torch_keys(round);
        let before = parse_i64(&self.request_client.get(&torch.num_members()).await?).unwrap_or(0);
        let tries = format!("{before}");
        let found = self.request_client.compare_set(done, b"", tries.as_bytes()).await?;
        let is_counted = found != tries.as_bytes();
        let members =
            if is_counted { before } else { self.request_client.add(&torch.num_members(), 1).await? };
        if usize::try_from(members).is_ok_and(|members| members >= nodes) {
            self.request_client.set(&torch.last_member(), b"<val_ignored>").await?;
        }
        Ok(())
    }

    /// Keeps the ranks of a round for the agent that completes the next one.
    ///
    /// # Errors
    /// See [`Client`](crate::store::client::Client).
    pub(crate) async fn publish_ranks(&mut self, ranks: &[u8]) -> Result<(), ClientError> {
        self.request_client.set(&self.keys.ranks(), ranks).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rankrun_contract::rank::RunId;

    use super::*;
    use crate::store::StoreServer;
    use crate::store::client::ClientSettings;
    use crate::store::client::blocking::{Client, runtime};
    use rankrun_core::rendezvous::keys::RendezvousKeys;
    use tokio::runtime::Runtime;

    const NODES: usize = 3;

    struct StoreFixture {
        _store: StoreServer,
        other: Client,
        runtime: Runtime,
        backend: C10dBackend,
        node: Node,
    }

    impl StoreFixture {
        #[expect(clippy::disallowed_methods, reason = "a test that hangs has to end")]
        fn new() -> Self {
            let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let answer = Duration::from_secs(30);
            let settings = ClientSettings { nonce: 1, answer, silence: answer };
            let deadline = Instant::now() + settings.answer;
            let addresses = [store.local_addr()];
            let keys = RendezvousKeys::dynamic(&RunId("job".to_owned()));
            let runtime = runtime();
            let backend = C10dBackend::connect(&addresses, &settings, keys, answer);
            let backend = runtime.block_on(backend).unwrap();
            let other = Client::connect(&addresses, settings, deadline).unwrap();
            let node = Node { addr: "th1".to_owned(), pid: 1, local_id: 0 };
            Self { _store: store, other, runtime, backend, node }
        }

        fn count(&mut self) -> i64 {
            let key = self.backend.keys().round(0).num_members();
            parse_i64(&self.other.get(&key).unwrap()).unwrap_or(0)
        }

        /// Another node is counted.
        fn one_more(&mut self) {
            let key = self.backend.keys().round(0).num_members();
            self.other.add(&key, 1).unwrap();
        }

        /// The earlier try wrote the count that it had found, then lost its connection.
        fn tried(&mut self) {
            let (key, found) = (self.backend.keys().succeeded(0, &self.node), self.count());
            self.other.set(&key, found.to_string().as_bytes()).unwrap();
        }

        fn tell(&mut self) {
            self.publish_as(&self.node.clone(), &[], Some(NODES));
        }

        fn publish_as(&mut self, node: &Node, members: &[Node], beside_torch: Option<usize>) {
            let published = self.backend.publish_success(0, node, members, beside_torch);
            self.runtime.block_on(published).unwrap();
        }

        fn all(&mut self) -> bool {
            let key = self.backend.keys().round(0).last_member();
            self.other.check(&[&key]).unwrap()
        }
    }

    #[test]
    fn repeated_success_is_counted_once() {
        let mut fixture = StoreFixture::new();
        fixture.one_more();
        fixture.tell();
        fixture.tell();
        assert_eq!((fixture.count(), fixture.all()), (2, false));
    }

    #[test]
    fn success_counted_before_reconnect_is_not_recounted() {
        let mut fixture = StoreFixture::new();
        fixture.tried();
        fixture.one_more();
        fixture.tell();
        assert_eq!((fixture.count(), fixture.all()), (1, false));
    }

    #[test]
    fn success_not_counted_before_reconnect_is_counted() {
        let mut fixture = StoreFixture::new();
        fixture.one_more();
        fixture.tried();
        fixture.tell();
        assert_eq!((fixture.count(), fixture.all()), (2, false));
    }

    #[test]
    fn last_success_is_announced_after_reconnect() {
        let mut fixture = StoreFixture::new();
        (1..NODES).for_each(|_| fixture.one_more());
        fixture.tried();
        fixture.one_more();
        fixture.tell();
        assert_eq!((fixture.count(), fixture.all()), (3, true));
    }

    #[test]
    fn rankrun_only_job_does_not_use_the_counter() {
        let mut fixture = StoreFixture::new();
        fixture.publish_as(&fixture.node.clone(), &[], None);
        assert_eq!(fixture.count(), 0);
        let key = fixture.backend.keys().succeeded(0, &fixture.node);
        assert!(fixture.other.check(&[&key]).unwrap());
    }

    #[test]
    fn rankrun_only_job_notifies_at_last_success() {
        let mut fixture = StoreFixture::new();
        let other = Node { addr: "th2".to_owned(), pid: 2, local_id: 0 };
        let members = [fixture.node.clone(), other.clone()];
        let notifies = |fixture: &mut StoreFixture| {
            let version = fixture.other.get(&fixture.backend.keys().version()).unwrap();
            parse_i64(&version).unwrap_or(0)
        };
        fixture.publish_as(&members[0], &members, None);
        assert_eq!(notifies(&mut fixture), 0);
        fixture.publish_as(&members[1], &members, None);
        assert_eq!(notifies(&mut fixture), 1);
        // After a reconnect the success is reported again.
        fixture.publish_as(&members[0], &members, None);
        assert_eq!(notifies(&mut fixture), 2);
    }
}
