//! The store where the workers meet, for the rounds in which this node has rank 0.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rankrun_contract::env::Master;

use crate::rendezvous::address;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::exchange::AgentStore;
use crate::rendezvous::worker_store::WorkerHostedStore;
use crate::spec::rendezvous::PortRange;
use crate::store::StoreServer;
use crate::store::listen::Interfaces;
use bytesize::ByteSize;

use super::plan::Fixed;

/// The agent's own store, which the agent asks who is there and the thread serves: one listener for the agent's life.
#[derive(Debug, Clone, Default)]
pub(super) struct Greeted {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    server: OnceLock<Arc<StoreServer>>,
    /// Whether the workers of this round meet there.
    is_used: AtomicBool,
}

impl Greeted {
    /// The numbers in the greetings of this round; nothing where the workers meet elsewhere.
    pub(super) fn ask(&self) -> Option<BTreeSet<u32>> {
        let is_used = self.shared.is_used.load(Ordering::Acquire);
        self.shared.server.get().filter(|_| is_used)?.client_ids().ok()
    }

    /// Whether the workers of the round that begins meet in it.
    pub(super) fn used(&self, is_used: bool) {
        self.shared.is_used.store(is_used, Ordering::Release);
    }

    /// The server, where it was opened.
    pub(super) fn server(&self) -> Option<&StoreServer> {
        self.shared.server.get().map(Arc::as_ref)
    }

    /// The workers meet in a store that is open already.
    pub(super) fn is(&self, store: &Arc<StoreServer>) {
        self.shared.server.get_or_init(|| Arc::clone(store));
    }
}

/// Who opens the workers' store.
#[derive(Debug)]
pub(super) enum WorkersStore {
    /// The agent.
    Agent(AgentHosted),
    /// Worker rank 0.
    Worker(WorkerHostedStore),
    /// Nobody besides: the workers meet in the rendezvous store, which is ours.
    Shared(SharedStore),
}

/// The rendezvous store, where the workers meet in it too.
#[derive(Debug)]
pub(super) struct SharedStore {
    store: Arc<StoreServer>,
    master: Master,
    /// Before the agents' keys. Not the run id alone: `worker` is also before torch's keys of the workers.
    prefixes: [String; 2],
    /// The numbers in the greetings of the agents.
    agents: BTreeSet<u32>,
}

impl WorkersStore {
    /// Not open yet.
    pub(super) fn of_agent(greeted: Greeted, ports: Option<PortRange>) -> Self {
        Self::Agent(AgentHosted { greeted, addr: String::new(), only: None, ports, limit: None })
    }

    /// With another limit of what it holds.
    pub(super) fn limited(mut self, limit: Option<ByteSize>) -> Self {
        if let Self::Agent(store) = &mut self {
            store.limit = limit;
        }
        self
    }

    /// Not open yet.
    pub(super) fn of_worker(ports: Option<PortRange>) -> Self {
        Self::Worker(WorkerHostedStore::new(String::new(), ports))
    }

    /// Open already.
    pub(super) fn shared(store: Arc<StoreServer>, fixed: &Fixed) -> Self {
        let master = Master { port: store.local_addr().port(), ..fixed.master.clone() };
        let prefixes = ["rankrun", "torchelastic"].map(|part| format!("/{}/{part}/", fixed.run_id));
        // Workers may fill the store. A store that has ended says so at the next request.
        let _ = store.reserve(&prefixes);
        Self::Shared(SharedStore { store, master, prefixes, agents: BTreeSet::new() })
    }

    /// Whose connections outlive a round.
    pub(super) fn agents(&mut self, numbers: impl Iterator<Item = u32>) {
        if let Self::Shared(shared) = self {
            shared.agents = numbers.collect();
        }
    }

    /// What the workers are told as host, and the address that is listened on alone, where one was asked for.
    pub(super) fn at(&mut self, addr: &str, only: Option<IpAddr>) {
        match self {
            Self::Agent(store) => {
                addr.clone_into(&mut store.addr);
                store.only = only;
            }
            Self::Worker(store) => addr.clone_into(&mut store.addr),
            // Every node was told.
            Self::Shared(_) => {}
        }
    }
}

