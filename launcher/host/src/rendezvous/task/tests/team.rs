//! The agents of a job, as a test commands and hears them.
#![expect(clippy::disallowed_methods, reason = "a test that hangs has to end")]

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank, Rank, RestartCount, RunId};

use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::task::{
    NetworkRendezvous, NetworkSpec, RendezvousCommand, RendezvousEvent, RendezvousSpec, Setup, ShutdownKind,
};
use crate::store::StoreServer;
use crate::store::client::ClientSettings;
use crate::store::client::blocking::Client;
use rankrun_core::rendezvous::{
    FailureNote, MembershipChange, NodeName, RendezvousEnd, Round, WaitStatus, WorkerFailure,
};
use rankrun_core::spec::rendezvous::{NodeRange, RoundTimes};

/// Longer than anything here takes, on any machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A job of agents of this process.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) run_id: RunId,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_host: Option<bool>,
    pub(super) nodes: NodeRange,
    pub(super) node_rank: Option<NodeRank>,
    pub(super) times: RoundTimes,
    pub(super) program: &'static str,
}

pub(super) fn range(min: u32, max: u32) -> NodeRange {
    NodeRange { min: NodeCount::new(min).unwrap(), max: NodeCount::new(max).unwrap() }
}

/// A job whose first agent hosts the store, and is to have the workers' one too.
pub(super) fn hosted(min: u32, max: u32) -> Job {
    Job { host: "localhost".to_owned(), port: free_port(), is_host: None, ..Job::at(&store(), min, max) }
}

impl Job {
    /// With a store of the test's own.
    pub(super) fn at(store: &StoreServer, min: u32, max: u32) -> Self {
        Self {
            run_id: RunId("job".to_owned()),
            host: "127.0.0.1".to_owned(),
            port: store.local_addr().port(),
            is_host: Some(false),
            nodes: range(min, max),
            node_rank: None,
            times: RoundTimes { last_call: Duration::from_millis(300), ..RoundTimes::default() },
            program: "train.py",
        }
    }

    pub(super) fn setup(&self) -> Setup {
        Setup {
            spec: RendezvousSpec::C10d {
                run_id: self.run_id.clone(),
                host: self.host.clone(),
                port: self.port,
                named_by: Some("`--rdzv-endpoint`".to_owned()),
                local_addr: None,
                worker_store: false,
                nodes: self.nodes,
                is_host: self.is_host,
                node_rank: self.node_rank,
                times: self.times,
            },
            network: NetworkSpec::default(),
            role: "default".to_owned(),
            workers: LocalWorldSize::ONE,
            entrypoint: self.program.to_owned(),
            version: "1.2.3".to_owned(),
            max_restarts: RestartCount(0),
        }
    }

    /// An agent that does not want anything yet.
    pub(super) fn open(&self) -> Agent {
        Agent::of(self.setup())
    }

    /// An agent that wants to take part.
    pub(super) fn agent(&self) -> Agent {
        let agent = self.open();
        agent.join();
        agent
    }

    /// As many agents, in a complete round.
    pub(super) fn round(&self, count: usize) -> Vec<Agent> {
        let agents: Vec<_> = (0..count).map(|_| self.agent()).collect();
        for agent in &agents {
            assert_eq!(agent.joined().nodes.get() as usize, count);
        }
        agents
    }
}

pub(super) struct Agent {
    pub(super) rendezvous: NetworkRendezvous,
    pub(super) workers: LocalWorldSize,
}

impl Agent {
    /// That was told this.
    pub(super) fn of(setup: Setup) -> Self {
        Self { rendezvous: NetworkRendezvous::open(setup).unwrap(), workers: LocalWorldSize::ONE }
    }

    /// An agent of another version, which speaks this protocol.
    pub(super) fn of_protocol(job: &Job, protocol: u32, version: &str) -> Self {
        let setup = Setup { version: version.to_owned(), ..job.setup() };
        let rendezvous = NetworkRendezvous::open_with(setup, |plan| plan.protocol = protocol).unwrap();
        Self { rendezvous, workers: LocalWorldSize::ONE }
    }

    pub(super) fn join(&self) {
        self.rendezvous
            .send_command(RendezvousCommand::Join { workers: self.workers, leaves_if_possible: false });
    }

