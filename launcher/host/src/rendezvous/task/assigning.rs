//! A complete round whose members assign the ranks of their workers. The exchange is a task with a connection of its
//! own. Meanwhile this node keeps its place in the round, and drops the exchange if the round does not stand any more.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rankrun_contract::rank::{NodeCount, NodeRank};
use tokio::task::JoinHandle;

use crate::hang::board::EvidenceBoard;
use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::assign_ranks::{AssignRanksError, RankExchange, assign_ranks};
use crate::rendezvous::c10d::{C10dBackend, StoreFailure};
use crate::rendezvous::host::{OPTIONAL_LOOKUP_LIMIT, StoreEndpoint};
use crate::store::StoreServer;
use crate::store::client::{Client, ClientError, ClientSettings};
use rankrun_core::rendezvous::Round;
use rankrun_core::rendezvous::round::{RoundGoal, RoundStep, next};
use rankrun_core::rendezvous::state::{Node, RendezvousState};

use super::evidence_exchange::EvidenceExchange;
use super::joining::Joining;
use super::member::{Membership, PastRound};
use super::peer_directory::{members_by_rank, ranks_of};
use super::phase::Phase;
use super::rendezvous_task::{RendezvousTask, wall};

/// A node in a complete round that has no ranks yet.
#[derive(Debug)]
pub(super) struct RankAssigning {
    pub(super) joining: Joining,
    /// Number of the round.
    number: u64,
    /// Its members by rank.
    nodes: Vec<Node>,
    pub(super) exchange: ExchangeTask<Round>,
}

/// The result of the exchange.
pub(super) type RanksResult = Result<Round, AssignRanksError>;

/// A task that exchanges keys with the other members, over a connection of its own. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct ExchangeTask<T> {
    task: JoinHandle<Result<T, AssignRanksError>>,
}

/// What an exchange needs for its connection.
#[derive(Debug, Clone)]
pub(super) struct ExchangeConnection {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) settings: ClientSettings,
}

impl ExchangeConnection {
    /// # Errors
    /// The store does not answer.
    pub(super) async fn open(self) -> Result<Client, ClientError> {
        let limit = self.settings.answer;
        Client::connect_within(&self.addresses, self.settings, limit).await
    }
}

impl<T: Send + 'static> ExchangeTask<T> {
    pub(super) fn start(
        exchange: impl Future<Output = Result<T, AssignRanksError>> + Send + 'static,
    ) -> Self {
        Self { task: tokio::spawn(exchange) }
    }

    /// The result. May be dropped and called again until it is returned.
    pub(super) async fn result(&mut self) -> Result<T, AssignRanksError> {
        let failed = |error| AssignRanksError::Store(io::Error::other(error).into());
        (&mut self.task).await.unwrap_or_else(|error| Err(failed(error)))
    }
}

impl<T> Drop for ExchangeTask<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RendezvousTask {
    /// The settings of a further connection to the store that was reached.
    pub(super) fn exchange_connection(&self) -> ExchangeConnection {
        let reached = self.backend.as_ref().and_then(|backend| backend.peer_addr().ok());
        let addresses = reached.map_or_else(|| self.connection.addresses.clone(), |address| vec![address]);
        ExchangeConnection { addresses, settings: self.client_settings() }
    }

    /// Starts the exchange of the round that is complete.
    pub(super) fn begin_assigning_ranks(&mut self) {
        let (Phase::Joining(_), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend) else {
            return;
        };
        let (number, nodes) = (backend.state().round, members_by_rank(backend.state()));
        let node_rank = nodes.iter().position(|member| *member == me.node).unwrap_or_default();
        let node_rank = NodeRank(u32::try_from(node_rank).unwrap_or(u32::MAX));
        self.peers.record_ranks(ranks_of(backend.state()));
        let Phase::Joining(joining) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        let agents = &self.peers.agents;
        let exchange = RankExchange {
            keys: self.plan.keys.clone(),
            round: number,
            role: self.plan.role.clone(),
            workers: joining.workers,
            node_rank,
            members: nodes.iter().map(|node| (node.clone(), agents.get(node).cloned())).collect(),
            read_timeout: self.plan.times.read,
            nonce: self.plan.nonce,
            resolve: Arc::new(|host, port| {
                let endpoint = StoreEndpoint { host: host.to_owned(), port };
                Box::pin(async move { endpoint.look_up(OPTIONAL_LOOKUP_LIMIT).await })
            }),
            training_store: Arc::clone(&self.training_store),
            address_cache: self.address_cache.clone(),
        };
        let agent_nonces: Vec<u32> = agents.values().map(|agent| agent.nonce).collect();
        let (connection, training_store) = (self.exchange_connection(), Arc::clone(&self.training_store));
        let exchange = ExchangeTask::start(async move {
            training_store.lock().await.set_agent_ids(agent_nonces.into_iter());
            assign_ranks(&mut connection.open().await?, &exchange).await
        });
        self.phase = Phase::AssigningRanks(RankAssigning { joining, number, nodes, exchange });
    }

