//! Where the workers of one node meet: opens the store and says its address.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use rankrun_contract::env::Master;

use crate::error::LaunchError;
use crate::facts::short_hostname;
use crate::spec::{RendezvousSpec, StoreHost, StorePlan};
use crate::store::{StoreError, StoreServer};

/// Every store that is open for the life of the agent.
#[derive(Debug)]
pub(super) struct Meeting {
    workers: StoreOwner,
    /// Where the agents of a dynamic rendezvous meet; to a job of one node nobody else comes.
    _agents: Option<StoreServer>,
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
    /// Opens what the job needs. The agents' store of a c10d endpoint is another issue's: nobody can ask for it yet.
    ///
    /// # Errors
    /// The name has no address here, or the port cannot be bound.
    pub(super) fn open(rendezvous: &RendezvousSpec) -> Result<Self, LaunchError> {
        let agents = match rendezvous {
            RendezvousSpec::C10d { host, port, .. } => Some(bind_endpoint(host, *port)?),
            RendezvousSpec::Standalone { .. } | RendezvousSpec::Static { .. } => None,
        };
        let StorePlan { addr, port, host } = rendezvous.store();
        let workers = match host {
            StoreHost::Worker => StoreOwner::Worker { addr: addr.to_owned() },
            StoreHost::Agent => StoreOwner::agent_store(addr, port)?,
        };
        Ok(Self { workers, _agents: agents })
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

/// The store of the agents, which is ours to open where the endpoint is on this machine: where it can be bound.
fn bind_endpoint(host: &str, port: u16) -> Result<StoreServer, LaunchError> {
    let own_name = short_hostname() == host;
    let mut addresses = match resolve(host, port) {
        // A machine need not know an address of its own name, or one that it can bind.
        Err(_) if own_name => Vec::new(),
        found => found?,
    };
    if own_name {
        addresses.extend(loopback(port));
    }
    bind_first(host, &addresses).map_err(|error| match error {
        LaunchError::Store(StoreError::Bind { source, .. }) if is_of_another_machine(&source) => {
            LaunchError::ForeignEndpoint { host: host.to_owned() }
        }
        error => error,
    })
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

    use rankrun_contract::rank::RunId;

    use super::*;
    use crate::spec::LOOPBACK;
    use crate::spec::rendezvous::{NodeRange, RoundTimes};

    fn c10d(host: &str, port: u16, worker_store: bool) -> RendezvousSpec {
        let (run_id, host) = (RunId("job".to_owned()), host.to_owned());
        RendezvousSpec::C10d {
            run_id,
            host,
            port,
            local_addr: None,
            worker_store,
            nodes: NodeRange::ONE,
            is_host: None,
            node_rank: None,
            times: RoundTimes::default(),
        }
    }

    fn agents(meeting: &Meeting) -> SocketAddr {
        meeting._agents.as_ref().unwrap().local_addr()
    }

    #[test]
    fn a_dynamic_rendezvous_has_two_stores() {
        let meeting = Meeting::open(&c10d("localhost", 0, false)).unwrap();
        let master = meeting.next_generation(true).unwrap();
        assert_eq!((master.addr.as_str(), master.agent_store), (LOOPBACK, true));
        assert_ne!(master.port, agents(&meeting).port());
        for port in [master.port, agents(&meeting).port()] {
            TcpStream::connect((LOOPBACK, port)).unwrap();
        }
        assert_eq!(meeting.next_generation(false).unwrap(), master);
    }

    #[test]
    fn workers_may_open_theirs_themselves() {
        let meeting = Meeting::open(&c10d(LOOPBACK, 0, true)).unwrap();
        let master = meeting.next_generation(true).unwrap();
        assert!(!master.agent_store);
        TcpListener::bind((LOOPBACK, master.port)).unwrap();
        TcpStream::connect(agents(&meeting)).unwrap();
    }

    #[test]
    fn our_own_name_is_this_machine() {
        let name = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let meeting = Meeting::open(&c10d(&name, 0, false)).unwrap();
        TcpStream::connect(agents(&meeting)).unwrap();
    }

    #[test]
    fn an_endpoint_elsewhere_needs_more_than_one_node() {
        // An address for documentation, which no machine has.
        let error = Meeting::open(&c10d("192.0.2.1", 0, false)).unwrap_err();
        assert!(matches!(&error, LaunchError::ForeignEndpoint { host } if host == "192.0.2.1"), "{error}");
        assert!(error.to_string().contains("not supported yet"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_not_evaded() {
        let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        for host in ["localhost", LOOPBACK] {
            let error = Meeting::open(&c10d(host, port, false)).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot listen on `{LOOPBACK}:{port}`"));
        }
    }
}
