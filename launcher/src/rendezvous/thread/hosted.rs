//! A port that this node was told to host on is in use: whether another launcher hosts this very job there.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its own limit")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeRank;

use crate::error::LaunchError;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::keys::RoundKeys;
use crate::rendezvous::static_rdzv::claim_name;
use crate::rendezvous::{NodeName, port_owner};
use crate::store::StoreError;
use crate::store::client::{Client, ClientError, ClientSettings};

use super::plan::Plan;

/// How long the store at the port may take to answer, and its launcher to leave its name there.
const LIMIT: Duration = Duration::from_millis(500);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// The error where the store cannot be opened: what is at its port.
pub(super) fn named(error: LaunchError, plan: &Plan) -> LaunchError {
    let LaunchError::Store(StoreError::InUse { addr, .. } | StoreError::Bind { addr, .. }) = &error else {
        return error;
    };
    let port = addr.port();
    let Some(node) = host_of_this_job(plan, port) else { return error };
    let (owner, has_node_rank) = (port_owner::port_owner(port), plan.fixed.is_some());
    RendezvousError::AlreadyHosted { has_node_rank, port, owner, node: node.map(Box::new) }.into()
}

/// The launcher whose store at this port of this machine has keys of this job; nothing inside where it leaves no name.
fn host_of_this_job(plan: &Plan, port: u16) -> Option<Option<NodeName>> {
    let until = Instant::now() + LIMIT;
    let addresses: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    let settings = ClientSettings { nonce: plan.nonce, answer: LIMIT, silence: LIMIT };
    let mut client = Client::connect(&addresses, settings, until).ok()?;
    // It may have opened the store a moment ago.
    loop {
        if let Some(found) = look(&mut client, plan).ok()? {
            return Some(found);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

fn look(client: &mut Client, plan: &Plan) -> Result<Option<Option<NodeName>>, ClientError> {
    let Some(fixed) = &plan.fixed else {
        let is_there = client.check(&[plan.keys.state()])?;
        return Ok(is_there.then_some(None));
    };
    let rank = NodeRank(0);
    let keys = [plan.keys.claim(rank), RoundKeys::first_of_static(&fixed.run_id).role_info(rank)];
    let values = client.multi_get(&keys.each_ref().map(String::as_str))?;
    let [claim, role_info] = &values[..] else { return Ok(None) };
    let name = claim_name(claim).map(NodeName::without_rank);
    // A torchrun agent claims no rank.
    Ok((name.is_some() || !role_info.is_empty()).then_some(name))
}
