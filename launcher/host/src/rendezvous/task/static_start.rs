//! The first round of a static job. After it the job is like a dynamic one. Beside torchrun agents there is no other
//! round.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::assign_ranks::AssignRanksError;
use crate::rendezvous::c10d::StoreFailure;
use crate::rendezvous::static_rdzv::{
    AuthorityCheck, FirstRound, JoinProgress, StaticSetup, first_round, read_join_progress, release_ranks,
    withdraw_claims,
};
use rankrun_core::rendezvous::keys::RoundKeys;
use rankrun_core::rendezvous::{NodeName, Round, WaitReason, WaitStatus};

use super::assigning::ExchangeTask;
use super::joining::Joining;
use super::peer_directory::{members_by_rank, ranks_of};
use super::phase::Phase;
use super::rendezvous_task::{RendezvousTask, wall};

/// How far a static job has come.
#[derive(Debug, Clone)]
pub(super) enum StaticProgress {
    /// The agents of the other nodes are not known yet.
    NotStarted,
    /// All agents are rankrun's: the shared state has the further rounds.
    RankrunOnly,
    /// torchrun agents take part: this is the only round.
    Mixed(Box<Round>),
}

/// A node on the way into the first round.
#[derive(Debug)]
pub(super) struct FirstRoundJoining {
    pub(super) joining: Joining,
    setup: Arc<StaticSetup>,
    authority: AuthorityCheck,
    pub(super) exchange: ExchangeTask<FirstRound>,
}

/// The result of the exchange.
pub(super) type FirstRoundResult = Result<FirstRound, AssignRanksError>;

impl RendezvousTask {
    /// Starts the exchange of the first round.
    pub(super) fn begin_first_round(&mut self) {
        let (Some(me), Some(job)) = (&self.me, &self.plan.static_job) else { return };
        let Phase::Joining(joining) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        let workers = joining.workers;
        let setup = Arc::new(StaticSetup {
            run_id: job.run_id.clone(),
            node: me.node.clone(),
            descriptor: self.plan.descriptor(workers),
            node_rank: job.node_rank,
            nodes: self.plan.nodes.max,
            role: self.plan.role.clone(),
            workers,
            master: job.master.clone(),
            timeout: self.plan.times.join,
            lease: self.plan.times.lease,
            wall: wall(),
        });
        let (connection, of_exchange) = (self.exchange_connection(), Arc::clone(&setup));
        let exchange =
            ExchangeTask::start(
                async move { first_round(&mut connection.open().await?, &of_exchange).await },
            );
        let authority = AuthorityCheck::of(&setup);
        self.phase = Phase::FirstRound(FirstRoundJoining { joining, setup, authority, exchange });
    }

    /// Checks the settings of this node, and tells the user which nodes are missing.
    pub(super) async fn maintain_first_round(&mut self) -> Result<Instant, StoreFailure> {
        let now = Instant::now();
        let until = now + self.plan.tick();
        let (Phase::FirstRound(first), Some(backend)) = (&mut self.phase, &mut self.backend) else {
            return Ok(until);
        };
        match first.authority.perform(&first.setup, backend.request_client()).await {
            Ok(()) => {}
            Err(AssignRanksError::Store(error)) => return Err(error.into()),
            Err(AssignRanksError::Failed(error)) => {
                self.fail(error);
                return Ok(now);
            }
        }
        Ok(until.min(self.report_missing_ranks(now).await?))
    }

    /// Tells the user now and then which nodes are missing; returns the time of the next line.
    async fn report_missing_ranks(&mut self, now: Instant) -> Result<Instant, StoreFailure> {
        let (Phase::FirstRound(first), Some(me), Some(backend)) =
            (&mut self.phase, &self.me, &mut self.backend)
        else {
            return Ok(now);
        };
        let next_line = first.joining.next_line();
        let Some(left) = first.joining.line_is_due(now) else { return Ok(next_line) };
        let (next_line, node_rank) = (first.joining.next_line(), first.setup.node_rank);
        let nodes = self.plan.nodes;
        let own = NodeName::of_node(&me.node, Some(&self.plan.host), Some(node_rank));
        let (job, us) = ((&first.setup.run_id, nodes.max), (node_rank, &me.node));
        let JoinProgress { here, missing, holder } =
            read_join_progress(backend.request_client(), job, us, own).await?;
        if let Some(holder) = holder {
            let lease = humantime::format_duration(self.plan.times.lease);
            self.events.send(RendezvousEvent::Note(format!(
                "node rank {node_rank} is held by an agent on {holder}: this agent takes it over unless that agent sends a heartbeat within {lease}"
            )));
            return Ok(next_line);
        }
        let awaited = if missing.is_empty() { WaitReason::Ranks } else { WaitReason::Enough };
        let missing = missing.into_iter().map(NodeName::of_rank).collect();
        let status = WaitStatus { here, missing, min: nodes.min, max: nodes.max, left, awaited };
        self.events.send(RendezvousEvent::Waiting(status));
        Ok(next_line)
    }

    pub(super) async fn on_first_round_result(&mut self, result: FirstRoundResult) {
        match result {
            Ok(first) => {
                if let Err(error) = self.on_first_round(first).await {
                    self.on_store_error(error).await;
                }
            }
            Err(AssignRanksError::Failed(error)) => self.fail(error),
            Err(AssignRanksError::Store(error)) => {
                self.on_store_error(error.into()).await;
            }
        }
    }

    async fn on_first_round(&mut self, first: FirstRound) -> Result<(), StoreFailure> {
        self.phase.drop_exchange();
        match first {
            FirstRound::Running => {
                self.static_progress = StaticProgress::RankrunOnly;
                // This node takes the place of the agent with its node rank in the state.
                self.read_store().await?;
            }
            FirstRound::Alone { round, state } => {
                self.static_progress = StaticProgress::RankrunOnly;
                self.peers.record_ranks(ranks_of(&state));
                self.start_round(*round, members_by_rank(&state)).await;
            }
            FirstRound::Mixed(round) => {
                if let (Some(backend), Some(job)) = (&mut self.backend, &self.plan.static_job) {
                    backend.set_round_keys(RoundKeys::first_of_static(&job.run_id));
                }
                self.static_progress = StaticProgress::Mixed(Box::new(round.clone()));
                self.lease.end();
                self.start_round(round, Vec::new()).await;
            }
        }
        Ok(())
    }

    /// As the host of the store of a static job: frees the ranks of agents whose connections have closed.
    pub(super) async fn free_ranks(&mut self, departed: &BTreeSet<u32>) -> Result<(), StoreFailure> {
        let (Some(job), Some(store), Some(backend)) = (&self.plan.static_job, &self.store, &mut self.backend)
        else {
            return Ok(());
        };
        let client = backend.request_client();
        let withdrawn = withdraw_claims(client, (&job.run_id, self.plan.nodes.max), departed).await?;
        if withdrawn.is_empty() {
            return Ok(());
        }
        // A store that does not answer is this node's own, and about to end.
        let connected = store.connected().await.unwrap_or_default();
        Ok(release_ranks(client, &job.run_id, withdrawn, &connected).await?)
    }
}
