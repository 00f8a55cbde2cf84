//! Several agents as threads, over a real store on the loopback.

mod beside_torchrun;
mod delegate;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::thread;

use rankrun_contract::rank::RunId;

use super::*;
use crate::store::StoreServer;
use crate::store::client::ClientSettings;
use crate::store::client::blocking::Client;
use rankrun_core::rendezvous::descriptor::PROTOCOL;
use rankrun_core::rendezvous::torchrun_compat::PublishedAddress;
use rankrun_core::spec::StoreHost;
use rankrun_core::spec::rendezvous::{NetworkSpec, NodeRange};

const LIMIT: Duration = Duration::from_secs(30);

fn keys() -> RendezvousKeys {
    RendezvousKeys::dynamic(&RunId("job".to_owned()))
}

fn serve() -> StoreServer {
    StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

fn connect(store: &StoreServer) -> Client {
    connect_to(store.local_addr())
}

fn connect_to(address: SocketAddr) -> Client {
    let settings = ClientSettings { nonce: 1, answer: LIMIT, silence: LIMIT };
    Client::connect(&[address], settings, Instant::now() + LIMIT).unwrap()
}

fn node(name: &str) -> Node {
    Node { addr: name.to_owned(), pid: 1, local_id: 0 }
}

/// Members by name: a capital is of torchrun.
fn members(names: &str) -> Vec<(Node, Option<AgentDescriptor>)> {
    let descriptor = |host: &str| AgentDescriptor {
        protocol: PROTOCOL,
        version: "0.1.0".to_owned(),
        host: host.to_owned(),
        nodes: NodeRange::ONE,
        node_rank: None,
        lease: Duration::from_secs(5),
        workers: LocalWorldSize::ONE,
        entrypoint: "train.py".to_owned(),
        nonce: 7,
        max_restarts: None,
    };
    let is_ours = |name: &str| name.chars().all(char::is_lowercase);
    names.split(' ').map(|name| (node(name), is_ours(name).then(|| descriptor(name)))).collect()
}

/// A training store of a node on the loopback, published under the node's name.
struct NodeStore {
    name: String,
    server: Arc<StoreServer>,
    store: SharedTrainingStore,
}

impl NodeStore {
    fn new(name: &str) -> Self {
        let mut store = TrainingStore::unopened(StoreHost::Agent, &NetworkSpec::default());
        store.set_address(name, None);
        store.open().unwrap();
        let server = Arc::clone(store.server().unwrap());
        Self { name: name.to_owned(), server, store: shared(store) }
    }

    fn place(&self) -> PublishedAddress {
        PublishedAddress { addr: self.name.clone(), port: self.server.local_addr().port() }
    }

    fn use_by_worker(&self) {
        let port = self.server.local_addr().port();
        let mut worker = connect_to((Ipv4Addr::LOCALHOST, port).into());
        worker.set("init/", b"2").unwrap();
        worker.set("/default_pg/0//cpu//0/0", b"blob").unwrap();
        assert!(worker.check(&["init/"]).unwrap());
    }

    fn keys(&self) -> usize {
        count_keys(&self.server)
    }
}

fn shared(store: TrainingStore) -> SharedTrainingStore {
    Arc::new(tokio::sync::Mutex::new(store))
}

fn count_keys(server: &StoreServer) -> usize {
    connect_to((Ipv4Addr::LOCALHOST, server.local_addr().port()).into()).list_keys().unwrap().len()
}

/// One agent of ours.
struct Agent {
    name: String,
    store: NodeStore,
    cache: SharedAddressCache,
    workers: u32,
    role: &'static str,
    read_timeout: Duration,
}

impl Agent {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            store: NodeStore::new(name),
            cache: SharedAddressCache::default(),
            workers: 1,
            role: "default",
            read_timeout: LIMIT,
        }
    }

    fn join(&mut self, server: &StoreServer, round: u64, members: &Members) -> RanksResult {
        let index = members.iter().position(|(node, _)| node.addr == self.name).unwrap();
        let exchange = RankExchange {
            keys: keys(),
            round,
            role: self.role.to_owned(),
            workers: LocalWorldSize::new(self.workers).unwrap(),
            node_rank: NodeRank(u32::try_from(index).unwrap()),
            members: members.to_vec(),
            read_timeout: self.read_timeout,
            nonce: 7,
            resolve: resolve_to(|_, port| Ok(at(port))),
            training_store: Arc::clone(&self.store.store),
            address_cache: self.cache.clone(),
        };
        run(server, &exchange)
    }
}

/// The exchange over a connection of its own.
fn run(server: &StoreServer, exchange: &RankExchange) -> RanksResult {
    let mut client = connect(server);
    client.runtime.block_on(assign_ranks(&mut client.client, exchange))
}

type RanksResult = Result<Round, AssignRanksError>;

fn at(port: u16) -> Vec<SocketAddr> {
    vec![(Ipv4Addr::LOCALHOST, port).into()]
}

