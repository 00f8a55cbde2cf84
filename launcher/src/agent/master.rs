//! Where the workers of one node meet: opens the store and says its address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

use rankrun_contract::env::Master;

use crate::error::LaunchError;
use crate::spec::RendezvousSpec;
use crate::store::StoreServer;

const LOOPBACK: &str = "127.0.0.1";

/// The workers' meeting point for the life of the agent.
#[derive(Debug)]
pub(super) enum Meeting {
    /// The agent's own store, one listener for all generations.
    AgentStore {
        /// The server.
        store: StoreServer,
        /// What the workers are told.
        master: Master,
    },
    /// Worker rank 0 opens the store, on a port that was free a moment ago, another one for each generation
    /// (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`).
    WorkerStore {
        /// What the workers are told as host.
        addr: String,
    },
}

impl Meeting {
    /// Opens what the job needs. A loopback address, unless the user named another one.
    ///
    /// # Errors
    /// The name has no address here, or the port cannot be bound.
    pub(super) fn open(rendezvous: &RendezvousSpec) -> Result<Self, LaunchError> {
        let (addr, port) = match rendezvous {
            RendezvousSpec::Standalone { local_addr, worker_store: true, .. } => {
                let addr = local_addr.clone().unwrap_or_else(|| LOOPBACK.to_owned());
                return Ok(Self::WorkerStore { addr });
            }
            RendezvousSpec::Standalone { local_addr, worker_store: false, .. } => {
                (local_addr.as_deref().unwrap_or(LOOPBACK), 0)
            }
            // The agents' store on the endpoint is another issue's: nobody can ask for it yet.
            RendezvousSpec::C10d { local_addr, .. } => (local_addr.as_deref().unwrap_or(LOOPBACK), 0),
            RendezvousSpec::Static { addr, port, .. } => (addr.as_str(), *port),
        };
        let store = bind_first(addr, port)?;
        let master = Master { addr: addr.to_owned(), port: store.local_addr().port(), agent_store: true };
        Ok(Self::AgentStore { store, master })
    }

    /// What the workers of the next generation are told; `first` spares a store that nobody has used yet.
    ///
    /// # Errors
    /// The store is gone, or no port is free.
    pub(super) fn next_generation(&self, first: bool) -> Result<Master, LaunchError> {
        match self {
            Self::AgentStore { store, master } => {
                if !first {
                    store.reset()?;
                }
                Ok(master.clone())
            }
            Self::WorkerStore { addr } => {
                let port =
                    free_port().map_err(|source| LaunchError::Setup { what: "find a free port", source })?;
                Ok(Master { addr: addr.clone(), port, agent_store: false })
            }
        }
    }
}

fn bind_first(host: &str, port: u16) -> Result<StoreServer, LaunchError> {
    let mut refusal = None;
    for address in resolve(host, port)? {
        match StoreServer::bind(address) {
            Ok(store) => return Ok(store),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.map_or_else(
        || LaunchError::Address { host: host.to_owned(), source: io::ErrorKind::NotFound.into() },
        LaunchError::Store,
    ))
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, LaunchError> {
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    (host, port)
        .to_socket_addrs()
        .map(Iterator::collect)
        .map_err(|source| LaunchError::Address { host: host.to_owned(), source })
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
