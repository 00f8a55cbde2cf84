//! The numbered invariants that must hold in every history. The world calls the checks before each write, each start of
//! workers, and after each read.

use std::collections::BTreeMap;

use super::agent::{Agent, AgentEnd, Phase};
use super::history::{GivenRanks, JOIN, LEASE, MAX_EVENTS};
use super::world::{TICK, World};
use crate::rendezvous::state::{Node, RendezvousState};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Invariant {
    pub(super) number: &'static str,
    pub(super) description: &'static str,
}

pub(super) const INVARIANTS: [Invariant; 14] = [
    Invariant {
        number: "R1",
        description: "One round comes after the other, and only one has living workers",
    },
    Invariant { number: "R2", description: "No round has fewer members than min or more than max" },
    Invariant {
        number: "R3",
        description: "The ranks of a round are exactly 0..n, and all members know the same ones",
    },
    Invariant { number: "R4", description: "No agent runs after the rendezvous is closed" },
    Invariant {
        number: "R5",
        description: "When the faults are over, a round is complete and stays so, with as many agents as the round has places, or all have ended",
    },
    Invariant { number: "R6", description: "A dead agent is in no list a lease and two looks later" },
    Invariant {
        number: "R7",
        description: "Leaving is not closing, and an agent that has left is in no list",
    },
    Invariant {
        number: "R8",
        description: "A member of the round before keeps its rank, unless ranks were given",
    },
    Invariant { number: "R9", description: "Clocks that are wrong change nothing" },
    Invariant {
        number: "R10",
        description: "A node that was cut off runs no workers when the next round is complete",
    },
    Invariant { number: "R11", description: "No agent starts the same round twice" },
    Invariant { number: "R12", description: "The heartbeats of rankrun agents that live are fresh" },
    Invariant { number: "R13", description: "No agent is refused for the node rank of a dead agent" },
    Invariant {
        number: "R14",
        description: "No agent, itself included, takes a live agent that reaches the store for dead, however late packets are",
    },
];

/// A violated invariant, with the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) invariant: Invariant,
    pub(super) why: String,
}

impl Broken {
    pub(super) fn new(number: &str, why: String) -> Self {
        let invariant = INVARIANTS.into_iter().find(|it| it.number == number);
        Self { invariant: invariant.expect("it has a number"), why }
    }
}

/// The past of a run, as far as the invariants need it.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    /// Members and ranks of each round when it was completed.
    rounds: BTreeMap<u64, BTreeMap<Node, i64>>,
    pub(super) crashed: BTreeMap<Node, u64>,
    pub(super) may_close: bool,
    closed: Option<u64>,
    /// Number of writes that notified the other agents.
    pub(super) notifies: u64,
    /// Number of writes that came too late.
    pub(super) lost_writes: u64,
    /// No message is lost or cut off after this time.
    pub(super) disturbed: u64,
    /// No packet is delayed by resends after this time.
    pub(super) late: u64,
}

/// Returns a violation unless the condition holds.
macro_rules! hold {
    ($number:literal, $condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err(Broken::new($number, format!($($words)+)));
        }
    };
}

fn ranks(state: &RendezvousState) -> BTreeMap<Node, i64> {
    state.participants.iter().map(|(node, rank)| (node.clone(), rank)).collect()
}

