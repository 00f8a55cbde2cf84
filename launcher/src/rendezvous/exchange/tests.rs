//! Several agents as threads, over a real store on the loopback.

mod deputy;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::thread;

use rankrun_contract::rank::RunId;

use super::*;
use crate::rendezvous::descriptor::{Descriptor, PROTOCOL};
use crate::rendezvous::torch_peer::Place;
use crate::spec::rendezvous::NodeRange;
use crate::store::StoreServer;
use crate::store::client::ClientSettings;

const LIMIT: Duration = Duration::from_secs(30);

fn keys() -> Keys {
    Keys::dynamic(&RunId("job".to_owned()))
}

fn serve() -> StoreServer {
    StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

fn connect(store: &StoreServer) -> Client {
    let settings = ClientSettings { nonce: 1, answer: LIMIT, silence: LIMIT };
    Client::connect(&[store.local_addr()], settings, Instant::now() + LIMIT).unwrap()
}

fn node(name: &str) -> Node {
    Node { addr: name.to_owned(), pid: 1, local_id: 0 }
}

/// Members by name: a capital is of torchrun.
fn members(names: &str) -> Vec<(Node, Option<Descriptor>)> {
    let descriptor = |host: &str| Descriptor {
        protocol: PROTOCOL,
        version: "0.1.0".to_owned(),
        host: host.to_owned(),
        nodes: NodeRange::ONE,
        node_rank: None,
        lease: Duration::from_secs(5),
        workers: LocalWorldSize::ONE,
        entrypoint: "train.py".to_owned(),
        nonce: 7,
    };
    let is_ours = |name: &str| name.chars().all(char::is_lowercase);
    names.split(' ').map(|name| (node(name), is_ours(name).then(|| descriptor(name)))).collect()
}

/// A store of a node on the loopback, published under the node's name.
struct OwnStore {
    name: String,
    server: StoreServer,
    /// A key whose presence is noted at each reset.
    watched: Option<(Client, Vec<String>)>,
    /// Whether all watched keys were there, for each reset.
    resets: Vec<bool>,
}

impl OwnStore {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), server: serve(), watched: None, resets: Vec::new() }
    }

    fn place(&self) -> Place {
        Place { addr: self.name.clone(), port: self.server.local_addr().port() }
    }

    /// A worker's keys of some round.
    fn is_used(&self) {
        let mut worker = connect(&self.server);
        worker.set("init/", b"2").unwrap();
        worker.set("/default_pg/0//cpu//0/0", b"blob").unwrap();
        assert!(worker.check(&["init/"]).unwrap());
    }

    fn keys(&self) -> usize {
        connect(&self.server).list_keys().unwrap().len()
    }
}

impl AgentStore for OwnStore {
    fn open(&mut self) -> Result<Master, RendezvousError> {
        Ok(self.place().master(true))
    }

    fn reset(&mut self) -> Result<(), RendezvousError> {
        let complete = self.watched.as_mut().is_none_or(|(store, keys)| {
            store.check(&keys.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
        });
        self.resets.push(complete);
        Ok(self.server.reset()?)
    }
}

/// One agent of ours.
struct Agent {
    name: String,
    store: OwnStore,
    memory: Memory,
    workers: u32,
    role: &'static str,
    read_timeout: Duration,
    meeting: Meeting,
}

impl Agent {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            store: OwnStore::new(name),
            memory: Memory::default(),
            workers: 1,
            role: "default",
            read_timeout: LIMIT,
            meeting: Meeting::Published { agent_store: true },
        }
    }

    fn join(
        &mut self,
        meeting: &StoreServer,
        round: u64,
        members: &Members,
        between: &mut Between<'_>,
    ) -> Result<Round, ExchangeError> {
        let index = members.iter().position(|(node, _)| node.addr == self.name).unwrap();
        let keys = keys();
        let plan = Exchange {
            keys: &keys,
            round,
            role: self.role,
            workers: LocalWorldSize::new(self.workers).unwrap(),
            node_rank: NodeRank(u32::try_from(index).unwrap()),
            members,
            meeting: self.meeting.clone(),
            read_timeout: self.read_timeout,
            nonce: 7,
            resolve: &|_, port| Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]),
        };
        exchange(&mut connect(meeting), &plan, &mut self.store, &mut self.memory, between)
    }
}

/// All of ours at once; those of torchrun are the caller's.
fn join_all(
    agents: &mut [&mut Agent],
    store: &StoreServer,
    round: u64,
    names: &str,
) -> Vec<Result<Round, ExchangeError>> {
    let members = members(names);
    thread::scope(|scope| {
        let joins: Vec<_> = agents
            .iter_mut()
            .map(|agent| {
                let members = &members;
                scope.spawn(move || agent.join(store, round, members, &mut |_| Ok(())))
            })
            .collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect()
    })
}

