//! The training store: where the workers of a round find each other. The variant says which process has it. It is the
//! same in a job of one node and in a round in which this node has rank 0.

mod free_port;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytesize::ByteSize;
use rankrun_contract::env::Master;
use rankrun_contract::rank::RunId;

use super::address;
use super::error::RendezvousError;
use super::host::{REQUIRED_LOOKUP_LIMIT, StoreEndpoint, port_taken_unless_answered};
use crate::blocking::BlockingCall;
use crate::store::listen::Interfaces;
use crate::store::{StoreError, StoreServer};
use rankrun_core::spec::rendezvous::{NetworkSpec, PortRange};
use rankrun_core::spec::{RendezvousSpec, StoreHost, StorePlan};

pub(crate) use free_port::WorkerRank0;

/// The training store of this node.
#[derive(Debug)]
pub enum TrainingStore {
    /// A server of this agent, with one listener for all rounds.
    OwnServer(OwnServer),
    /// Worker rank 0 opens the store (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`). The agent only finds a free port.
    WorkerRank0(WorkerRank0),
    /// The rendezvous store of a static job, which agents and workers use together.
    Shared(SharedStore),
}

/// The agent's own server.
#[derive(Debug)]
pub struct OwnServer {
    /// Host name or address that the workers get.
    addr: String,
    /// The one local address to listen on, if the user named its interface.
    only: Option<IpAddr>,
    ports: Option<PortRange>,
    limit: Option<ByteSize>,
    /// Open from the first round on in which this node has rank 0.
    server: Option<Arc<StoreServer>>,
}

/// The rendezvous store of a static job.
#[derive(Debug)]
pub struct SharedStore {
    /// The address that every node was given.
    master: Master,
    /// The server, if this node hosts it.
    server: Option<Arc<StoreServer>>,
    /// Prefixes of the agents' keys. The run id alone is not enough: `worker` is also a prefix of torch's own keys.
    agent_prefixes: [String; 2],
    /// Client ids of the agents, whose connections outlive a round.
    agent_ids: BTreeSet<u32>,
}

impl TrainingStore {
    /// Opens the store of a job of one node, on an address of this machine.
    ///
    /// # Errors
    /// The name has no address here, or the port cannot be bound.
    pub(crate) fn open_local(
        rendezvous: &RendezvousSpec,
        network: &NetworkSpec,
    ) -> Result<Self, RendezvousError> {
        let plan = rendezvous.store();
        let mut store = Self::unopened(plan.host, network);
        store.set_address(plan.addr, None);
        if let Self::OwnServer(own) = &mut store {
            own.open_at(plan)?;
        }
        Ok(store)
    }

    /// The store of a dynamic job. It opens in the first round in which this node has rank 0.
    #[must_use]
    pub(crate) fn unopened(host: StoreHost, network: &NetworkSpec) -> Self {
        let NetworkSpec { ports, store_limit, .. } = *network;
        let addr = String::new();
        match host {
            StoreHost::Agent => {
                Self::OwnServer(OwnServer { addr, only: None, ports, limit: store_limit, server: None })
            }
            StoreHost::Worker => Self::WorkerRank0(WorkerRank0::new(ports)),
        }
    }

    /// The store of a static job, which is open already. `server` is set if this node hosts it.
    #[must_use]
    pub fn shared(server: Option<Arc<StoreServer>>, run_id: &RunId, master: Master) -> Self {
        let agent_prefixes = ["rankrun", "torchelastic"].map(|part| format!("/{run_id}/{part}/"));
        if let Some(server) = &server {
            // Workers may fill the store. A store that has ended says so at the next request.
            let _ = server.reserve(&agent_prefixes);
        }
        Self::Shared(SharedStore { master, server, agent_prefixes, agent_ids: BTreeSet::new() })
    }

    /// Sets the host that the workers get, and the one address to listen on if the user named its interface. Every node
    /// of a static job was given both.
    pub(crate) fn set_address(&mut self, addr: &str, only: Option<IpAddr>) {
        match self {
            Self::OwnServer(own) => {
                addr.clone_into(&mut own.addr);
                own.only = only;
            }
            Self::WorkerRank0(worker) => addr.clone_into(&mut worker.addr),
            Self::Shared(_) => {}
        }
    }

    /// Sets the client ids of the agents, whose connections to a shared store outlive a round.
    pub(crate) fn set_agent_ids(&mut self, ids: impl Iterator<Item = u32>) {
        if let Self::Shared(shared) = self {
            shared.agent_ids = ids.collect();
        }
    }

