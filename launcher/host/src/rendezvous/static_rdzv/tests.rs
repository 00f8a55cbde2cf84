//! Several agents as threads, over a real store on the loopback.
#![expect(clippy::disallowed_methods, reason = "the limits of waits are by the real clock")]

mod claims;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use tokio::sync::oneshot;

use super::*;
use crate::store::StoreServer;
use crate::store::client::ClientSettings;
use crate::store::client::blocking::{Client, runtime};
use rankrun_core::rendezvous::descriptor::PROTOCOL;
use rankrun_core::rendezvous::roles::assign;
use rankrun_core::spec::rendezvous::NodeRange;

const LIMIT: Duration = Duration::from_secs(30);
const WALL: Timestamp = Timestamp(1_700_000_000_000_000);

fn serve() -> StoreServer {
    StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

const SETTINGS: ClientSettings = ClientSettings { nonce: 1, answer: LIMIT, silence: LIMIT };

fn connect(store: &StoreServer) -> Client {
    Client::connect(&[store.local_addr()], SETTINGS, Instant::now() + LIMIT).unwrap()
}

async fn open(store: SocketAddr) -> super::Client {
    super::Client::connect_within(&[store], SETTINGS, LIMIT).await.unwrap()
}

fn keys() -> (RendezvousKeys, RoundKeys) {
    let run_id = RunId("job".to_owned());
    (RendezvousKeys::static_keys(&run_id), RoundKeys::first_of_static(&run_id))
}

/// One rankrun agent with its settings.
#[derive(Clone)]
struct Agent {
    run_id: RunId,
    node: Node,
    descriptor: AgentDescriptor,
    master: Master,
    nodes: NodeCount,
    timeout: Duration,
    lease: Duration,
}

impl Agent {
    fn new(rank: u32, nodes: u32) -> Self {
        let nodes = NodeCount::new(nodes).unwrap();
        let host = format!("th{rank}");
        Self {
            run_id: RunId("job".to_owned()),
            node: Node { addr: host.clone(), pid: 1, local_id: 0 },
            descriptor: AgentDescriptor {
                protocol: PROTOCOL,
                version: "0.1.0".to_owned(),
                host,
                nodes: NodeRange { min: nodes, max: nodes },
                node_rank: Some(NodeRank(rank)),
                lease: Duration::from_secs(5),
                workers: LocalWorldSize::new(rank + 1).unwrap(),
                entrypoint: "train.py".to_owned(),
                nonce: rank,
                max_restarts: None,
            },
            master: Master { addr: "th0".to_owned(), port: 29500, uses_agent_store: true },
            nodes,
            timeout: LIMIT,
            lease: LIMIT,
        }
    }

    /// An agent process on another host, with the same node rank.
    fn other_process(&self, host: &str) -> Self {
        let mut other = self.clone();
        other.node = Node { addr: host.to_owned(), pid: 2, local_id: 0 };
        other.descriptor.host = host.to_owned();
        other
    }

    fn setup(&self) -> StaticSetup {
        StaticSetup {
            run_id: self.run_id.clone(),
            node: self.node.clone(),
            descriptor: self.descriptor.clone(),
            node_rank: self.descriptor.node_rank.unwrap(),
            nodes: self.nodes,
            role: "default".to_owned(),
            workers: self.descriptor.workers,
            master: self.master.clone(),
            timeout: self.timeout,
            lease: self.lease,
            wall: WALL,
        }
    }

    fn join(&self, store: &StoreServer) -> FirstRoundResult {
        runtime().block_on(self.take_part(store.local_addr()))
    }

    /// Joins, and is gone when the keys exist.
    fn join_until(&self, store: &StoreServer, keys: &[&str]) {
        let store = store.local_addr();
        runtime().block_on(async {
            let mut other = open(store).await;
            tokio::select! {
                result = self.take_part(store) => panic!("{result:?}"),
                written = other.wait(keys, Instant::now() + LIMIT) => assert!(written.unwrap()),
            }
        });
    }

    /// As the rendezvous does it: with checks over another connection.
    async fn take_part(&self, store: SocketAddr) -> FirstRoundResult {
        let (setup, mut client, mut checks) = (self.setup(), open(store).await, open(store).await);
        let mut authority = AuthorityCheck::of(&setup);
        let mismatch = async {
            loop {
                if let Err(error) = authority.perform(&setup, &mut checks).await {
                    return error;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            result = first_round(&mut client, &setup) => result,
            error = mismatch => Err(error),
        }
    }
}

type FirstRoundResult = Result<FirstRound, AssignRanksError>;

fn join_all(agents: &[Agent], store: &StoreServer) -> Vec<FirstRoundResult> {
    thread::scope(|scope| {
        let joins: Vec<_> = agents.iter().map(|agent| scope.spawn(|| agent.join(store))).collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect()
    })
}

/// The keys that a torchrun agent writes and reads.
fn torchrun(store: &StoreServer, (rank, nodes): (u32, u32)) -> RankAssignment {
    let (_, keys) = keys();
    let mut client = connect(store);
    client.add("init/", 1).unwrap();
    let text = format!(r#"{{"role": "default", "rank": {rank}, "local_world_size": 1}}"#);
    client.set(&keys.role_info(NodeRank(rank)), text.as_bytes()).unwrap();
    if rank == 0 {
        let names: Vec<String> = (0..nodes).map(|rank| keys.role_info(NodeRank(rank))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(client.wait(&names, Instant::now() + LIMIT).unwrap());
        let texts = client.multi_get(&names).unwrap();
        let infos: Vec<RoleInfo> = (0..)
            .zip(&texts)
            .map(|(rank, text)| RoleInfo::from_json(text, NodeRank(rank)).unwrap())
            .collect();
        for (rank, one) in (0..).zip(assign(&infos).unwrap()) {
            client.set(&keys.assigned_ranks(NodeRank(rank)), &one.to_json()).unwrap();
        }
    }
    let own = keys.assigned_ranks(NodeRank(rank));
    assert!(client.wait(&[&own], Instant::now() + LIMIT).unwrap());
    RankAssignment::from_json(&client.get(&own).unwrap(), LocalWorldSize::ONE).unwrap()
}

fn failure(result: FirstRoundResult) -> String {
    match result.unwrap_err() {
        AssignRanksError::Failed(error) => {
            assert!(error.hint().is_some(), "{error}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn rankrun_only_agents_continue_with_same_state() {
    let store = serve();
    let agents = [2, 0, 1].map(|rank| Agent::new(rank, 3));
    let mut states = Vec::new();
    for (agent, joined) in agents.iter().zip(join_all(&agents, &store)) {
        let Ok(FirstRound::Alone { round, state }) = joined else { panic!("{joined:?}") };
        let rank = agent.descriptor.node_rank.unwrap().0;
        assert_eq!((round.number, round.node_rank.0, round.nodes.get()), (0, rank, 3));
        // The nodes have one, two and three workers.
        assert_eq!((round.base_rank.0, round.world_size.get()), ([0, 1, 3][rank as usize], 6));
        assert_eq!(round.master, agent.master);
        assert_eq!(
            round.members.iter().map(|one| one.name.host.as_deref()).collect::<Vec<_>>(),
            [Some("th0"), Some("th1"), Some("th2")]
        );
        assert!(state.complete && !state.closed && state.round == 0);
        assert_eq!(state.participants.rank(&agent.node), Some(rank.into()));
        assert_eq!(state.last_heartbeats.get(&agent.node), Some(&WALL));
        states.push(state);
    }
    assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{states:?}");
    let mut client = connect(&store);
    let text = client.get(keys().0.state()).unwrap();
    assert_eq!(pickle::decode(&text).as_ref(), Ok(&states[0]));
    assert_eq!(client.get("init/").unwrap(), b"3");
}

#[test]
fn mixed_job_with_torchrun_has_one_round() {
    for theirs in [0, 1] {
        let store = serve();
        let agent = Agent::new(1 - theirs, 2);
        thread::scope(|scope| {
            let assigned = scope.spawn(|| torchrun(&store, (theirs, 2)));
            let joined = agent.join(&store);
            let Ok(FirstRound::Mixed(round)) = joined else { panic!("{joined:?}") };
            assert_eq!(round.members[theirs as usize].name.to_string(), format!("node {theirs}"));
            assert_eq!(round.world_size, assigned.join().unwrap().world_size);
        });
        assert_eq!(connect(&store).get("init/").unwrap(), b"2");
        assert!(!connect(&store).check(&[&keys().0.rankrun_only()]).unwrap());
    }
}

#[test]
fn reconnecting_agent_is_counted_once() {
    let store = serve();
    let agent = Agent { timeout: Duration::from_millis(20), ..Agent::new(1, 2) };
    for _ in 0..2 {
        failure(agent.join(&store));
    }
    assert_eq!(connect(&store).get("init/").unwrap(), b"1");
}

#[test]
fn missing_nodes_are_named_at_timeout() {
    let store = serve();
    for rank in [0, 2] {
        let agent = Agent { timeout: Duration::from_millis(20), ..Agent::new(rank, 5) };
        // The other agent has joined: its claim and its role_info stay.
        let missing = if rank == 0 { "node 1, node 2, node 3, node 4" } else { "node 1, node 3, node 4" };
        assert_eq!(
            failure(agent.join(&store)),
            format!("only {} of 5 nodes came within 20ms: {missing} missing", if rank == 0 { 1 } else { 2 })
        );
    }
    let roll = roll_of(&Agent::new(2, 5), &store);
    assert_eq!(hosts(&roll), ["th0", "th2"]);
    assert_eq!(roll.missing, [NodeRank(1), NodeRank(3), NodeRank(4)]);
    assert_eq!(roll.holder, None);
}

fn roll_of(agent: &Agent, store: &StoreServer) -> JoinProgress {
    let own = (agent.descriptor.node_rank.unwrap(), &agent.node);
    let own_name = NodeName::of_host(agent.descriptor.host.clone());
    let mut client = connect(store);
    let progress = read_join_progress(&mut client.client, (&agent.run_id, agent.nodes), own, own_name);
    client.runtime.block_on(progress).unwrap()
}

fn hosts(roll: &JoinProgress) -> Vec<&str> {
    roll.here.iter().filter_map(|name| name.host.as_deref()).collect()
}

/// Runs an agent that sends heartbeats, reports each, and lives until the test ends it.
fn waits(agent: &Agent, store: &StoreServer, waiting: &mpsc::Sender<()>, end: oneshot::Receiver<()>) {
    let (key, store) = (keys().0.heartbeat(&agent.node), store.local_addr());
    let claim = keys().0.claim(agent.descriptor.node_rank.unwrap());
    runtime().block_on(async {
        let mut client = open(store).await;
        let heartbeats = async {
            assert!(client.wait(&[&claim], Instant::now() + LIMIT).await.unwrap());
            loop {
                client.add(&key, 1).await.unwrap();
                let _ = waiting.send(());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            result = agent.take_part(store) => panic!("{result:?}"),
            () = heartbeats => {}
            _ = end => {}
        }
    });
}

#[test]
fn duplicate_node_rank_is_refused_with_both_hosts() {
    let store = serve();
    let first = Agent::new(1, 2);
    let (waiting, is_waiting) = mpsc::channel();
    let (end, ended) = oneshot::channel();
    thread::scope(|scope| {
        let (first, store) = (&first, &store);
        scope.spawn(move || waits(first, store, &waiting, ended));
        is_waiting.recv().unwrap();
        let error = failure(first.other_process("th9").join(store));
        assert_eq!(error, "node rank 1 is given twice: to this agent on th9, and to the one on th1");
        drop(end);
    });
}

#[test]
fn node_rank_of_torchrun_agent_is_refused() {
    let store = serve();
    let text = r#"{"role": "default", "rank": 1, "local_world_size": 1}"#;
    let mut client = connect(&store);
    client.set(&keys().1.role_info(NodeRank(1)), text.as_bytes()).unwrap();
    assert!(client.check(&[&keys().1.role_info(NodeRank(1))]).unwrap());
    let error = failure(Agent::new(1, 2).join(&store));
    assert_eq!(
        error,
        "node rank 1 is given twice: to this agent on th1, and to the one on another node, which runs torchrun"
    );
}

#[test]
fn mismatched_agent_refuses_itself() {
    let store = serve();
    let (waiting, is_waiting) = mpsc::channel();
    let (end, ended) = oneshot::channel();
    let first = Agent::new(0, 2);
    let mut nodes = Agent::new(1, 3);
    nodes.nodes = NodeCount::new(3).unwrap();
    let mut program = Agent::new(1, 2);
    "eval.py".clone_into(&mut program.descriptor.entrypoint);
    let mut protocol = Agent::new(1, 2);
    (protocol.descriptor.protocol, protocol.descriptor.version) = (PROTOCOL + 1, "0.9.0".to_owned());
    thread::scope(|scope| {
        let (first, store) = (&first, &store);
        scope.spawn(move || waits(first, store, &waiting, ended));
        is_waiting.recv().unwrap();
        for (agent, words) in [
            (nodes, "this agent was started with `--nnodes 3`, the other agent with `--nnodes 2`"),
            (program, "this agent runs `eval.py`, the other agent `train.py`"),
            (protocol, "this agent is rankrun 0.9.0 (protocol 3), the other agent 0.1.0 (protocol 2)"),
        ] {
            let error = failure(agent.join(store));
            assert_eq!(error, format!("this agent and the one on node 0 (th0) are not of one job: {words}"));
        }
        // No refused agent has left a claim.
        assert!(!connect(store).check(&[&keys().0.claim(NodeRank(1))]).unwrap());
        drop(end);
    });
}
