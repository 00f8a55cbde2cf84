//! Jobs of a fixed number of nodes with given ranks.

use super::*;
use crate::rendezvous::task::plan::Plan;
use rankrun_core::rendezvous::NodeName;
use rankrun_core::rendezvous::descriptor::{AgentDescriptor, PROTOCOL};
use rankrun_core::rendezvous::keys::{RendezvousKeys, RoundKeys};
use rankrun_core::rendezvous::state::Node;

/// Node ranks from 0, all with the endpoint's port.
#[derive(Clone)]
struct Static {
    port: u16,
    nodes: u32,
    times: RoundTimes,
}

impl Static {
    fn new(nodes: u32) -> Self {
        Self { port: free_port(), nodes, times: RoundTimes::default() }
    }

    fn agent(&self, node_rank: u32) -> Agent {
        let agent = self.open(node_rank, |_| {});
        agent.join();
        agent
    }

    fn open(&self, node_rank: u32, limits: impl FnOnce(&mut Plan)) -> Agent {
        let spec = RendezvousSpec::Static {
            run_id: RunId("none".to_owned()),
            addr: "127.0.0.1".to_owned(),
            port: self.port,
            named_by: None,
            local_addr: None,
            nodes: NodeCount::new(self.nodes).unwrap(),
            node_rank: NodeRank(node_rank),
            times: self.times,
        };
        let setup = Setup { spec, ..Job::at(&store(), 1, 1).setup() };
        Agent {
            rendezvous: NetworkRendezvous::open_with(setup, limits).unwrap(),
            workers: LocalWorldSize::ONE,
        }
    }

    fn round(&self) -> Vec<Agent> {
        // An agent that starts before the store waits for it.
        let agents: Vec<_> = (0..self.nodes).rev().map(|rank| self.agent(rank)).collect();
        for (agent, rank) in agents.iter().zip((0..self.nodes).rev()) {
            let round = agent.joined();
            assert_eq!((round.number, round.node_rank, round.nodes.get()), (0, NodeRank(rank), self.nodes));
            assert_eq!((round.master.addr.as_str(), round.master.port), ("127.0.0.1", self.port));
        }
        agents
    }
}

#[test]
fn static_nodes_join_and_succeed() {
    let agents = Static::new(3).round();
    agents.iter().for_each(Agent::succeed);
    for agent in &agents {
        assert!(matches!(agent.next_event(), RendezvousEvent::AllSucceeded));
    }
    // The last one hosts the store.
    for agent in agents {
        agent.close(true, None);
    }
}

#[test]
fn static_failure_restarts_all_nodes_with_same_ranks() {
    let agents = Static::new(2).round();
    for number in 1..=3 {
        agents[0].fail(&note(1));
        assert_eq!(agents[1].changed(), MembershipChange::from(note(1)));
        agents.iter().for_each(Agent::join);
        for (agent, rank) in agents.iter().zip([1, 0]) {
            let round = agent.joined();
            assert_eq!((round.number, round.node_rank), (number, NodeRank(rank)));
        }
    }
}

#[test]
fn static_final_failure_ends_all_agents() {
    let mut agents = Static::new(2).round();
    agents.remove(0).close(false, Some(note(1)));
    let over = agents[0].over();
    assert!(matches!(&over, RendezvousEnd::Closed { failure: Some(first) } if *first == note(1)), "{over:?}");
}

#[test]
fn static_missing_nodes_are_named_by_rank() {
    let mut job = Static::new(3);
    job.times.join = Duration::from_secs(4);
    job.times.read = job.times.join;
    let agents = [job.agent(0), job.agent(2)];
    assert_eq!(agents[0].waiting().missing, [NodeName::of_rank(NodeRank(1))]);
    for agent in &agents {
        let error = agent.failed();
        assert!(error.to_string().contains("node 1"), "{error}");
    }
}

#[test]
fn dead_static_node_is_replaced_by_agent_with_its_rank() {
    let mut job = Static::new(2);
    // The host of the store notices the death at once, long before the end of the lease.
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round();
    drop(agents.remove(0));
    assert!(matches!(agents[0].changed(), MembershipChange::Lost(_)));
    agents[0].join();
    let newcomer = job.agent(1);
    assert_eq!(agents[0].joined().node_rank, NodeRank(0));
    assert_eq!(newcomer.joined().node_rank, NodeRank(1));
}

#[test]
fn node_dead_during_join_is_replaced_at_once() {
    let mut job = Static::new(3);
    job.times.lease = Duration::from_secs(1000);
    let (first, dies) = (job.agent(0), job.agent(1));
    assert_eq!(first.waiting().missing, [NodeName::of_rank(NodeRank(2))]);
    drop(dies);
    let comes = job.agent(1);
    assert_eq!(comes.waiting().missing, [NodeName::of_rank(NodeRank(2))]);
    let last = job.agent(2);
    for agent in [&first, &comes, &last] {
        assert_eq!(agent.joined().number, 0);
    }
    // No node of this round is dead.
    comes.fail(&note(1));
    assert_eq!(first.changed(), MembershipChange::from(note(1)));
}

