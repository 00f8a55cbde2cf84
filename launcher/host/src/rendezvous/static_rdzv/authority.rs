//! Compares this node's settings with those of node rank 0, which hosts the store of a static job. The settings of rank
//! 0 are valid for the job. A node with other settings fails itself, and the other nodes continue.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock to see how long a misfit stays")]

use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeRank;

use super::{JoinedNodes, StaticJob, StaticSetup, claim};
use crate::rendezvous::assign_ranks::AssignRanksError;
use crate::rendezvous::error::RendezvousError;
use crate::store::client::Client;
use rankrun_core::rendezvous::NodeName;
use rankrun_core::rendezvous::descriptor::{Mismatch, parse_and_compare};

/// Node rank 0 reads the claims again after this time, while one of them does not belong to the job.
const REREAD: Duration = Duration::from_millis(250);

/// A node with a claim for another job than that of node rank 0.
pub(super) struct ClaimMismatch {
    node: NodeName,
    mismatch: Mismatch,
}

impl From<ClaimMismatch> for AssignRanksError {
    fn from(ClaimMismatch { node, mismatch }: ClaimMismatch) -> Self {
        RendezvousError::Mismatch { node: Box::new(node), mismatch }.into()
    }
}

/// Whether this node has been compared with the node that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthorityCheck {
    /// The deciding node has no claim yet. This node may have been faster than its host.
    Pending,
    /// This node belongs to the job, or is the deciding node.
    Passed,
}

impl AuthorityCheck {
    /// The check of this node.
    #[must_use]
    pub(crate) fn of(setup: &StaticSetup) -> Self {
        if setup.node_rank == NodeRank(0) { Self::Passed } else { Self::Pending }
    }

    /// Compares this node with node rank 0, once rank 0 has a claim. If torchrun has rank 0, the rankrun nodes compare
    /// themselves with each other.
    ///
    /// # Errors
    /// This node belongs to another job, or the store fails.
    pub(crate) async fn perform(
        &mut self,
        setup: &StaticSetup,
        store: &mut Client,
    ) -> Result<(), AssignRanksError> {
        if *self == Self::Passed {
            return Ok(());
        }
        let job = StaticJob::of(setup);
        let keys = [job.keys.claim(NodeRank(0)), job.round.role_info(NodeRank(0))];
        let values = store.multi_get(&keys.each_ref().map(String::as_str)).await?;
        let [claim, role_info] = &values[..] else { return Ok(()) };
        let misfit = match (is_claim(claim), role_info.is_empty()) {
            (true, _) => job.compare(claim),
            (false, false) => job.first_mismatch(&job.claim_texts(store).await?),
            (false, true) => return Ok(()),
        };
        *self = Self::Passed;
        misfit.map_or(Ok(()), |misfit| Err(misfit.into()))
    }
}

impl StaticJob<'_> {
    /// The first node with a claim for another job or version.
    pub(super) fn first_mismatch(&self, claims: &[Vec<u8>]) -> Option<ClaimMismatch> {
        claims.iter().filter(|text| is_claim(text)).find_map(|text| self.compare(text))
    }

    pub(super) fn compare(&self, claim: &[u8]) -> Option<ClaimMismatch> {
        let (node, agent) = claim::parse_claim_header(claim);
        let mismatch = parse_and_compare(&self.setup.descriptor, agent.as_bytes()).err()?;
        Some(ClaimMismatch { node, mismatch })
    }

    /// On node rank 0: waits until a misfit has failed itself, or until a leaving node has released its rank.
    pub(super) async fn wait_for_rank(
        &self,
        store: &mut Client,
        misfit: Option<ClaimMismatch>,
        since: &mut Option<Instant>,
    ) -> Result<JoinedNodes, AssignRanksError> {
        let deadline = *since.get_or_insert_with(Instant::now) + self.setup.timeout;
        if Instant::now() >= deadline {
            return Err(match misfit {
                Some(misfit) => misfit.into(),
                None => self.too_few(store).await?.into(),
            });
        }
        tokio::time::sleep_until(deadline.min(Instant::now() + REREAD).into()).await;
        Ok(JoinedNodes::HaveChanged)
    }
}

fn is_claim(text: &[u8]) -> bool {
    !text.is_empty() && text != claim::WITHDRAWN_CLAIM
}