/// A name look-up with this answer.
fn resolve_to(answer: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Resolve {
    Arc::new(move |name, port| {
        let answer = answer(name, port);
        Box::pin(async move { answer })
    })
}

/// All of ours at once; those of torchrun are the caller's.
fn join_all(agents: &mut [&mut Agent], store: &StoreServer, round: u64, names: &str) -> Vec<RanksResult> {
    let members = members(names);
    thread::scope(|scope| {
        let joins: Vec<_> = agents
            .iter_mut()
            .map(|agent| {
                let members = &members;
                scope.spawn(move || agent.join(store, round, members))
            })
            .collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect()
    })
}

fn failure(result: RanksResult) -> String {
    match result.unwrap_err() {
        AssignRanksError::Failed(error) => {
            assert!(error.hint().is_some(), "{error}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_agree_on_ranks_and_master_address() {
    let store = serve();
    let (mut a, mut b, mut c) = (Agent::new("a"), Agent::new("b"), Agent::new("c"));
    (b.workers, b.role, c.workers) = (2, "other", 3);
    let rounds: Vec<Round> =
        join_all(&mut [&mut a, &mut b, &mut c], &store, 4, "a b c").into_iter().map(Result::unwrap).collect();
    let placements: Vec<_> = rounds
        .iter()
        .map(|round| {
            let (world, role_world) = (round.world_size.get(), round.role_world_size.get());
            (round.node_rank.0, round.base_rank.0, world, round.base_role_rank.0, role_world)
        })
        .collect();
    assert_eq!(placements, [(0, 0, 6, 0, 4), (1, 1, 6, 0, 2), (2, 3, 6, 1, 4)]);
    for round in &rounds {
        assert_eq!((round.number, round.nodes.get()), (4, 3));
        assert_eq!(round.master, a.store.place().master(true));
        assert_eq!(
            round.members.iter().map(|one| one.name.to_string()).collect::<Vec<_>>(),
            ["node 0 (a)", "node 1 (b)", "node 2 (c)"]
        );
    }
    assert_eq!(rounds[0].members[2].workers, LocalWorldSize::new(3));
}

#[test]
fn rank_zero_resets_store_after_all_joined_before_start() {
    let store = serve();
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let (server, place, all) = (Arc::clone(&a.store.server), a.store.place(), members("a b"));
    b.store.use_by_worker();
    for round in 0..2 {
        a.store.use_by_worker();
        thread::scope(|scope| {
            let (a, store, all) = (&mut a, &store, &all);
            let first = scope.spawn(move || a.join(store, round, all));
            let own = keys().round(round).role_info(NodeRank(0));
            assert!(connect(store).wait(&[&own], Instant::now() + LIMIT).unwrap());
            assert_eq!(count_keys(&server), 2, "the other node may still stop its workers");
            let joined = b.join(store, round, all).unwrap();
            assert_eq!(count_keys(&server), 0, "this node starts its workers now");
            assert_eq!(joined.master, place.master(true));
            first.join().unwrap().unwrap();
        });
    }
    assert_eq!(b.store.keys(), 2, "rank 0 alone resets its store");
}

#[test]
fn rank_zero_may_move_between_rankrun_agents() {
    let store = serve();
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    join_all(&mut [&mut a, &mut b], &store, 0, "a b");
    for joined in join_all(&mut [&mut a, &mut b], &store, 1, "b a") {
        assert_eq!(joined.unwrap().master, b.store.place().master(true));
    }
}

#[test]
fn unresponsive_node_is_named_in_timeout_error() {
    let store = serve();
    let short = Duration::from_millis(20);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    (a.read_timeout, b.read_timeout) = (short, short);
    let join = |agent: &mut Agent, round, names: &str| failure(agent.join(&store, round, &members(names)));
    assert_eq!(join(&mut a, 0, "a b T"), "no number of workers from node 1 (b), node 2 (T) within 20ms");
    assert_eq!(join(&mut b, 1, "a b T"), "no address of the workers' store from node 0 (a) within 20ms");
    assert_eq!(join(&mut b, 2, "T b"), "no number of workers from node 0 (T) within 20ms");
    // The address is there now, and the ranks are not.
    assert_eq!(join(&mut b, 0, "a b T"), "no ranks of this node's workers from node 0 (a) within 20ms");
}

#[test]
fn malformed_value_is_refused_with_its_writer() {
    let store = serve();
    let mut client = connect(&store);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let mut join = |agent: &mut Agent, round, set: &[(String, &str)]| {
        set.iter().for_each(|(key, text)| client.set(key, text.as_bytes()).unwrap());
        // What was set is there before the agent looks.
        assert!(client.check(&[&set[0].0]).unwrap());
        failure(agent.join(&store, round, &members("a b")))
    };
    let round = keys().round(0);
    let role_info = (round.role_info(NodeRank(1)), r#"{"role": "x", "rank": 1, "local_world_size": 1e9}"#);
    assert_eq!(
        join(&mut a, 0, &[role_info]),
        "cannot read the number of workers that node 1 (b) has written"
    );
    let many = r#"{"role": "x", "rank": 1, "local_world_size": 4294967295}"#;
    assert_eq!(
        join(&mut a, 0, &[(round.role_info(NodeRank(1)), many)]),
        "the nodes have more than 4294967295 workers together"
    );
    let round = keys().round(1);
    let place = [(round.master_addr(), "th1"), (round.master_port(), "99999")];
    assert_eq!(
        join(&mut b, 1, &place),
        "cannot read the address of the workers' store that node 0 (a) has written"
    );
    let place = [
        (round.master_addr(), "th1"),
        (round.master_port(), "29500"),
        (round.assigned_ranks(NodeRank(1)), "[1, 1, 0, 1]"),
    ];
    assert_eq!(join(&mut b, 1, &place), "cannot read the ranks that node 0 (a) has written");
}

#[test]
fn given_master_address_is_not_published() {
    let store = serve();
    let master = Master { addr: "th1".to_owned(), port: 29500, uses_agent_store: true };
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let given = |server| shared(TrainingStore::shared(server, &RunId("job".to_owned()), master.clone()));
    a.store.store = given(Some(Arc::clone(&a.store.server)));
    b.store.store = given(None);
    a.store.use_by_worker();
    for joined in join_all(&mut [&mut a, &mut b], &store, 3, "a b") {
        assert_eq!(joined.unwrap().master, master);
    }
    assert_eq!(a.store.keys(), 0, "node rank 0 hosts it");
    assert!(!connect(&store).check(&[&keys().round(3).master_addr()]).unwrap());
}
