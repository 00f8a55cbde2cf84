//! The port of the store that this node must host is in use: finds out whether another launcher hosts this job there.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its own limit")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{NodeRank, RunId};

use crate::io_thread::IoThread;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::port_owner;
use crate::rendezvous::static_rdzv::claim_name;
use crate::store::StoreError;
use crate::store::client::{Client, ClientError, ClientSettings};
use rankrun_core::rendezvous::NodeName;
use rankrun_core::rendezvous::keys::{RendezvousKeys, RoundKeys};

use super::plan::Plan;

/// How long the store at the port may take to answer, and its launcher to write its name.
const STORE_ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// The time between two reads.
const REREAD: Duration = Duration::from_millis(20);

/// The launcher whose store has keys of this job.
struct OtherHost {
    /// Its node; `None` if it has written no name.
    node: Option<NodeName>,
}

/// The error of a store that cannot be opened, with what is at its port.
pub(super) fn explain_port_in_use(error: StoreError, plan: &Plan, io_thread: &IoThread) -> RendezvousError {
    let (StoreError::InUse { addr, .. } | StoreError::Bind { addr, .. }) = &error else {
        return error.into();
    };
    let (port, has_node_rank) = (addr.port(), plan.static_job.is_some());
    let search = HostSearch {
        nonce: plan.nonce,
        keys: plan.keys.clone(),
        static_run_id: plan.static_job.as_ref().map(|job| job.run_id.clone()),
    };
    let Some(OtherHost { node }) = io_thread.block_on(search.find_at(port)) else { return error.into() };
    let owner = port_owner::port_owner(port);
    RendezvousError::AlreadyHosted { has_node_rank, port, owner, node: node.map(Box::new) }
}

/// What identifies a store of this job.
struct HostSearch {
    nonce: u32,
    keys: RendezvousKeys,
    /// Set in a static job.
    static_run_id: Option<RunId>,
}

impl HostSearch {
    /// The launcher whose store at this port of this machine has keys of this job.
    async fn find_at(&self, port: u16) -> Option<OtherHost> {
        let until = Instant::now() + STORE_ANSWER_LIMIT;
        let addresses: [SocketAddr; 2] =
            [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
        let settings =
            ClientSettings { nonce: self.nonce, answer: STORE_ANSWER_LIMIT, silence: STORE_ANSWER_LIMIT };
        let mut client = Client::connect(&addresses, settings, until).await.ok()?;
        // It may have opened the store a moment ago.
        loop {
            if let Some(found) = self.read(&mut client).await.ok()? {
                return Some(found);
            }
            if Instant::now() >= until {
                return None;
            }
            tokio::time::sleep(REREAD).await;
        }
    }

    async fn read(&self, client: &mut Client) -> Result<Option<OtherHost>, ClientError> {
        let Some(run_id) = &self.static_run_id else {
            let is_there = client.check(&[self.keys.state()]).await?;
            return Ok(is_there.then_some(OtherHost { node: None }));
        };
        let rank = NodeRank(0);
        let keys = [self.keys.claim(rank), RoundKeys::first_of_static(run_id).role_info(rank)];
        let values = client.multi_get(&keys.each_ref().map(String::as_str)).await?;
        let [claim, role_info] = &values[..] else { return Ok(None) };
        let node = claim_name(claim).map(NodeName::without_rank);
        // A torchrun agent claims no rank.
        Ok((node.is_some() || !role_info.is_empty()).then_some(OtherHost { node }))
    }
}