/// A store in the agent.
#[derive(Debug)]
pub(super) struct AgentHosted {
    greeted: Greeted,
    /// What the workers are told as host.
    addr: String,
    /// `--iface` has this address.
    only: Option<IpAddr>,
    ports: Option<PortRange>,
    limit: Option<ByteSize>,
}

impl AgentHosted {
    /// Everywhere, unless no other machine can know the address, or one interface was asked for.
    fn bind(&self) -> Result<StoreServer, RendezvousError> {
        let only = address::loopback(&self.addr).or(self.only);
        let at = only.map_or(Interfaces::All, Interfaces::One);
        Ok(StoreServer::bind_in(at, 0, self.ports)?)
    }
}

impl AgentStore for AgentHosted {
    fn open(&mut self) -> Result<Master, RendezvousError> {
        let server = match self.greeted.shared.server.get() {
            Some(server) => server,
            None => {
                let server = self.bind()?;
                if let Some(limit) = self.limit {
                    server.limit(limit)?;
                }
                self.greeted.shared.server.get_or_init(|| Arc::new(server))
            }
        };
        Ok(Master { addr: self.addr.clone(), port: server.local_addr().port(), uses_agent_store: true })
    }

    fn reset(&mut self) -> Result<(), RendezvousError> {
        Ok(self.greeted.server().map_or(Ok(()), StoreServer::reset)?)
    }
}

impl AgentStore for WorkersStore {
    fn open(&mut self) -> Result<Master, RendezvousError> {
        match self {
            Self::Agent(store) => store.open(),
            Self::Worker(store) => store.open(),
            Self::Shared(shared) => Ok(shared.master.clone()),
        }
    }

    fn reset(&mut self) -> Result<(), RendezvousError> {
        match self {
            Self::Agent(store) => store.reset(),
            Self::Worker(store) => store.reset(),
            Self::Shared(shared) => {
                let prefixes = shared.prefixes.each_ref().map(String::as_str);
                Ok(shared.store.reset_keeping(&prefixes, &shared.agents)?)
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test that hangs has to end")]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::{Duration, Instant};

    use rankrun_contract::rank::{NodeRank, RunId};

    use super::*;
    use crate::store::client::{Client, ClientSettings};

    #[test]
    fn loopback_master_address_implies_loopback_client() {
        let open = |addr: &str| {
            let mut store = WorkersStore::of_agent(Greeted::default(), None);
            store.at(addr, None);
            let port = store.open().unwrap().port;
            TcpStream::connect(("127.0.0.1", port)).unwrap();
            // An address of the loopback too, but another one.
            (store, TcpStream::connect(("127.0.0.2", port)).is_ok())
        };
        for (addr, is_everywhere) in
            [("127.0.0.1", false), ("localhost", false), ("198.18.0.11", true), ("node7", true)]
        {
            assert_eq!(open(addr).1, is_everywhere, "{addr}");
        }
    }

    #[test]
    fn worker_store_reset_removes_keys_of_any_run_id() {
        let store = Arc::new(StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
        let master = Master { addr: "th1".to_owned(), port: 1, uses_agent_store: true };
        let fixed = Fixed { run_id: RunId("worker".to_owned()), node_rank: NodeRank(0), master };
        let mut workers = WorkersStore::shared(Arc::clone(&store), &fixed);
        workers.agents([7].into_iter());
        let answer = Duration::from_secs(30);
        let settings = ClientSettings { nonce: 7, answer, silence: answer };
        let deadline = Instant::now() + settings.answer;
        let mut client = Client::connect(&[store.local_addr()], settings, deadline).unwrap();
        let kept = ["/worker/rankrun/state", "/worker/torchelastic/role_info/0"];
        for key in kept.iter().chain(&["/worker/attempt_0/default_pg/x", "/init/"]) {
            client.set(key, b"1").unwrap();
        }
        workers.reset().unwrap();
        let mut keys = client.list_keys().unwrap();
        keys.sort();
        assert_eq!(keys, kept.map(|key| key.as_bytes().to_vec()));
    }
}
