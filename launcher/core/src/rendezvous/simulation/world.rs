//! The simulated world of agents around one store. It runs a history on a virtual clock. It checks the invariants at
//! every write, every start of workers and every read.

mod acting;
mod hashing;
mod messages;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalWorldSize;

use super::agent::{AfterWorkers, Agent, AgentEnd, Phase};
use super::history::{EventKind, History, JOIN, LEASE, MAX_EVENTS, Setup};
use super::invariants::{Broken, Oracle};
use super::mutants::{Fault, Machine};
use super::store::{Answer, Request, Store};
use crate::rendezvous::descriptor::AgentDescriptor;
use crate::rendezvous::failure_detector::FailureDetector;
use crate::rendezvous::state::{Node, Timestamp};
use crate::simulated::Random;
use crate::spec::rendezvous::RoundTimes;

/// Interval of an agent's heartbeats.
pub(super) const TICK: u64 = LEASE / 5;
/// Without an answer for this long, an agent repeats its request.
pub(super) const TIMEOUT: u64 = LEASE * 3 / 10;
/// Messages that are resent at the end of a bad time arrive within this time, with all their consequences.
const MOST_LATE: u64 = 4_000;
/// The end is judged at the latest this long after the last fault.
pub(super) const PATIENCE: u64 = JOIN + 20_000;
/// A final state must stay stable for this long.
const QUIET_PERIOD: u64 = 2_500;
/// A job with more turns than this is in a livelock.
const MOST_TURNS: u32 = 30_000;

/// The complete state of one run.
pub(super) struct World<'a> {
    pub(super) setup: &'a Setup,
    pub(super) machine: Machine,
    pub(super) store: Store,
    /// The newest agent of each slot.
    pub(super) agents: [Option<Agent>; MAX_EVENTS],
    boots: [u32; MAX_EVENTS],
    descriptors: BTreeMap<Node, AgentDescriptor>,
    pub(super) cut_until: [u64; MAX_EVENTS],
    pub(super) losing_until: u64,
    pub(super) resending_until: u64,
    /// All faults are over by this time.
    pub(super) quiet: u64,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    pending_events: Vec<Option<NetworkEvent>>,
    pub(super) random: Random,
    pub(super) oracle: Oracle,
    /// Hash of all decisions of all agents, and their transcript.
    pub(super) trace: u64,
    transcript: Option<&'a mut Vec<String>>,
}

#[derive(Debug)]
pub(super) enum NetworkEvent {
    FromHistory(EventKind, usize),
    Arrives { incarnation: Incarnation, id: u64, request: Request, sent: u64 },
    Answered { incarnation: Incarnation, id: u64, answer: Answer, sent: Option<u64> },
    TimesOut { incarnation: Incarnation, id: u64 },
    HeartbeatArrives { incarnation: Incarnation, sent: u64 },
    HeartbeatAnswered { incarnation: Incarnation, sent: u64 },
    Rings { slot: usize },
    Ticks { incarnation: Incarnation },
    Wakes { incarnation: Incarnation },
    Gone(Node),
}

/// Identifies one agent: its slot, and its number on that slot.
pub(super) type Incarnation = (usize, u32);

/// Start of the virtual clock.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
    *ORIGIN.get_or_init(Instant::now)
}

fn at(millis: u64) -> Instant {
    origin() + Duration::from_millis(millis)
}

/// Runs a history. Returns the first violation, or the hash of all decisions.
pub(super) fn run_world(
    history: &History,
    machine: Machine,
    transcript: Option<&mut Vec<String>>,
) -> Result<u64, Broken> {
    let mut world = World {
        setup: &history.setup,
        machine,
        store: Store::default(),
        agents: Default::default(),
        boots: [0; MAX_EVENTS],
        descriptors: BTreeMap::new(),
        cut_until: [0; MAX_EVENTS],
        losing_until: 0,
        resending_until: 0,
        quiet: 0,
        now: 0,
        queue: BinaryHeap::new(),
        pending_events: Vec::new(),
        random: Random::new(history.seed),
        oracle: Oracle::default(),
        trace: 0,
        transcript,
    };
    world.quiet = world.plan(history);
    world.run()?;
    Ok(world.trace)
}