    /// The next event that is not a mere message to the user.
    pub(super) fn next_event(&self) -> RendezvousEvent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.rendezvous.receive() {
                Some(
                    RendezvousEvent::Note(_)
                    | RendezvousEvent::StoreUnreached(_)
                    | RendezvousEvent::Waiting(_),
                ) => {}
                Some(next_event) => return next_event,
                None => self.wait(deadline),
            }
        }
    }

    pub(super) fn waiting(&self) -> WaitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.rendezvous.receive() {
                Some(RendezvousEvent::Waiting(waiting)) => return waiting,
                Some(RendezvousEvent::Note(_) | RendezvousEvent::StoreUnreached(_)) => {}
                Some(next_event) => panic!("{next_event:?}"),
                None => self.wait(deadline),
            }
        }
    }

    pub(super) fn note(&self) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.rendezvous.receive() {
                Some(RendezvousEvent::Note(note) | RendezvousEvent::StoreUnreached(note)) => return note,
                Some(next_event) => panic!("{next_event:?}"),
                None => self.wait(deadline),
            }
        }
    }

    pub(super) fn wait(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no event came");
        let mut fds = [PollFd::new(self.rendezvous.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::try_from(left).unwrap()).unwrap();
    }

    pub(super) fn joined(&self) -> Round {
        match self.next_event() {
            RendezvousEvent::Joined { round, .. } => *round,
            next_event => panic!("{next_event:?}"),
        }
    }

    /// The round, and whether this agent has its training store.
    pub(super) fn joined_with_store(&self) -> (Round, bool) {
        match self.next_event() {
            RendezvousEvent::Joined { round, training_server, .. } => (*round, training_server.is_some()),
            next_event => panic!("{next_event:?}"),
        }
    }

    /// The next event that is not a change of membership.
    pub(super) fn event_after_changes(&self) -> RendezvousEvent {
        loop {
            match self.next_event() {
                RendezvousEvent::Changed(_) => {}
                event => return event,
            }
        }
    }

    /// The same as [`Agent::joined`], after changes of membership.
    pub(super) fn rejoined(&self) -> Round {
        match self.event_after_changes() {
            RendezvousEvent::Joined { round, .. } => *round,
            event => panic!("{event:?}"),
        }
    }

    /// Wants to be in the next round as soon as the one before is over, until the job is. The agent may host the store
    /// that the others still read.
    pub(super) fn goes_on_until_the_end(self) -> Self {
        loop {
            match self.next_event() {
                RendezvousEvent::Ended(_) | RendezvousEvent::Failed(_) => return self,
                RendezvousEvent::Changed(_) => self.join(),
                _ => {}
            }
        }
    }

    pub(super) fn changed(&self) -> MembershipChange {
        match self.next_event() {
            RendezvousEvent::Changed(change) => change,
            next_event => panic!("{next_event:?}"),
        }
    }

    pub(super) fn over(&self) -> RendezvousEnd {
        match self.next_event() {
            RendezvousEvent::Ended(over) => over,
            next_event => panic!("{next_event:?}"),
        }
    }

    pub(super) fn failed(&self) -> RendezvousError {
        match self.next_event() {
            RendezvousEvent::Failed(error) => error,
            next_event => panic!("{next_event:?}"),
        }
    }

    pub(super) fn succeed(&self) {
        self.rendezvous.send_command(RendezvousCommand::Succeeded);
    }

    pub(super) fn fail(&self, note: &FailureNote) {
        self.rendezvous.send_command(RendezvousCommand::Failed(note.clone()));
    }

    pub(super) fn close(self, succeeded: bool, failure: Option<FailureNote>) {
        self.rendezvous.end(ShutdownKind::Close { succeeded, failure, rule: None }, PATIENCE);
    }

    pub(super) fn leave(self, why: &str) {
        self.rendezvous.end(ShutdownKind::Leave { why: why.to_owned() }, PATIENCE);
    }
}

pub(super) fn store() -> StoreServer {
    StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(super) fn client(store: &StoreServer) -> Client {
    let settings = ClientSettings { nonce: 1, answer: PATIENCE, silence: PATIENCE };
    Client::connect(&[store.local_addr()], settings, Instant::now() + PATIENCE).unwrap()
}

pub(super) fn note(rank: u32) -> FailureNote {
    note_with_message(rank, None)
}

pub(super) fn note_with_message(rank: u32, message: Option<String>) -> FailureNote {
    FailureNote::Worker(WorkerFailure {
        node: NodeName { rank: Some(NodeRank(rank)), ..NodeName::of_host("th1") },
        rank: Rank(rank),
        local_rank: LocalRank(0),
        pid: 7,
        ended: "exit code 7".to_owned(),
        message,
        last_lines: Vec::new(),
        lost_peer: None,
    })
}

/// Why the job is over, in the words of the node that has ended it.
#[track_caller]
pub(super) fn why_node_ended_job(over: &RendezvousEnd) -> (NodeRank, &str) {
    let RendezvousEnd::Closed { failure: Some(note) } = over else { panic!("{over:?}") };
    (note.node().rank.unwrap(), note.why_node_ended_job().expect("it tells of a node"))
}