impl World<'_> {
    fn living(&self) -> impl Iterator<Item = (usize, &Agent)> {
        let agents = self.agents.iter().enumerate();
        agents.filter_map(|(slot, agent)| Some((slot, agent.as_ref().filter(|agent| agent.is_running())?)))
    }

    /// Checks a write before the store applies it.
    pub(super) fn check_write(&mut self, new: &RendezvousState) -> Result<(), Broken> {
        let old = &self.store.state;
        let count = new.participants.len();
        hold!("R4", new.closed || !old.closed, "it is open again");
        hold!("R7", old.closed || !new.closed || self.oracle.may_close, "no agent wanted to close it");
        let is_next = new.round == old.round + 1;
        hold!("R1", new.round == old.round || is_next, "round {} after {}", new.round, old.round);
        hold!("R1", !is_next || old.complete, "round {} was never complete", old.round);
        hold!("R2", count <= self.setup.max as usize, "{count} take part");
        if old.complete && !is_next {
            let same = new.complete && ranks(new).iter().all(|it| ranks(old).get(it.0) == Some(it.1));
            hold!("R3", same, "round {} was complete, and has changed", old.round);
        }
        self.check_removed(new)?;
        if new.closed && !old.closed {
            self.oracle.closed = Some(self.now);
        }
        if new.complete && (!old.complete || is_next) { self.check_completion(new) } else { Ok(()) }
    }

    fn check_completion(&mut self, new: &RendezvousState) -> Result<(), Broken> {
        let (round, count) = (new.round, new.participants.len());
        hold!("R2", count >= self.setup.min as usize, "{count} take part");
        hold!("R4", !new.closed, "round {round} is complete, and closed");
        let ranks = ranks(new);
        let mut sorted: Vec<i64> = ranks.values().copied().collect();
        sorted.sort_unstable();
        let is_whole = (0..).zip(&sorted).all(|(place, rank)| place == *rank);
        hold!("R3", is_whole, "round {round} has the ranks {sorted:?}");
        self.check_ranks_kept(&ranks)?;
        self.check_workers(round)?;
        self.oracle.rounds.insert(round, ranks);
        Ok(())
    }

    /// Whether all messages of the recent past have arrived, however late.
    fn is_connected(&self) -> bool {
        self.oracle.disturbed == 0 || self.oracle.disturbed + 2 * LEASE < self.now
    }

    /// An agent that a write removes from all lists must have ended, or want to leave.
    fn check_removed(&self, new: &RendezvousState) -> Result<(), Broken> {
        let old = &self.store.state;
        let is_there = |agent: &&Agent| old.lists(&agent.me.node) && !new.lists(&agent.me.node);
        for (slot, agent) in self.living().filter(|(_, agent)| is_there(agent)) {
            let has_workers = matches!(agent.phase, Phase::Running { .. } | Phase::Stopping { .. });
            let is_lost = has_workers && self.is_connected() && self.setup.torch == 0;
            hold!("R14", !is_lost, "n{slot} lives, and is in no list any more");
        }
        Ok(())
    }

    /// An agent that stops its workers because it is cut off must really be cut off.
    pub(super) fn check_cut_off(&self, slot: usize) -> Result<(), Broken> {
        hold!("R14", !self.is_connected(), "n{slot} has the store, and stops its workers");
        Ok(())
    }

    fn check_ranks_kept(&self, ranks: &BTreeMap<Node, i64>) -> Result<(), Broken> {
        let last = self.oracle.rounds.last_key_value();
        let Some((_, last)) = last.filter(|_| self.setup.given == GivenRanks::None && self.setup.torch == 0)
        else {
            return Ok(());
        };
        for (node, old) in last {
            let new = ranks.get(node).filter(|_| usize::try_from(*old).is_ok_and(|old| old < ranks.len()));
            hold!("R8", new.is_none_or(|new| new == old), "{node} had rank {old} and has {new:?}");
        }
        Ok(())
    }

    /// No agent may have workers of a round other than this.
    fn check_workers(&self, round: u64) -> Result<(), Broken> {
        for (slot, agent) in self.living().filter(|(slot, _)| !self.setup.is_torch(*slot)) {
            let Some((other, until)) = agent.workers(u64::from(self.setup.stops[slot])) else { continue };
            let is_over = other == round || until <= self.now;
            let is_disturbed = self.oracle.disturbed + 2 * LEASE > self.now && self.oracle.disturbed > 0;
            hold!("R10", is_over || !is_disturbed, "n{slot} runs round {other}, and {round} is complete");
            hold!("R1", is_over, "n{slot} runs round {other}, and {round} is complete");
        }
        Ok(())
    }

    /// Checks an agent just before its workers start.
    pub(super) fn check_start(&self, slot: usize) -> Result<(), Broken> {
        let Some(agent) = &self.agents[slot] else { return Ok(()) };
        if self.setup.is_torch(slot) {
            return Ok(());
        }
        let (state, node) = (&agent.known, &agent.me.node);
        let (round, count) = (state.round, state.participants.len());
        hold!("R2", count >= self.setup.min as usize, "{node} starts in a world of {count}");
        hold!("R4", !state.closed, "{node} starts round {round}, and knows that it is closed");
        hold!("R11", agent.before.is_none_or(|before| before < round), "{node} starts round {round}");
        let known = ranks(state);
        let all = self.oracle.rounds.get(&round);
        let is_whole = self.setup.torch != 0 || all == Some(&known);
        hold!("R3", is_whole, "{node} takes {known:?} for the members of round {round}, {all:?}");
        self.check_workers(round)
    }

    /// Checks an agent after it has read the store.
    pub(super) fn check_read(&self, slot: usize) -> Result<(), Broken> {
        let Some(agent) = self.agents[slot].as_ref().filter(|agent| agent.is_running()) else {
            return Ok(());
        };
        let slack = 4 * u64::from(self.setup.delay) + 2 * TICK + 100;
        let settled = self.oracle.disturbed.max(self.oracle.late);
        let saw_all = |since: u64| agent.clear_since <= since && settled <= since;
        let cleans = !agent.known.closed && !matches!(agent.phase, Phase::Leaving { .. });
        let limit = if self.setup.torch == 0 { LEASE } else { 15_000 };
        for (node, crashed) in self.oracle.crashed.iter().filter(|_| cleans) {
            let is_due = saw_all(*crashed) && self.now > crashed + limit + slack;
            let is_there = is_due && agent.known.lists(node);
            hold!("R6", !is_there, "{} sees {node}, which died at {crashed} ms", agent.me.node);
        }
        if let Some(closed) = self.oracle.closed.filter(|closed| saw_all(*closed)) {
            let stop = u64::from(self.setup.stops[slot]);
            let runs = agent.workers(stop).is_some_and(|(_, until)| until > self.now);
            let runs = runs && self.now > closed + slack + stop;
            hold!("R4", !runs, "{} runs, and it was closed at {closed} ms", agent.me.node);
        }
        Ok(())
    }

    /// Checks an agent that gives up joining.
    pub(super) fn check_timeout(&self) -> Result<(), Broken> {
        let is_long = self.now > self.quiet + JOIN * 3 / 5;
        let here = self.living().count();
        let needed = self.setup.min as usize;
        hold!(
            "R5",
            !is_long || self.setup.torch != 0 || here < needed,
            "an agent gives up, and {here} of {needed} are there"
        );
        Ok(())
    }

    /// Checks that the agent that keeps a contested node rank is alive.
    pub(super) fn check_refusal(&self, by: &Node) -> Result<(), Broken> {
        let slack = 4 * u64::from(self.setup.delay) + 2 * TICK;
        let crashed = self.oracle.crashed.get(by).map(|crashed| *crashed.max(&self.oracle.late));
        let died = crashed.is_some_and(|crashed| crashed + slack < self.now);
        hold!("R13", !died, "{by} is dead");
        Ok(())
    }

    /// Checks an agent that reports that it has left.
    pub(super) fn check_left(&self, slot: usize) -> Result<(), Broken> {
        let Some(agent) = &self.agents[slot] else { return Ok(()) };
        let is_there = !self.store.state.closed && self.store.state.lists(&agent.me.node);
        hold!("R7", !is_there, "{} says that it has left, and is there", agent.me.node);
        Ok(())
    }

    /// Whether the job is in a stable final state.
    pub(super) fn is_healthy(&self) -> bool {
        let state = &self.store.state;
        if state.closed {
            return self.living().all(|(slot, _)| self.setup.is_torch(slot));
        }
        let living = self.living().count();
        if living < self.setup.min as usize {
            return living == 0;
        }
        let is_placed = |agent: &Agent| match &agent.phase {
            Phase::Running { round, .. } => {
                *round == state.round && state.participants.contains(&agent.me.node)
            }
            Phase::Joining { .. } => state.redundancy_list.contains(&agent.me.node),
            _ => false,
        };
        state.complete
            && state.wait_list.is_empty()
            && state.participants.len() == living.min(self.setup.max as usize)
            && self.living().all(|(_, agent)| is_placed(agent))
    }

    /// Checks the end of the history.
    pub(super) fn check_job_end(&self, is_well: bool) -> Result<(), Broken> {
        let ends = || {
            let each =
                self.agents.iter().flatten().map(|agent| format!("{}: {:?}", agent.me.node, agent.phase));
            each.collect::<Vec<_>>().join(", ")
        };
        hold!("R5", is_well, "after {} ms: {}", self.now, ends());
        let reasons = self.agents.iter().flatten().filter_map(|agent| match agent.phase {
            Phase::Ended(why) => Some(why),
            _ => None,
        });
        let is_open =
            |why: AgentEnd| !matches!(why, AgentEnd::Closed | AgentEnd::NotNeeded | AgentEnd::HasClosed);
        let agrees = self.store.state.closed || reasons.clone().all(is_open);
        hold!("R5", agrees, "it is not closed, and {}", ends());
        let disturbed = self.oracle.disturbed.max(self.oracle.late);
        let is_calm = disturbed == 0 || disturbed + 10_000 < self.now;
        let is_right = is_calm && self.setup.offsets == [0; MAX_EVENTS] && !self.store.state.closed;
        for (slot, agent) in self.living().filter(|(slot, _)| is_right && !self.setup.is_torch(*slot)) {
            let heartbeat = self.store.state.last_heartbeats.get(&agent.me.node);
            let is_fresh = heartbeat.is_some_and(|heartbeat| heartbeat.0 + 8_000_000 > self.wall(slot).0);
            hold!("R12", is_fresh, "{} was seen at {heartbeat:?}", agent.me.node);
        }
        Ok(())
    }
}
