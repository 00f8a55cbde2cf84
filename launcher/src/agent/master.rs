//! Where the workers of one node meet: opens the store and says its address.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use rankrun_contract::env::Master;

use crate::error::LaunchError;
use crate::spec::{RendezvousSpec, StoreHost, StorePlan};
use crate::store::{StoreError, StoreServer};

/// The workers' store of a job of one node.
#[derive(Debug)]
pub(super) struct Meeting {
    workers: StoreOwner,
}

/// Who opens the workers' store.
#[derive(Debug)]
enum StoreOwner {
    /// The agent's own store, one listener for all generations.
    Agent {
        /// The server.
        store: StoreServer,
        /// What the workers are told.
        master: Master,
    },
    /// Worker rank 0 opens the store, on a port that was free a moment ago, another one for each generation
    /// (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`).
    Worker {
        /// What the workers are told as host.
        addr: String,
    },
}

impl Meeting {
    /// Opens what the job needs, where no other node takes part.
    ///
    /// # Errors
    /// The name has no address here, or the port cannot be bound.
    pub(super) fn open(rendezvous: &RendezvousSpec) -> Result<Self, LaunchError> {
        let StorePlan { addr, port, host } = rendezvous.store();
        let workers = match host {
            StoreHost::Worker => StoreOwner::Worker { addr: addr.to_owned() },
            StoreHost::Agent => StoreOwner::agent_store(addr, port)?,
        };
        Ok(Self { workers })
    }

    /// What the workers of the next generation are told; `first` spares a store that nobody has used yet.
    ///
    /// # Errors
    /// The store is gone, or no port is free.
    pub(super) fn next_generation(&self, first: bool) -> Result<Master, LaunchError> {
        match &self.workers {
            StoreOwner::Agent { store, master } => {
                if !first {
                    store.reset()?;
                }
                Ok(master.clone())
            }
            StoreOwner::Worker { addr } => {
                let port =
                    free_port().map_err(|source| LaunchError::Setup { what: "find a free port", source })?;
                Ok(Master { addr: addr.clone(), port, agent_store: false })
            }
        }
    }
}

impl Meeting {
    /// The pids by which clients of the workers' store have greeted in this generation; nothing where that store is not
    /// ours.
    pub(super) fn greeted(&self) -> Option<BTreeSet<u32>> {
        match &self.workers {
            StoreOwner::Agent { store, .. } => store.greeted().ok(),
            StoreOwner::Worker { .. } => None,
        }
    }
}

impl StoreOwner {
    fn agent_store(addr: &str, port: u16) -> Result<Self, LaunchError> {
        let store = bind_first(addr, &resolve(addr, port)?)?;
        let master = Master { addr: addr.to_owned(), port: store.local_addr().port(), agent_store: true };
        Ok(Self::Agent { store, master })
    }
}

/// Listens on the first address that this machine has.
fn bind_first(host: &str, addresses: &[SocketAddr]) -> Result<StoreServer, LaunchError> {
    let mut refusal = None;
    for address in addresses {
        match StoreServer::bind(*address) {
            Ok(store) => return Ok(store),
            Err(StoreError::Bind { addr, source }) if is_of_another_machine(&source) => {
                refusal = refusal.or(Some(StoreError::Bind { addr, source }));
            }
            // A port in use: the next address would not be where others look for us.
            Err(error) => return Err(error.into()),
        }
    }
    Err(refusal.map_or_else(
        || LaunchError::Address { host: host.to_owned(), source: io::ErrorKind::NotFound.into() },
        LaunchError::Store,
    ))
}

/// Whether no interface has this address, or the kernel not even its family.
fn is_of_another_machine(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, LaunchError> {
    if host == "localhost" {
        return Ok(loopback(port).into());
    }
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    (host, port)
        .to_socket_addrs()
        .map(Iterator::collect)
        .map_err(|source| LaunchError::Address { host: host.to_owned(), source })
}

/// Without asking a resolver; clients try both families.
fn loopback(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use rankrun_contract::rank::{NodeCount, NodeRank, RunId};

    use super::*;
    use crate::spec::LOOPBACK;
    use crate::spec::rendezvous::RoundTimes;

    fn alone(worker_store: bool) -> RendezvousSpec {
        RendezvousSpec::Standalone { run_id: RunId("job".to_owned()), local_addr: None, worker_store }
    }

    fn fixed(host: &str, port: u16) -> RendezvousSpec {
        RendezvousSpec::Static {
            run_id: RunId("job".to_owned()),
            addr: host.to_owned(),
            port,
            local_addr: None,
            nodes: NodeCount::ONE,
            node_rank: NodeRank(0),
            times: RoundTimes::default(),
        }
    }

    #[test]
    fn one_store_serves_all_generations() {
        let meeting = Meeting::open(&alone(false)).unwrap();
        let master = meeting.next_generation(true).unwrap();
        assert_eq!((master.addr.as_str(), master.agent_store), (LOOPBACK, true));
        TcpStream::connect((LOOPBACK, master.port)).unwrap();
        assert_eq!(meeting.next_generation(false).unwrap(), master);
    }

    #[test]
    fn workers_may_open_theirs_themselves() {
        let meeting = Meeting::open(&alone(true)).unwrap();
        let master = meeting.next_generation(true).unwrap();
        assert!(!master.agent_store);
        TcpListener::bind((LOOPBACK, master.port)).unwrap();
    }

    #[test]
    fn our_own_name_is_this_machine() {
        let name = nix::unistd::gethostname().unwrap().into_string().unwrap();
        if (name.as_str(), 0).to_socket_addrs().is_err() {
            println!("skipped: `{name}` has no address here");
            return;
        }
        let meeting = Meeting::open(&fixed(&name, 0)).unwrap();
        let master = meeting.next_generation(true).unwrap();
        TcpStream::connect((name.as_str(), master.port)).unwrap();
    }

    #[test]
    fn a_port_in_use_is_not_evaded() {
        let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        for host in ["localhost", LOOPBACK] {
            let error = Meeting::open(&fixed(host, port)).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot listen on `{LOOPBACK}:{port}`"));
        }
    }
}