/// What torchrun 2.15 does after it has joined, as far as others see it. `believed` outlives the round.
fn torchrun(
    store: &StoreServer,
    round: u64,
    (rank, nodes): (u32, u32),
    believed: &mut Option<Place>,
    own: Option<&OwnStore>,
) -> [u32; 4] {
    let keys = keys().round(round);
    let mut client = connect(store);
    let mut get = |key: &str| {
        assert!(client.wait(&[key], Instant::now() + LIMIT).unwrap(), "{key}");
        client.get(key).unwrap()
    };
    if believed.is_none() && own.is_none() {
        let (addr, port) = (get(&keys.master_addr()), get(&keys.master_port()));
        *believed = Some(Place::parse(&addr, &port).unwrap());
    }
    let mut client = connect(store);
    if let (None, Some(own)) = (&believed, own) {
        client.set(&keys.master_addr(), own.place().addr.as_bytes()).unwrap();
        client.set(&keys.master_port(), own.place().port.to_string().as_bytes()).unwrap();
        *believed = Some(own.place());
    }
    let text = format!(r#"{{"role": "default", "rank": {rank}, "local_world_size": 2}}"#);
    client.set(&keys.role_info(NodeRank(rank)), text.as_bytes()).unwrap();
    if rank == 0 {
        let names: Vec<String> = (0..nodes).map(|rank| keys.role_info(NodeRank(rank))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(client.wait(&names, Instant::now() + LIMIT).unwrap());
        if let Some(own) = own {
            assert_eq!(own.keys(), 0, "a worker would find keys of the round before");
        }
        let texts = client.multi_get(&names).unwrap();
        let infos: Vec<RoleInfo> = (0..nodes)
            .zip(&texts)
            .map(|(rank, text)| RoleInfo::from_json(text, NodeRank(rank)).unwrap())
            .collect();
        for (rank, one) in (0..nodes).zip(assign(&infos).unwrap()) {
            client.set(&keys.assigned_ranks(NodeRank(rank)), &one.to_json()).unwrap();
        }
    }
    let own_ranks = keys.assigned_ranks(NodeRank(rank));
    assert!(client.wait(&[&own_ranks], Instant::now() + LIMIT).unwrap());
    serde_json::from_slice(&client.get(&own_ranks).unwrap()).unwrap()
}

fn failure(result: Result<Round, ExchangeError>) -> String {
    match result.unwrap_err() {
        ExchangeError::Failed(error) => {
            assert!(error.hint().is_some(), "{error}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_agree_on_ranks_and_place() {
    let store = serve();
    let (mut a, mut b, mut c) = (Agent::new("a"), Agent::new("b"), Agent::new("c"));
    (b.workers, b.role, c.workers) = (2, "other", 3);
    let rounds: Vec<Round> =
        join_all(&mut [&mut a, &mut b, &mut c], &store, 4, "a b c").into_iter().map(Result::unwrap).collect();
    let seats: Vec<_> = rounds
        .iter()
        .map(|round| {
            let (world, role_world) = (round.world_size.get(), round.role_world_size.get());
            (round.node_rank.0, round.base_rank.0, world, round.base_role_rank.0, role_world)
        })
        .collect();
    assert_eq!(seats, [(0, 0, 6, 0, 4), (1, 1, 6, 0, 2), (2, 3, 6, 1, 4)]);
    for round in &rounds {
        assert_eq!((round.number, round.nodes.get()), (4, 3));
        assert_eq!(round.master, a.store.place().master(true));
        assert_eq!(round.members.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    }
    assert_eq!(rounds[0].members[2].workers, LocalWorldSize::new(3));
}

#[test]
fn rank_zero_resets_its_store_when_all_are_in_and_before_anybody_starts() {
    let store = serve();
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    for round in 0..3 {
        let watched = [0, 1].map(|rank| keys().round(round).role_info(NodeRank(rank)));
        a.store.watched = Some((connect(&store), watched.into()));
        a.store.is_used();
        for joined in join_all(&mut [&mut a, &mut b], &store, round, "a b") {
            assert_eq!(joined.unwrap().master, a.store.place().master(true));
        }
        assert_eq!(a.store.keys(), 0);
    }
    assert_eq!((a.store.resets, b.store.resets), (vec![true; 3], vec![]));
}

#[test]
fn rank_zero_may_move_between_agents_of_ours() {
    let store = serve();
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    join_all(&mut [&mut a, &mut b], &store, 0, "a b");
    for joined in join_all(&mut [&mut a, &mut b], &store, 1, "b a") {
        assert_eq!(joined.unwrap().master, b.store.place().master(true));
    }
}

#[test]
fn torchrun_reads_what_rank_zero_of_ours_publishes() {
    let store = serve();
    let (mut a, mut believed) = (Agent::new("a"), None);
    for round in 0..2 {
        a.store.is_used();
        let ranks = thread::scope(|scope| {
            let theirs = scope.spawn(|| torchrun(&store, round, (1, 2), &mut believed, None));
            let ours = join_all(&mut [&mut a], &store, round, "a T").remove(0).unwrap();
            assert_eq!(ours.members[1].launcher, Launcher::Torchrun);
            assert_eq!(ours.members[1].workers, LocalWorldSize::new(2));
            theirs.join().unwrap()
        });
        assert_eq!(ranks, [1, 3, 1, 3]);
        assert_eq!(believed, Some(a.store.place()));
        assert_eq!(a.store.keys(), 0);
    }
}

#[test]
fn for_a_torchrun_rank_zero_its_address_is_published_and_its_store_emptied() {
    let store = serve();
    let (theirs, mut believed) = (OwnStore::new("T"), None);
    let (mut a, mut b, mut newcomer) = (Agent::new("a"), Agent::new("b"), None);
    for (round, names) in [(0, "T a b"), (1, "T a b U"), (2, "T a b U")] {
        theirs.is_used();
        let nodes = members(names).len() as u32;
        thread::scope(|scope| {
            scope.spawn(|| torchrun(&store, round, (0, nodes), &mut believed, Some(&theirs)));
            if nodes == 4 {
                scope.spawn(|| torchrun(&store, round, (3, 4), &mut newcomer, None));
            }
            for joined in join_all(&mut [&mut a, &mut b], &store, round, names) {
                assert_eq!(joined.unwrap().master, theirs.place().master(true));
            }
        });
        assert_eq!(theirs.keys(), 0);
    }
    assert_eq!(newcomer, Some(theirs.place()));
    assert!(a.store.resets.is_empty() && b.store.resets.is_empty());
}

#[test]
fn a_newcomer_of_ours_finds_the_store_of_a_torchrun_rank_zero() {
    let store = serve();
    let (theirs, mut believed) = (OwnStore::new("T"), None);
    torchrun(&store, 0, (0, 1), &mut believed, Some(&theirs));
    torchrun(&store, 1, (0, 1), &mut believed, Some(&theirs));
    let mut a = Agent::new("a");
    theirs.is_used();
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 2, (0, 2), &mut believed, Some(&theirs)));
        let joined = join_all(&mut [&mut a], &store, 2, "T a").remove(0).unwrap();
        assert_eq!((joined.master, joined.base_rank.0), (theirs.place().master(true), 2));
    });
}

#[test]
fn a_new_rank_zero_of_ours_stays_where_torchrun_believes() {
    let store = serve();
    let (theirs, mut believed) = (OwnStore::new("T"), None);
    let mut a = Agent::new("a");
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 0, (0, 2), &mut believed, Some(&theirs)));
        join_all(&mut [&mut a], &store, 0, "T a").remove(0).unwrap();
    });
    theirs.is_used();
    let mut b = Agent::new("b");
    // As an agent that has seen the round before joins it.
    let participants = [(node("T"), 0), (node("a"), 1)].into_iter().collect();
    b.memory.saw(&crate::rendezvous::state::State { complete: true, participants, ..Default::default() });
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 1, (2, 3), &mut believed, Some(&theirs)));
        for joined in join_all(&mut [&mut b, &mut a], &store, 1, "b a T") {
            assert_eq!(joined.unwrap().master, theirs.place().master(true));
        }
    });
    assert_eq!(theirs.keys(), 0);
}

