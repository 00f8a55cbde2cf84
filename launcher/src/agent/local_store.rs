//! The training store of a job of one node: opens it and returns its address. With several nodes the
//! rendezvous provides the store instead.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rankrun_contract::env::Master;

use crate::error::LaunchError;
use crate::rendezvous::exchange::AgentStore as _;
use crate::rendezvous::host::{StoreEndpoint, port_taken_unless_answered};
use crate::rendezvous::worker_store::WorkerHostedStore;
use crate::spec::rendezvous::PortRange;
use crate::spec::{RendezvousSpec, StoreHost, StorePlan};
use crate::store::listen::Interfaces;
use crate::store::{StoreError, StoreServer};
use bytesize::ByteSize;

/// A name server may take this long: resolvers ask several servers, several times.
const RESOLVE_LIMIT: Duration = Duration::from_secs(60);

/// The training store of a job of one node.
#[derive(Debug)]
pub(super) struct LocalTrainingStore {
    owner: StoreOwner,
}

/// The process that opens the training store.
#[derive(Debug)]
enum StoreOwner {
    /// The agent opens the store: one listener for all generations.
    Agent {
        store: StoreServer,
        /// The address that the workers get.
        master: Master,
    },
    /// Worker rank 0 opens the store on a port that was free a moment ago. Each generation gets another port
    /// (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`).
    Worker(WorkerHostedStore),
}

impl LocalTrainingStore {
    /// Opens what the job needs on a single node; a free port counts as such.
    ///
    /// # Errors
    /// The name has no address here, or the port cannot be bound.
    pub(super) fn open(rendezvous: &RendezvousSpec, ports: Option<PortRange>) -> Result<Self, LaunchError> {
        let plan = rendezvous.store();
        let workers = match plan.host {
            StoreHost::Worker => StoreOwner::Worker(WorkerHostedStore::new(plan.addr.to_owned(), ports)),
            StoreHost::Agent => StoreOwner::agent_store(plan, ports)?,
        };
        Ok(Self { owner: workers })
    }

    /// Limits the memory of a store that the agent owns.
    ///
    /// # Errors
    /// The store is gone.
    pub(super) fn with_limit(self, limit: Option<ByteSize>) -> Result<Self, LaunchError> {
        if let (StoreOwner::Agent { store, .. }, Some(limit)) = (&self.owner, limit) {
            store.limit(limit)?;
        }
        Ok(self)
    }

    /// The address for the workers of the next generation. With `first`, the store is still unused and needs
    /// no reset.
    ///
    /// # Errors
    /// The store is gone, or no port is free.
    pub(super) fn next_generation(&mut self, first: bool) -> Result<Master, LaunchError> {
        match &mut self.owner {
            StoreOwner::Agent { store, master } => {
                if !first {
                    store.reset()?;
                }
                Ok(master.clone())
            }
            StoreOwner::Worker(store) => Ok(store.open()?),
        }
    }
}

impl LocalTrainingStore {
    /// Pids of the clients that connected to the training store in this generation; `None` where the agent
    /// does not own the store.
    pub(super) fn client_pids(&self) -> Option<BTreeSet<u32>> {
        match &self.owner {
            StoreOwner::Agent { store, .. } => store.client_ids().ok(),
            StoreOwner::Worker(_) => None,
        }
    }
}

impl StoreOwner {
    fn agent_store(plan: StorePlan<'_>, ports: Option<PortRange>) -> Result<Self, LaunchError> {
        let no_address = |source| LaunchError::Address {
            host: plan.addr.to_owned(),
            named_by: plan.source.map(str::to_owned),
            source,
        };
        let addresses = resolve(plan.addr, plan.port).map_err(no_address)?;
        let store =
            bind_first_local(&addresses, ports)?.ok_or_else(|| no_address(io::ErrorKind::NotFound.into()))?;
        let master =
            Master { addr: plan.addr.to_owned(), port: store.local_addr().port(), uses_agent_store: true };
        Ok(Self::Agent { store, master })
    }
}

