//! Jobs of a fixed number of nodes with given ranks.

use super::faults::free_port;
use super::*;

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
        let spec = RendezvousSpec::Static {
            run_id: RunId("none".to_owned()),
            addr: "127.0.0.1".to_owned(),
            port: self.port,
            local_addr: None,
            nodes: NodeCount::new(self.nodes).unwrap(),
            node_rank: NodeRank(node_rank),
            times: self.times,
        };
        let setup = Setup { spec, ..Job::at(&store(), 1, 1).setup() };
        let agent = Agent { rendezvous: Rendezvous::open(setup).unwrap(), workers: LocalWorldSize::ONE };
        agent.join();
        agent
    }

    fn round(&self) -> Vec<Agent> {
        // Whoever comes before the store waits for it.
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
fn all_nodes_meet_and_succeed() {
    let agents = Static::new(3).round();
    agents.iter().for_each(Agent::succeed);
    for agent in &agents {
        assert!(matches!(agent.news(), News::AllSucceeded));
    }
    // The last one hosts the store.
    for agent in agents {
        agent.close(true, None);
    }
}

#[test]
fn a_failure_restarts_all_nodes_with_the_same_ranks() {
    let agents = Static::new(2).round();
    for number in 1..=3 {
        agents[0].fail(&note(1));
        assert_eq!(agents[1].changed(), Change::PeerFailed(note(1)));
        agents.iter().for_each(Agent::join);
        for (agent, rank) in agents.iter().zip([1, 0]) {
            let round = agent.joined();
            assert_eq!((round.number, round.node_rank), (number, NodeRank(rank)));
        }
    }
}

#[test]
fn a_final_failure_ends_all() {
    let mut agents = Static::new(2).round();
    agents.remove(0).close(false, Some(note(1)));
    let over = agents[0].over();
    assert!(matches!(&over, Over::Closed { failure: Some(first) } if *first == note(1)), "{over:?}");
}

#[test]
fn who_is_missing_is_said_by_node_rank() {
    let mut job = Static::new(3);
    job.times.join = Duration::from_secs(4);
    job.times.read = job.times.join;
    let agents = [job.agent(0), job.agent(2)];
    assert_eq!(agents[0].waiting().missing, ["node rank 1"]);
    for agent in &agents {
        let error = agent.failed();
        assert!(error.to_string().contains("node rank 1"), "{error}");
    }
}

#[test]
fn a_dead_node_is_replaced_by_one_with_its_rank() {
    let mut job = Static::new(2);
    job.times.lease = Duration::from_secs(2);
    let mut agents = job.round();
    drop(agents.remove(0));
    assert!(matches!(agents[0].changed(), Change::PeerLost { .. }));
    agents[0].join();
    let newcomer = job.agent(1);
    assert_eq!(agents[0].joined().node_rank, NodeRank(0));
    assert_eq!(newcomer.joined().node_rank, NodeRank(1));
}