#[test]
fn a_move_that_torchrun_cannot_follow_is_refused_by_all_who_know() {
    let store = serve();
    let (mut a, mut b, mut believed) = (Agent::new("a"), Agent::new("b"), None);
    let mut c = Agent::new("c");
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 0, (3, 4), &mut believed, None));
        for joined in join_all(&mut [&mut a, &mut b, &mut c], &store, 0, "a b c T") {
            joined.unwrap();
        }
    });
    // `a` is gone. Rank 0 says so before anything is published; the other hears of it from there, or by its own wait.
    c.read_timeout = Duration::from_millis(20);
    let mut results = join_all(&mut [&mut b, &mut c], &store, 1, "b c T");
    let place = a.store.place();
    assert_eq!(
        failure(results.remove(0)),
        format!(
            "the workers' store has moved from `{place}` to `b`, and torchrun on `T` cannot follow: it reads the address only once"
        )
    );
    assert!(failure(results.remove(0)).contains("torchrun on `T` cannot follow"));
    assert!(!connect(&store).check(&[&keys().round(1).role_info(NodeRank(0))]).unwrap());
}

#[test]
fn a_wait_ends_when_its_caller_says_so() {
    let store = serve();
    let mut b = Agent::new("b");
    let mut calls = 0;
    let result = b.join(&store, 0, &members("a b"), &mut |client| {
        // The connection is free for other requests meanwhile.
        assert_eq!(client.add("/calls", 1).unwrap(), calls + 1);
        calls += 1;
        if calls == 2 { Err(Aborted) } else { Ok(()) }
    });
    assert!(matches!(result, Err(ExchangeError::Aborted)), "{result:?}");
    assert_eq!(calls, 2);
}