/// Listens on the first address that this machine has; `None` where it has none of them.
fn bind_first_local(
    addresses: &[SocketAddr],
    ports: Option<PortRange>,
) -> Result<Option<StoreServer>, LaunchError> {
    let mut refusal = None;
    for address in addresses {
        match StoreServer::bind_in(Interfaces::One(address.ip()), address.port(), ports) {
            Ok(store) => return Ok(Some(store)),
            Err(StoreError::Bind { addr, source }) if is_not_local(&source) => {
                refusal = refusal.or(Some(StoreError::Bind { addr, source }));
            }
            // The port is in use. The next address would not be where the other nodes connect.
            Err(error) => return Err(port_taken_unless_answered(error).into()),
        }
    }
    refusal.map_or(Ok(None), |refusal| Err(refusal.into()))
}

/// True if no interface has this address, or the kernel lacks its address family.
fn is_not_local(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    StoreEndpoint { host: host.trim_matches(['[', ']']).to_owned(), port }.resolve(RESOLVE_LIMIT)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, ToSocketAddrs};

    use rankrun_contract::rank::{NodeCount, NodeRank, RunId};

    use super::*;
    use crate::spec::LOOPBACK;
    use crate::spec::rendezvous::RoundTimes;

    fn standalone_spec(worker_store: bool) -> RendezvousSpec {
        RendezvousSpec::Standalone { run_id: RunId("job".to_owned()), local_addr: None, worker_store }
    }

    fn static_spec(host: &str, port: u16) -> RendezvousSpec {
        RendezvousSpec::Static {
            run_id: RunId("job".to_owned()),
            addr: host.to_owned(),
            port,
            named_by: None,
            local_addr: None,
            nodes: NodeCount::ONE,
            node_rank: NodeRank(0),
            times: RoundTimes::default(),
        }
    }

    #[test]
    fn agent_store_serves_all_generations() {
        let mut meeting = LocalTrainingStore::open(&standalone_spec(false), None).unwrap();
        let master = meeting.next_generation(true).unwrap();
        assert_eq!((master.addr.as_str(), master.uses_agent_store), (LOOPBACK, true));
        TcpStream::connect((LOOPBACK, master.port)).unwrap();
        assert_eq!(meeting.next_generation(false).unwrap(), master);
    }

    #[test]
    fn worker_hosted_store_leaves_port_free() {
        let mut meeting = LocalTrainingStore::open(&standalone_spec(true), None).unwrap();
        let master = meeting.next_generation(true).unwrap();
        assert!(!master.uses_agent_store);
        TcpListener::bind((LOOPBACK, master.port)).unwrap();
    }

    #[test]
    fn free_port_is_within_port_range() {
        // Another process may use a port of the range meanwhile; then the next port is tried.
        let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let first = taken.local_addr().unwrap().port().min(u16::MAX - 50);
        let ports = PortRange { first, last: first + 50 };
        for worker_store in [false, true] {
            let mut meeting = LocalTrainingStore::open(&standalone_spec(worker_store), Some(ports)).unwrap();
            let port = meeting.next_generation(true).unwrap().port;
            assert!((first..=first + 50).contains(&port), "{port} of {ports}");
        }
        let none =
            PortRange { first: taken.local_addr().unwrap().port(), last: taken.local_addr().unwrap().port() };
        let error = LocalTrainingStore::open(&standalone_spec(false), Some(none)).unwrap_err();
        assert!(error.hint().is_some() && error.to_string().contains(&none.first.to_string()), "{error}");
        let given = LocalTrainingStore::open(&static_spec(LOOPBACK, 0), Some(none));
        assert!(given.is_err(), "port 0 is a free one");
    }

    #[test]
    fn own_hostname_resolves_to_this_machine() {
        let name = nix::unistd::gethostname().unwrap().into_string().unwrap();
        if (name.as_str(), 0).to_socket_addrs().is_err() {
            println!("skipped: `{name}` has no address here");
            return;
        }
        let mut meeting = LocalTrainingStore::open(&static_spec(&name, 0), None).unwrap();
        let master = meeting.next_generation(true).unwrap();
        TcpStream::connect((name.as_str(), master.port)).unwrap();
    }

    #[test]
    fn port_in_use_is_an_error_naming_its_owner() {
        let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        for host in ["localhost", LOOPBACK] {
            let error = LocalTrainingStore::open(&static_spec(host, port), None).unwrap_err();
            let words = format!("cannot listen on `{LOOPBACK}:{port}`: ");
            assert!(error.to_string().starts_with(&words) && error.to_string().contains("(pid "), "{error}");
        }
    }
}
