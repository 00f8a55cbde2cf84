//! A history: a job's settings, and a list of events that can be replayed and shortened. Random histories come from a
//! seed. The world runs them.
//!
//! Every list of events is valid: an event without a target, such as a crash without a live agent, does nothing.

use crate::rendezvous::round::LocalNode;
use crate::rendezvous::state::Node;
use crate::simulated::Random;
use crate::spec::rendezvous::{NodeRange, RoundTimes};

use std::time::Duration;

use rankrun_contract::rank::{NodeCount, NodeRank};

/// Maximum number of machines. The number of a machine, its slot, identifies its agent.
pub(super) const MAX_EVENTS: usize = 8;
pub(super) const LEASE: u64 = 5_000;
pub(super) const JOIN: u64 = 25_000;

/// One run of a simulated job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    pub(super) setup: Setup,
    pub(super) events: Vec<Event>,
    /// Seed of the network's random decisions.
    pub(super) seed: u64,
}

/// Options of the job, and properties of machines and network. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    /// Number of agents that start at the beginning.
    pub(super) nodes: u32,
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) last_call: u32,
    /// Longest delay of a message.
    pub(super) delay: u32,
    /// First start time of each agent.
    pub(super) boots: [u32; MAX_EVENTS],
    /// Time that each agent's workers take to stop.
    pub(super) stops: [u32; MAX_EVENTS],
    /// Error of each machine's clock, in seconds.
    pub(super) offsets: [i32; MAX_EVENTS],
    pub(super) given: GivenRanks,
    /// Whether slot 0 hosts the store, and is told which connections close.
    pub(super) hosts: bool,
    /// Slots with a torchrun agent, one bit each.
    pub(super) torch: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenRanks {
    None,
    /// In reverse order of the names.
    Backwards,
    /// The first two nodes have the same rank.
    Twice,
}

/// An event, with the time since the previous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) after: u32,
    pub(super) slot: usize,
    pub(super) what: EventKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventKind {
    /// The agent and its workers end at once.
    Crash,
    /// Starts another agent on a slot without one.
    Boot,
    /// All messages from and to the agent are lost for this long.
    Cut(u32),
    Fails,
    /// The agent receives a signal.
    Leaves,
    /// The agent ends the job for all agents.
    Closes,
    /// For this long, one in a few messages of all agents is lost.
    Loses(u32),
    /// For this long, one in ten packets of all agents is lost, and sent again until it arrives.
    Resends(u32),
}

impl Event {
    fn random(random: &mut Random) -> Self {
        let after = random.pick(&[0, 0, 3, 40, 700, 2_500, 6_000]);
        let slot = random.below(u32::try_from(MAX_EVENTS).expect("few")) as usize;
        let what = match random.below(26) {
            0..5 => EventKind::Crash,
            5..10 => EventKind::Boot,
            10..13 => EventKind::Cut(random.pick(&[500, 2_000, 4_500, 6_000, 9_000])),
            13..18 => EventKind::Fails,
            18..21 => EventKind::Leaves,
            21 => EventKind::Closes,
            22..24 => EventKind::Resends(random.pick(&[3_000, 8_000, 20_000])),
            _ => EventKind::Loses(random.pick(&[500, 3_000, 8_000])),
        };
        Self { after, slot, what }
    }
}

impl Setup {
    fn random(random: &mut Random) -> Self {
        let max = 1 + random.below(5);
        let min = if random.one_in(3) { max } else { 1 + random.below(max) };
        let nodes = (min + random.below(4)).min(8);
        let spread = random.pick(&[0, 30, 400, 3_000]);
        let stop = random.pick(&[0, 5, 300, 4_000]);
        let skew = random.pick(&[0, 0, 20, 3_600]);
        let mut each = |most: u32| std::array::from_fn(|_| random.below(most + 1));
        let (boots, stops, skews) = (each(spread), each(stop), each(2 * skew));
        Self {
            nodes,
            min,
            max,
            last_call: random.pick(&[200, 1_500, 3_000]),
            delay: random.pick(&[0, 1, 30, 250]),
            boots,
            stops,
            offsets: skews
                .map(|it: u32| i32::try_from(it).expect("small") - i32::try_from(skew).expect("small")),
            given: random.pick(&[
                GivenRanks::None,
                GivenRanks::None,
                GivenRanks::Backwards,
                GivenRanks::Twice,
            ]),
            hosts: random.one_in(2),
            torch: 0,
        }
    }