    /// The address for the workers of the next round; opens the store if it is not open yet.
    ///
    /// # Errors
    /// The store cannot be opened, or no port is free.
    pub fn open(&mut self) -> Result<Master, RendezvousError> {
        match self {
            Self::OwnServer(own) => Ok(own.open()?),
            Self::WorkerRank0(worker) => worker.next_master(),
            Self::Shared(shared) => Ok(shared.master.clone()),
        }
    }

    /// Begins an empty keyspace, and closes the connections of the round before. Every member must have joined by then.
    ///
    /// # Errors
    /// The server has ended, or cannot tell the old connections apart.
    pub fn reset(&self) -> Result<(), RendezvousError> {
        match self {
            Self::OwnServer(OwnServer { server: Some(server), .. }) => server.reset()?,
            Self::Shared(SharedStore { server: Some(server), agent_prefixes, agent_ids, .. }) => {
                server.reset_keeping(&agent_prefixes.each_ref().map(String::as_str), agent_ids)?;
            }
            Self::OwnServer(_) | Self::Shared(_) | Self::WorkerRank0(_) => {}
        }
        Ok(())
    }

    /// [`Self::reset`] for a loop, if this agent has a server of its own.
    pub(crate) fn start_reset(&self) -> Option<Result<BlockingCall<Result<(), StoreError>>, StoreError>> {
        let Self::OwnServer(OwnServer { server: Some(server), .. }) = self else { return None };
        Some(server.start_reset())
    }

    /// The server, if it is this agent's and open.
    #[must_use]
    pub const fn server(&self) -> Option<&Arc<StoreServer>> {
        match self {
            Self::OwnServer(OwnServer { server, .. }) | Self::Shared(SharedStore { server, .. }) => {
                server.as_ref()
            }
            Self::WorkerRank0(_) => None,
        }
    }
}

impl OwnServer {
    /// Opens the server where no other machine can know the address: on the loopback. Otherwise everywhere, or on the
    /// one interface that the user named.
    fn open(&mut self) -> Result<Master, StoreError> {
        if self.server.is_none() {
            let only = address::loopback(&self.addr).or(self.only);
            self.install(StoreServer::bind_in(
                only.map_or(Interfaces::All, Interfaces::One),
                0,
                self.ports,
            )?)?;
        }
        let port = self.server.as_ref().map_or(0, |server| server.local_addr().port());
        Ok(Master { addr: self.addr.clone(), port, uses_agent_store: true })
    }

    fn install(&mut self, server: StoreServer) -> Result<(), StoreError> {
        self.limit.map_or(Ok(()), |limit| server.limit(limit))?;
        self.server = Some(Arc::new(server));
        Ok(())
    }

    /// Opens the server on the first address of the host that this machine has.
    fn open_at(&mut self, plan: StorePlan<'_>) -> Result<(), RendezvousError> {
        let no_address = |source| RendezvousError::MasterNotLocal {
            host: plan.addr.to_owned(),
            named_by: plan.source.map(str::to_owned),
            source,
        };
        let host = plan.addr.trim_matches(['[', ']']).to_owned();
        let endpoint = StoreEndpoint { host, port: plan.port };
        let addresses = endpoint.look_up_blocking(REQUIRED_LOOKUP_LIMIT).map_err(no_address)?;
        let server = bind_first_local(&addresses, self.ports)?;
        Ok(self.install(server.ok_or_else(|| no_address(io::ErrorKind::NotFound.into()))?)?)
    }
}

/// Listens on the first address that this machine has; `None` where it has none of them.
fn bind_first_local(
    addresses: &[SocketAddr],
    ports: Option<PortRange>,
) -> Result<Option<StoreServer>, StoreError> {
    let mut refusal = None;
    for address in addresses {
        match StoreServer::bind_in(Interfaces::One(address.ip()), address.port(), ports) {
            Ok(store) => return Ok(Some(store)),
            Err(StoreError::Bind { addr, source }) if is_not_local(&source) => {
                refusal = refusal.or(Some(StoreError::Bind { addr, source }));
            }
            // The port is in use. The next address would not be where the other nodes connect.
            Err(error) => return Err(port_taken_unless_answered(error)),
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// True if no interface has this address, or the kernel lacks its address family.
fn is_not_local(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}