    /// Keeps this node in the complete round, and joins the next round if this one is not valid any more.
    pub(super) async fn maintain_completed_round(&mut self) -> Result<Instant, StoreFailure> {
        let now = Instant::now();
        let until = now + self.plan.tick();
        let next_line = self.report_waiting(now);
        let Some((me, backend)) = self.me.as_ref().zip(self.backend.as_ref()) else { return Ok(until) };
        let view = self.peers.view(backend.state());
        if let RoundStep::Write { state, notifies } = next(&view, me, RoundGoal::Hold, now, wall()) {
            self.write(&state, notifies).await?;
        }
        let state = self.backend.as_ref().map(C10dBackend::state);
        let Phase::AssigningRanks(assigning) = &self.phase else { return Ok(until) };
        if state.is_some_and(|state| assigning.stands(state)) {
            return Ok(until.min(next_line));
        }
        self.join_round_after();
        Ok(now)
    }

    /// The round is over before its workers could start: joins the next one.
    fn join_round_after(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        let Phase::AssigningRanks(RankAssigning { mut joining, number, nodes, exchange }) = phase else {
            self.phase = phase;
            return;
        };
        drop(exchange);
        joining.before = Some(PastRound { number, nodes });
        self.phase = Phase::Joining(joining);
    }

    pub(super) async fn on_ranks_result(&mut self, result: RanksResult) {
        let Phase::AssigningRanks(assigning) = &mut self.phase else { return };
        match result {
            Ok(round) => {
                let nodes = std::mem::take(&mut assigning.nodes);
                self.start_round(round, nodes).await;
            }
            Err(AssignRanksError::Failed(error)) => self.fail(error),
            Err(AssignRanksError::Store(error)) => {
                self.on_store_error(error.into()).await;
            }
        }
    }

    /// The nodes tell each other of the progress of their ranks.
    fn begin_evidence_exchange(
        &self,
        round: &Round,
        membership: &mut Membership,
    ) -> Option<Arc<EvidenceBoard>> {
        let board = (round.nodes > NodeCount::ONE).then(|| Arc::new(EvidenceBoard::new(round)))?;
        let (connection, keys) = (self.exchange_connection(), self.plan.keys.clone());
        membership.evidence_exchange = Some(EvidenceExchange::start(Arc::clone(&board), connection, keys));
        Some(board)
    }

    /// The workers may start.
    pub(super) async fn start_round(&mut self, mut round: Round, nodes: Vec<Node>) {
        round.interface.clone_from(&self.interface);
        let server = self.training_store.lock().await.server().cloned();
        let serves = |server: &Arc<StoreServer>| server.local_addr().port() == round.master.port;
        let training_server = server.filter(|_| round.node_rank.0 == 0).filter(serves);
        let size = round.nodes.get() as usize;
        let mut membership = Membership::new(round.number, nodes, size);
        let evidence_board = self.begin_evidence_exchange(&round, &mut membership);
        self.phase = Phase::Member(Box::new(membership));
        self.events.send(RendezvousEvent::Joined { round: Box::new(round), training_server, evidence_board });
    }
}

impl RankAssigning {
    /// Whether the round still has all its members.
    fn stands(&self, state: &RendezvousState) -> bool {
        state.round == self.number
            && state.complete
            && !state.closed
            && self.nodes.iter().all(|node| state.participants.contains(node))
    }
}