    /// The parameters of an agent: the `boot`-th one on this slot.
    pub(super) fn me(&self, slot: usize, boot: u32) -> LocalNode {
        let count = |number| NodeCount::new(number).expect("not zero");
        let place = u32::try_from(slot).expect("few");
        let node_rank = match self.given {
            GivenRanks::None => None,
            GivenRanks::Backwards => Some(100 - place),
            GivenRanks::Twice => Some(place.max(1)),
        };
        LocalNode {
            node: Node { addr: format!("n{slot}"), pid: i64::from(boot), local_id: 0 },
            nodes: NodeRange { min: count(self.min), max: count(self.max) },
            node_rank: node_rank.map(NodeRank),
            times: RoundTimes {
                join: Duration::from_millis(JOIN),
                last_call: Duration::from_millis(u64::from(self.last_call)),
                lease: Duration::from_millis(LEASE),
                ..RoundTimes::default()
            },
        }
    }

    pub(super) const fn is_torch(&self, slot: usize) -> bool {
        self.torch & (1 << slot) != 0
    }
}

impl History {
    /// The history that belongs to this seed.
    pub(super) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::random(&mut random);
        let length = random.below(9);
        let events = (0..length).map(|_| Event::random(&mut random)).collect();
        Self { setup, events, seed }
    }

    /// A history with torchrun agents, which survive neither a lost message nor a wrong clock. Slot 0 stays a rankrun
    /// agent, because torchrun agents alone never notice a dead node. There are never more nodes than places, because
    /// torchrun agents restart repeatedly while others wait for a full round. For the same reason the last call is
    /// longer than it takes all nodes to write themselves in one after the other; torchrun's default is 30 s.
    pub(super) fn mixed(seed: u64) -> Self {
        let mut history = Self::random(seed);
        let mut random = Random::new(!seed);
        let nodes = 2 + random.below(4);
        let torch = u8::try_from(2 + 2 * random.below((1 << (nodes - 1)) - 1)).expect("few bits");
        let min = 1 + random.below(nodes);
        let (offsets, given) = ([0; MAX_EVENTS], GivenRanks::None);
        let last_call = history.setup.last_call.max(1_500);
        history.setup = Setup { nodes, min, max: nodes, last_call, torch, offsets, given, ..history.setup };
        let is_borne =
            |what| !matches!(what, EventKind::Cut(_) | EventKind::Loses(_) | EventKind::Resends(_));
        history.events.retain(|event| (1..nodes as usize).contains(&event.slot) && is_borne(event.what));
        history
    }

    /// All histories that are simpler by one step; large simplifications come first.
    pub(super) fn shrink_candidates(&self) -> Vec<Self> {
        let length = self.events.len();
        let without = |from: usize, count: usize| {
            let mut events = self.events.clone();
            events.drain(from..(from + count).min(length));
            Self { events, ..self.clone() }
        };
        let halves = (length > 3).then(|| [without(0, length / 2), without(length / 2, length)]);
        let shorter = (0..length).map(|at| without(at, 1));
        let setup = &self.setup;
        let plainer = [
            Setup { nodes: setup.nodes - 1, ..*setup },
            Setup { delay: 0, ..*setup },
            Setup { delay: setup.delay.min(1), ..*setup },
            Setup { boots: [0; MAX_EVENTS], ..*setup },
            Setup { stops: [0; MAX_EVENTS], ..*setup },
            Setup { offsets: [0; MAX_EVENTS], ..*setup },
            Setup { given: GivenRanks::None, ..*setup },
            Setup { hosts: false, ..*setup },
            Setup { torch: setup.torch & setup.torch.wrapping_sub(1), ..*setup },
        ];
        let plainer = plainer.into_iter().filter(|plainer| plainer != setup && plainer.nodes > 0);
        let plainer = plainer.map(|setup| Self { setup, ..self.clone() });
        halves.into_iter().flatten().chain(shorter).chain(plainer).collect()
    }
}