#[test]
fn who_does_not_do_its_part_is_named() {
    let store = serve();
    let short = Duration::from_millis(20);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    (a.read_timeout, b.read_timeout) = (short, short);
    let join = |agent: &mut Agent, round, names: &str| {
        failure(agent.join(&store, round, &members(names), &mut |_| Ok(())))
    };
    assert_eq!(join(&mut a, 0, "a b T"), "no number of workers from `b`, `T` within 20ms");
    assert_eq!(join(&mut b, 1, "a b T"), "no address of the workers' store from `a` within 20ms");
    assert_eq!(join(&mut b, 2, "T b"), "no number of workers from `T` within 20ms");
    // The address is there now, and the ranks are not.
    assert_eq!(join(&mut b, 0, "a b T"), "no ranks of this node's workers from `a` within 20ms");
}

#[test]
fn what_no_agent_writes_is_refused_with_its_writer() {
    let store = serve();
    let mut client = connect(&store);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let mut join = |agent: &mut Agent, round, set: &[(String, &str)]| {
        set.iter().for_each(|(key, text)| client.set(key, text.as_bytes()).unwrap());
        // What was set is there before the agent looks.
        assert!(client.check(&[&set[0].0]).unwrap());
        failure(agent.join(&store, round, &members("a b"), &mut |_| Ok(())))
    };
    let round = keys().round(0);
    let role_info = (round.role_info(NodeRank(1)), r#"{"role": "x", "rank": 1, "local_world_size": 1e9}"#);
    assert_eq!(join(&mut a, 0, &[role_info]), "cannot read the number of workers that `b` has written");
    let many = r#"{"role": "x", "rank": 1, "local_world_size": 4294967295}"#;
    assert_eq!(
        join(&mut a, 0, &[(round.role_info(NodeRank(1)), many)]),
        "the nodes have more than 4294967295 workers together"
    );
    let round = keys().round(1);
    let place = [(round.master_addr(), "th1"), (round.master_port(), "99999")];
    assert_eq!(join(&mut b, 1, &place), "cannot read the address of the workers' store that `a` has written");
    let place = [
        (round.master_addr(), "th1"),
        (round.master_port(), "29500"),
        (round.assigned_ranks(NodeRank(1)), "[1, 1, 0, 1]"),
    ];
    assert_eq!(join(&mut b, 1, &place), "cannot read the ranks that `a` has written");
}

#[test]
fn a_store_that_workers_open_is_another_one_in_every_round() {
    let store = serve();
    let keys = keys();
    let mut ports = BTreeSet::new();
    let given = Mutex::new(crate::rendezvous::worker_store::WorkerStore::new("th1".to_owned(), None));
    let (all, mut memory) = (members("a T"), Memory::default());
    for round in 0..2 {
        // It reads the address in every round.
        let mut believed = None;
        let plan = Exchange {
            keys: &keys,
            round,
            role: "default",
            workers: LocalWorldSize::ONE,
            node_rank: NodeRank(0),
            members: &all,
            meeting: Meeting::Published { agent_store: false },
            read_timeout: LIMIT,
            nonce: 7,
            resolve: &|_, _| unreachable!(),
        };
        let joined = thread::scope(|scope| {
            scope.spawn(|| torchrun(&store, round, (1, 2), &mut believed, None));
            let mut given = given.lock().unwrap();
            exchange(&mut connect(&store), &plan, &mut *given, &mut memory, &mut |_| Ok(())).unwrap()
        });
        assert!(!joined.master.agent_store);
        assert_eq!(believed, Some(Place::from(&joined.master)));
        ports.insert(joined.master.port);
    }
    assert_eq!(ports.len(), 2);
}

#[test]
fn a_place_that_all_were_told_is_not_published() {
    let store = serve();
    let master = Master { addr: "th1".to_owned(), port: 29500, agent_store: true };
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    (a.meeting, b.meeting) = (Meeting::Told(master.clone()), Meeting::Told(master.clone()));
    for joined in join_all(&mut [&mut a, &mut b], &store, 3, "a b") {
        assert_eq!(joined.unwrap().master, master);
    }
    assert_eq!((a.store.resets.len(), b.store.resets.len()), (1, 0));
    assert!(!connect(&store).check(&[&keys().round(3).master_addr()]).unwrap());
}