impl World<'_> {
    /// Schedules all events of a history; returns the time of the last fault's end.
    fn plan(&mut self, history: &History) -> u64 {
        let mut moment = 0;
        let mut quiet = 0;
        for slot in 0..history.setup.nodes as usize {
            let boots = u64::from(history.setup.boots[slot]);
            quiet = quiet.max(boots);
            self.schedule_event(boots, NetworkEvent::FromHistory(EventKind::Boot, slot));
        }
        for event in &history.events {
            moment += u64::from(event.after);
            let lasts = match event.what {
                EventKind::Cut(lasts) | EventKind::Loses(lasts) | EventKind::Resends(lasts) => {
                    u64::from(lasts)
                }
                _ => 0,
            };
            quiet = quiet.max(moment + lasts);
            self.schedule_event(moment, NetworkEvent::FromHistory(event.what, event.slot));
        }
        quiet
    }

    pub(super) fn schedule_event(&mut self, moment: u64, event: NetworkEvent) {
        self.pending_events.push(Some(event));
        let id = self.pending_events.len() - 1;
        self.queue.push(Reverse((moment, id as u64, id)));
    }

    fn run(&mut self) -> Result<(), Broken> {
        let quiet = self.quiet;
        let mut calm = None;
        for _ in 0..MOST_TURNS {
            let Some(Reverse((moment, _, id))) = self.queue.pop() else { return self.check_job_end(true) };
            self.now = moment;
            let event = self.pending_events[id].take().expect("everything happens once");
            let is_change = matches!(event, NetworkEvent::Answered { .. });
            self.handle_event(event)?;
            if self.now <= quiet || !is_change {
                continue;
            }
            let notifications = self.oracle.notifies;
            if !self.is_healthy() {
                calm = None;
            } else if calm.is_none_or(|(_, then)| then != notifications) {
                calm = Some((self.now, notifications));
            }
            let is_calm = calm.is_some_and(|(since, _)| self.now >= since + QUIET_PERIOD);
            // The failure detection of a torchrun agent takes longer.
            let patience = PATIENCE * if self.setup.torch == 0 { 1 } else { 2 };
            if is_calm || self.now > quiet + patience {
                return self.check_job_end(is_calm);
            }
        }
        Err(Broken::new("R5", format!("{MOST_TURNS} turns, and no end")))
    }

    fn handle_event(&mut self, event: NetworkEvent) -> Result<(), Broken> {
        match event {
            NetworkEvent::FromHistory(what, slot) => self.apply_history_event(what, slot),
            NetworkEvent::Arrives { incarnation, id, request, sent } => {
                self.on_request(incarnation, id, request, sent)
            }
            NetworkEvent::Answered { incarnation, id, answer, sent } => {
                if self.is_cut(incarnation.0) {
                    return Ok(());
                }
                self.on_answer(incarnation, id, answer, sent)
            }
            NetworkEvent::TimesOut { incarnation, id } => {
                let now = self.now;
                let Some(agent) = self.agent(incarnation).filter(|agent| agent.pending == Some(id)) else {
                    return Ok(());
                };
                agent.pending = None;
                agent.clear_since = now;
                self.send_request(incarnation.0, Request::Read { reads_heartbeats: true });
                Ok(())
            }
            NetworkEvent::HeartbeatArrives { incarnation, sent } => {
                self.on_heartbeat_received(incarnation, sent);
                Ok(())
            }
            NetworkEvent::HeartbeatAnswered { incarnation, sent } => {
                self.on_heartbeat_answered(incarnation, sent)
            }
            NetworkEvent::Rings { slot } => {
                if self.is_cut(slot) {
                    return Ok(());
                }
                self.request_state(slot, false);
                Ok(())
            }
            NetworkEvent::Ticks { incarnation } => {
                if self.agent(incarnation).is_some() {
                    self.schedule_event(self.now + TICK, NetworkEvent::Ticks { incarnation });
                    self.send_heartbeat(incarnation);
                    self.request_state(incarnation.0, true);
                }
                Ok(())
            }
            NetworkEvent::Wakes { incarnation } => self.wake(incarnation),
            NetworkEvent::Gone(node) => {
                let host = self.agents[0].as_mut().filter(|host| host.is_running());
                let Some(host) = host else { return Ok(()) };
                host.failure_detector.mark_disconnected(&node);
                self.request_state(0, false);
                Ok(())
            }
        }
    }

    /// The agent with this identity, while it is alive.
    pub(super) fn agent(&mut self, (slot, boot): Incarnation) -> Option<&mut Agent> {
        let is_it = self.boots[slot] == boot;
        self.agents[slot].as_mut().filter(|agent| is_it && agent.is_running())
    }

    const fn incarnation_of(&self, slot: usize) -> Incarnation {
        (slot, self.boots[slot])
    }

    fn apply_history_event(&mut self, what: EventKind, slot: usize) -> Result<(), Broken> {
        self.write_transcript(|_| format!("{what:?} of n{slot}"));
        let is_running = self.agents[slot].as_ref().is_some_and(Agent::is_running);
        let stop = u64::from(self.setup.stops[slot]);
        let now = self.now;
        match what {
            EventKind::Boot if !is_running => self.boot(slot),
            EventKind::Loses(lasts) => {
                self.losing_until = now + u64::from(lasts);
                self.oracle.disturbed = self.oracle.disturbed.max(self.losing_until);
            }
            EventKind::Resends(lasts) => {
                self.resending_until = now + u64::from(lasts);
                self.oracle.late = self.oracle.late.max(self.resending_until + MOST_LATE);
            }
            EventKind::Cut(lasts) if is_running && !self.setup.is_torch(slot) => {
                self.cut_until[slot] = now + u64::from(lasts);
                self.oracle.disturbed = self.oracle.disturbed.max(self.cut_until[slot]);
                if let Some(agent) = &mut self.agents[slot] {
                    agent.clear_since = self.cut_until[slot];
                }
            }
            EventKind::Crash if is_running => self.crash(slot, AgentEnd::Crashed),
            // A torchrun agent leaves without a message.
            EventKind::Leaves if is_running && self.setup.is_torch(slot) => self.crash(slot, AgentEnd::Left),
            EventKind::Fails | EventKind::Leaves | EventKind::Closes if is_running => {
                let agent = self.agents[slot].as_mut().expect("it lives");
                agent.schedule_lease_stop(now, stop);
                let then = match what {
                    EventKind::Leaves => AfterWorkers::Leave,
                    EventKind::Closes => AfterWorkers::Close,
                    _ => AfterWorkers::Join,
                };
                self.oracle.may_close |= then == AfterWorkers::Close;
                agent.stop(now, stop, then);
                self.wait_for_workers(slot);
                return self.act(slot);
            }
            _ => {}
        }
        Ok(())
    }

    fn boot(&mut self, slot: usize) {
        self.boots[slot] += 1;
        let me = self.setup.me(slot, self.boots[slot]);
        let is_torch = self.setup.is_torch(slot);
        if !is_torch {
            let descriptor = AgentDescriptor {
                protocol: 1,
                version: String::new(),
                host: String::new(),
                nodes: me.nodes,
                node_rank: me.node_rank,
                lease: me.times.lease,
                workers: LocalWorldSize::ONE,
                entrypoint: String::new(),
                nonce: 0,
                max_restarts: None,
            };
            self.descriptors.insert(me.node.clone(), descriptor);
        }
        self.cut_until[slot] = 0;
        let mut agent = Agent::new(me, self.now, self.now + JOIN);
        let lease = agent.me.times.lease;
        let lease = match self.machine {
            machine if machine.has(Fault::IsImpatient) => lease * 3 / 5,
            machine if machine.has(Fault::IgnoresTheDead) => lease * 100,
            _ => lease,
        };
        agent.failure_detector = FailureDetector::new(&RoundTimes { lease, ..agent.me.times });
        agent.outlives = self.machine.has(Fault::OutlivesItsLease);
        self.agents[slot] = Some(agent);
        let incarnation = self.incarnation_of(slot);
        self.schedule_event(self.now + TICK, NetworkEvent::Ticks { incarnation });
        self.send_request(slot, Request::Read { reads_heartbeats: true });
    }

    fn crash(&mut self, slot: usize, why: AgentEnd) {
        let agent = self.agents[slot].as_mut().expect("it lives");
        agent.phase = Phase::Ended(why);
        let node = agent.me.node.clone();
        self.oracle.crashed.insert(node.clone(), self.now);
        if self.setup.hosts && slot != 0 && !self.is_cut(slot) {
            // The store sees the closed connection after all messages of that connection.
            self.schedule_event(self.all_arrived(), NetworkEvent::Gone(node));
        }
    }

    pub(super) fn wall(&self, slot: usize) -> Timestamp {
        let offset = i64::from(self.setup.offsets[slot]) * 1_000;
        Timestamp((1_700_000_000_000 + i64::try_from(self.now).expect("small") + offset) * 1_000)
    }
}