/// The death may become known before the round begins or after: it is known at once either way.
#[test]
fn node_dead_before_last_join_is_replaced_at_once() {
    let mut job = Static::new(3);
    job.times.lease = Duration::from_secs(1000);
    let (first, dies) = (job.agent(0), job.agent(1));
    assert_eq!(first.waiting().missing, [NodeName::of_rank(NodeRank(2))]);
    drop(dies);
    let (last, comes) = (job.agent(2), job.agent(1));
    let others = [first, last].map(|agent| std::thread::spawn(move || agent.goes_on_until_the_end()));
    assert_eq!(comes.joined().node_rank, NodeRank(1));
    comes.close(false, Some(note(1)));
    drop(others.map(|other| other.join().unwrap()));
}

/// An agent with node rank 1, without a process: its node, descriptor and claim.
fn agent_without_process(job: &Static, nonce: u32) -> (Node, String, String) {
    let node = Node { addr: "127.0.0.1".to_owned(), pid: 7, local_id: i64::from(nonce) };
    let descriptor = AgentDescriptor {
        protocol: PROTOCOL,
        version: "1.2.3".to_owned(),
        host: "th1".to_owned(),
        nodes: range(job.nodes, job.nodes),
        node_rank: Some(NodeRank(1)),
        lease: job.times.lease,
        workers: LocalWorldSize::ONE,
        entrypoint: "train.py".to_owned(),
        nonce,
        max_restarts: None,
    };
    let descriptor = String::from_utf8(descriptor.to_json()).unwrap();
    let claim = serde_json::json!({
        "host": "th1", "addr": node.addr, "pid": node.pid, "local_id": node.local_id, "agent": descriptor,
    });
    (node, descriptor, claim.to_string())
}

/// The host of the store takes note of the departure before it knows the agent: it withdraws the agent's claim, which is
/// then written a second time over another connection.
#[test]
fn node_departed_before_its_claim_is_lost_at_once() {
    let mut job = Static::new(2);
    job.times.lease = Duration::from_secs(1000);
    let host = job.agent(0);
    let connect = |nonce| {
        let settings = ClientSettings { nonce, answer: PATIENCE, silence: PATIENCE };
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], job.port));
        Client::connect(&[address], settings, Instant::now() + PATIENCE).unwrap()
    };
    let run_id = RunId("none".to_owned());
    let (keys, round) = (RendezvousKeys::static_keys(&run_id), RoundKeys::first_of_static(&run_id));
    let claim_key = keys.claim(NodeRank(1));
    let (node, descriptor, claim) = agent_without_process(&job, 41);
    let (mut departs, mut writer) = (connect(41), connect(42));
    departs.set(&claim_key, claim.as_bytes()).unwrap();
    // A write has no answer.
    assert!(departs.check(&[&claim_key]).unwrap());
    drop(departs);
    let deadline = Instant::now() + PATIENCE;
    while writer.check(&[&claim_key]).unwrap() {
        assert!(Instant::now() < deadline, "the claim of a departed agent stands");
        std::thread::sleep(Duration::from_millis(1));
    }
    let info = r#"{"role": "default", "rank": 1, "local_world_size": 1}"#;
    let role_info = round.role_info(NodeRank(1));
    for (key, value) in [(&keys.agent(&node), &*descriptor), (&claim_key, &claim), (&role_info, info)] {
        writer.set(key, value.as_bytes()).unwrap();
    }
    assert_eq!(host.joined().number, 0);
    assert!(matches!(host.changed(), MembershipChange::Lost(_)));
}

/// A torchrun agent, as far as the first round has it.
fn torchrun(port: u16, node_rank: u32) -> Client {
    let settings = ClientSettings { nonce: 1, answer: PATIENCE, silence: PATIENCE };
    let store = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut client = Client::connect(&[store], settings, Instant::now() + PATIENCE).unwrap();
    let keys = RoundKeys::first_of_static(&RunId("none".to_owned()));
    client.add("init/", 1).unwrap();
    let text = format!(r#"{{"role": "default", "rank": {node_rank}, "local_world_size": 1}}"#);
    client.set(&keys.role_info(NodeRank(node_rank)), text.as_bytes()).unwrap();
    let own = keys.assigned_ranks(NodeRank(node_rank));
    assert!(client.wait(&[&own], Instant::now() + PATIENCE).unwrap());
    client
}

/// The other's silence may mean anything, also after its end.
#[test]
fn silent_torchrun_node_wait_has_a_limit() {
    let job = Static::new(3);
    let limit = |plan: &mut Plan| plan.exit_barrier = Duration::from_millis(300);
    let agents = [job.open(0, limit), job.open(1, limit)];
    agents.iter().for_each(Agent::join);
    drop(torchrun(job.port, 2));
    for agent in &agents {
        assert_eq!(agent.joined().nodes.get(), 3);
        assert_eq!(agent.rendezvous.lease_deadlines(), None, "no node goes on alone");
    }
    agents[0].succeed();
    let error = agents[0].failed();
    assert!(matches!(&error, RendezvousError::NotFinished { left: 2, nodes: 3, .. }), "{error}");
    assert_eq!(error.to_string(), "2 of 3 nodes have not succeeded within 300ms of this one");
}
