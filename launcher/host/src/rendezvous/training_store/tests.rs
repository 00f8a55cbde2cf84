#![expect(clippy::disallowed_methods, reason = "a test that hangs has to end")]

use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{NodeCount, NodeRank};

use super::*;
use crate::store::client::ClientSettings;
use crate::store::client::blocking::Client;
use rankrun_core::spec::LOOPBACK;
use rankrun_core::spec::rendezvous::RoundTimes;

fn network(ports: Option<PortRange>) -> NetworkSpec {
    NetworkSpec { ports, ..NetworkSpec::default() }
}

fn open_local(spec: &RendezvousSpec, ports: Option<PortRange>) -> Result<TrainingStore, RendezvousError> {
    TrainingStore::open_local(spec, &network(ports))
}

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

fn connect(server: &StoreServer, client_id: u32) -> Client {
    let answer = Duration::from_secs(30);
    let settings = ClientSettings { nonce: client_id, answer, silence: answer };
    Client::connect(&[server.local_addr()], settings, Instant::now() + answer).unwrap()
}

#[test]
fn agent_store_serves_all_generations() {
    let mut store = open_local(&standalone_spec(false), None).unwrap();
    let master = store.open().unwrap();
    assert_eq!((master.addr.as_str(), master.uses_agent_store), (LOOPBACK, true));
    TcpStream::connect((LOOPBACK, master.port)).unwrap();
    store.reset().unwrap();
    assert_eq!(store.open().unwrap(), master);
}

#[test]
fn worker_hosted_store_leaves_port_free() {
    let mut store = open_local(&standalone_spec(true), None).unwrap();
    let master = store.open().unwrap();
    assert!(!master.uses_agent_store && store.server().is_none());
    TcpListener::bind((LOOPBACK, master.port)).unwrap();
}

#[test]
fn free_port_is_within_port_range() {
    // Another process may use a port of the range meanwhile; then the next port is tried.
    let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let first = taken.local_addr().unwrap().port().min(u16::MAX - 50);
    let ports = PortRange { first, last: first + 50 };
    for worker_store in [false, true] {
        let mut store = open_local(&standalone_spec(worker_store), Some(ports)).unwrap();
        let port = store.open().unwrap().port;
        assert!((first..=first + 50).contains(&port), "{port} of {ports}");
    }
    let none =
        PortRange { first: taken.local_addr().unwrap().port(), last: taken.local_addr().unwrap().port() };
    let error = open_local(&standalone_spec(false), Some(none)).unwrap_err();
    assert!(error.hint().is_some() && error.to_string().contains(&none.first.to_string()), "{error}");
    let given = open_local(&static_spec(LOOPBACK, 0), Some(none));
    assert!(given.is_err(), "port 0 is a free one");
}

#[test]
fn own_hostname_resolves_to_this_machine() {
    let name = nix::unistd::gethostname().unwrap().into_string().unwrap();
    if (name.as_str(), 0).to_socket_addrs().is_err() {
        println!("skipped: `{name}` has no address here");
        return;
    }
    let mut store = open_local(&static_spec(&name, 0), None).unwrap();
    let master = store.open().unwrap();
    TcpStream::connect((name.as_str(), master.port)).unwrap();
}

#[test]
fn port_in_use_is_an_error_naming_its_owner() {
    let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    for host in ["localhost", LOOPBACK] {
        let error = open_local(&static_spec(host, port), None).unwrap_err();
        let words = format!("cannot listen on `{LOOPBACK}:{port}`: ");
        assert!(error.to_string().starts_with(&words) && error.to_string().contains("(pid "), "{error}");
    }
}

#[test]
fn loopback_master_address_implies_loopback_client() {
    let open = |addr: &str| {
        let mut store = TrainingStore::unopened(StoreHost::Agent, &network(None));
        store.set_address(addr, None);
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
    let server = Arc::new(StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
    let master = Master { addr: "th1".to_owned(), port: 1, uses_agent_store: true };
    let run_id = RunId("worker".to_owned());
    let mut store = TrainingStore::shared(Some(Arc::clone(&server)), &run_id, master.clone());
    assert_eq!(store.open().unwrap(), master);
    store.set_agent_ids([7].into_iter());
    let mut agent = connect(&server, 7);
    let kept = ["/worker/rankrun/state", "/worker/torchelastic/role_info/0"];
    for key in kept.iter().chain(&["/worker/attempt_0/default_pg/x", "/init/"]) {
        agent.set(key, b"1").unwrap();
    }
    store.reset().unwrap();
    let mut keys = agent.list_keys().unwrap();
    keys.sort();
    assert_eq!(keys, kept.map(|key| key.as_bytes().to_vec()));
}
