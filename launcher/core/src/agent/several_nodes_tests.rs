//! Several state machines and their rendezvous rules around one store, with a network between them. Workers
//! fail by themselves, fast or slowly, and others fail because they lost these. Whatever the delays, the
//! first cause is a failure that lost no peer, and only nodes with workers that failed by themselves use
//! restarts.
//!
//! `RANKRUN_SEED=<number>` repeats a run, `RANKRUN_SOAK=1` makes it twenty times as long, with a seed of its
//! own.

use std::collections::{BTreeMap, BTreeSet};

use super::rendezvous_tests::round;
use super::*;
use crate::rendezvous::lost_node_deadline::{PeerActivity, lost_node_deadline};
use crate::rendezvous::{FailureNote, MembershipChange, NodeName, PeerLoss, WorkerFailure};
use crate::simulated::{Random, is_soak, seed};
use crate::spec::rendezvous::RoundTimes;
use rankrun_contract::rank::{NodeCount, NodeRank, Rank, WorldSize};

const HISTORIES: u64 = 3_000;
const MUTANT_HISTORIES: u64 = 500;
/// From the last exit on a node to its next round, if nothing has to be awaited.
const MAX_REJOIN_DELAY: u64 = 60;

/// A fault of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Keeps the first report, whatever its content.
    FirstStands,
    NeverWaits,
    /// Waits even if the failure here lost no peer.
    AlwaysWaits,
    /// Ignores a lost peer in other nodes' reports.
    ForgetsTheLoss,
}

/// How one worker of a history fails.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// When its connections close, and when it is reaped.
    closes: u64,
    ends: u64,
    writes: bool,
}

#[derive(Debug)]
struct History {
    /// From each node to the store; the first node owns it.
    delays: Vec<u64>,
    plans: Vec<Option<Plan>>,
}

impl History {
    fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = 2 + random.below(3);
        let mut below = move |limit: u32| u64::from(random.below(limit));
        let delays = (0..nodes).map(|node| if node == 0 { 0 } else { below(150) }).collect();
        let sure = below(nodes);
        let plan = |node| {
            let fails = u64::from(node) == sure || below(4) == 0;
            let closes = below(50);
            let ends = closes + if below(2) == 0 { 0 } else { below(300) };
            let writes = below(2) == 0;
            fails.then_some(Plan { closes, ends, writes })
        };
        Self { delays, plans: (0..nodes).map(plan).collect() }
    }
}

/// What happens at a moment.
#[derive(Debug, Clone)]
enum Event {
    Closes(usize),
    Ends(usize),
    /// The worker of a node notices the loss of another.
    Misses(usize, usize),
    /// A worker that was told to stop has ended.
    Stopped(usize),
    /// A node's report arrives at the store, to replace the report that the node expects there.
    Tells {
        node: usize,
        note: FailureNote,
        expected: Option<FailureNote>,
    },
    NoteWritten {
        node: usize,
        note: FailureNote,
        found: FailureNote,
    },
    Joins(usize),
    Asks(usize),
    Sees {
        node: usize,
        note: Option<FailureNote>,
        left: BTreeSet<usize>,
    },
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    ByItself,
    OfALoss,
    /// With its own code, while it was being stopped.
    DuringAStop,
    /// By our stop, after it had failed and written its error file.
    StoppedLate,
    Stopped,
}

#[expect(clippy::struct_excessive_bools, reason = "facts that come in any order and combination")]
struct Node {
    state: SweptState,
    is_signalled: bool,
    end: Option<(End, u64)>,
    /// As in `rendezvous::task::member`.
    failure: Option<FailureNote>,
    reported: Option<FailureNote>,
    is_report_pending: bool,
    is_stopping: bool,
    asked: Option<u64>,
    wants_to_join: bool,
    joined: Option<u64>,
    restarts: Option<u32>,
}

struct World<'a> {
    history: &'a History,
    fault: Option<Fault>,
    start: Instant,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    nodes: Vec<Node>,
    note: Option<FailureNote>,
    left: BTreeSet<usize>,
}

impl World<'_> {
    fn at(&self, time: u64) -> Instant {
        self.start + Duration::from_millis(time)
    }

    fn schedule(&mut self, delay: u64, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    fn others(&self, node: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.nodes.len()).filter(move |other| *other != node)
    }

    fn input(&mut self, node: usize, input: Input) {
        let now = self.at(self.now);
        for action in self.nodes[node].state.handle(now, input) {
            self.perform(node, action);
        }
    }

    fn perform(&mut self, node: usize, action: Action) {
        let delay = self.history.delays[node];
        match action {
            Action::TellFailure { end, .. } => {
                let note = note_of(node, &end);
                let one = &mut self.nodes[node];
                (one.is_report_pending, one.is_stopping) = (true, true);
                let expected = one.reported.clone();
                self.schedule(delay, Event::Tells { node, note, expected });
            }
            Action::FindLostNode => {
                self.nodes[node].asked = Some(self.now);
                self.schedule(delay, Event::Asks(node));
            }
            Action::Join { .. } if self.nodes[node].is_report_pending => {
                self.nodes[node].wants_to_join = true
            }
            Action::Join { .. } => self.join(node),
            Action::Signal { .. } if self.nodes[node].end.is_none() => {
                self.nodes[node].is_signalled = true;
                self.schedule(7, Event::Stopped(node));
            }
            Action::Start { restart_count, .. } if self.nodes[node].joined.is_some() => {
                self.nodes[node].restarts = Some(restart_count.0);
            }
            _ => {}
        }
    }

    fn join(&mut self, node: usize) {
        self.nodes[node].joined.get_or_insert(self.now);
        self.schedule(self.history.delays[node], Event::Joins(node));
    }

    /// The worker of a node ends, and others lose it.
    fn end_worker(&mut self, node: usize, (end, exit): (End, Exit), error_file_info: Option<Option<usize>>) {
        if self.nodes[node].end.is_some() {
            return;
        }
        self.nodes[node].end = Some((end, self.now));
        self.close_connections(node);
        let written = SystemTime::UNIX_EPOCH + Duration::from_millis(self.now);
        let lost = |rank: usize| LostPeer::Elsewhere(Rank(u32::try_from(rank).unwrap()));
        let error_file_info =
            error_file_info.map(|rank| ErrorFileInfo { written, lost_peer: rank.map(lost) });
        let (local_rank, pid, at) = (LocalRank(0), Pid::from_raw(100), written);
        let end = WorkerEnd { local_rank, pid, exit, at, error_file_info, foreign_kill: None };
        self.input(node, Input::Exited { generation: Generation(0), end });
    }

    fn close_connections(&mut self, node: usize) {
        for other in self.others(node) {
            let way = self.history.delays[node] + self.history.delays[other];
            self.schedule(way + 1, Event::Misses(other, node));
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Closes(node) if self.nodes[node].end.is_none() => self.close_connections(node),
            Event::Closes(_) => {}
            Event::Ends(node) => {
                let wrote = self.history.plans[node].filter(|plan| plan.writes).map(|_| None);
                let is_signalled = self.nodes[node].is_signalled;
                let end = if is_signalled { End::DuringAStop } else { End::ByItself };
                self.end_worker(node, (end, Exit::Code(3)), wrote);
            }
            Event::Misses(node, lost) if !self.fails_already(node) => {
                self.end_worker(node, (End::OfALoss, Exit::Code(1)), Some(Some(lost)));
            }
            Event::Misses(..) => {}
            Event::Stopped(node) => {
                let has_written =
                    self.fails_already(node) && self.history.plans[node].is_some_and(|plan| plan.writes);
                let end = if has_written { End::StoppedLate } else { End::Stopped };
                self.end_worker(node, (end, killed_by(15)), has_written.then_some(None));
            }
            Event::Tells { node, note, expected } => self.write_note_to_store(node, note, expected.as_ref()),
            Event::NoteWritten { node, note, found } => self.on_note_written(node, &note, found),
            Event::Joins(node) => {
                self.left.insert(node);
                self.notify_nodes();
            }
            Event::Asks(node) => {
                let (note, left) = (self.note.clone(), self.left.clone());
                self.schedule(self.history.delays[node], Event::Sees { node, note, left });
            }
            Event::Sees { node, note, left } => self.on_snapshot(node, note, &left),
        }
    }

    fn fails_already(&self, node: usize) -> bool {
        self.history.plans[node].is_some_and(|plan| plan.closes <= self.now)
    }

    /// As in `Backend::publish_failure`, one request after the other.
    fn write_note_to_store(&mut self, node: usize, note: FailureNote, expected: Option<&FailureNote>) {
        let delay = self.history.delays[node];
        let is_first = self.note.is_none() || self.note.as_ref() == expected;
        if is_first {
            self.note = Some(note.clone());
            self.notify_nodes();
        } else if let Some(found) = &self.note
            && note.overrides(found)
            && self.fault != Some(Fault::FirstStands)
        {
            let expected = Some(found.clone());
            return self.schedule(2 * delay, Event::Tells { node, note, expected });
        }
        let found = self.note.clone().expect("it was told");
        self.schedule(delay, Event::NoteWritten { node, note, found });
    }

    fn notify_nodes(&mut self) {
        for node in 0..self.nodes.len() {
            self.schedule(2 * self.history.delays[node], Event::Asks(node));
        }
    }

    fn on_note_written(&mut self, node: usize, note: &FailureNote, found: FailureNote) {
        let one = &mut self.nodes[node];
        let is_ours = *note == found;
        (one.is_report_pending, one.failure, one.reported) =
            (false, Some(found.clone()), is_ours.then(|| found.clone()));
        if !is_ours {
            self.input(node, self.peer_failed(found));
        }
        if std::mem::take(&mut self.nodes[node].wants_to_join) {
            self.join(node);
        }
        self.schedule(self.history.delays[node], Event::Asks(node));
    }

    fn peer_failed(&self, note: FailureNote) -> Input {
        let note = if self.fault == Some(Fault::ForgetsTheLoss) { without_loss(note) } else { note };
        Input::Changed(MembershipChange::from(note))
    }

    fn on_snapshot(&mut self, node: usize, note: Option<FailureNote>, left: &BTreeSet<usize>) {
        let one = &mut self.nodes[node];
        if one.joined.is_some() || one.is_report_pending {
            return;
        }
        if let Some(note) = note.filter(|note| one.failure.as_ref() != Some(note)) {
            let is_better = one.failure.as_ref().is_some_and(|reported| note.overrides(reported));
            (one.failure, one.reported) = (Some(note.clone()), None);
            if !std::mem::replace(&mut one.is_stopping, true) || is_better {
                self.input(node, self.peer_failed(note));
            }
            if is_better && self.nodes[node].asked.take().is_some() {
                return self.input(node, Input::LostNodeFound(None));
            }
        }
        let Some(asked) = self.nodes[node].asked else { return };
        let reported = self.nodes[node].reported.as_ref();
        let others_have_left = self.others(node).all(|other| left.contains(&other));
        let awaits_cause = match self.fault {
            Some(Fault::NeverWaits) => false,
            Some(Fault::AlwaysWaits) => !others_have_left && reported.is_some(),
            _ => !others_have_left && reported.is_some_and(|reported| reported.lost_peer().is_some()),
        };
        let shown = PeerActivity { all_live: true, doubted_until: None, awaits_cause };
        let until = lost_node_deadline(self.at(asked), true, shown, &RoundTimes::default());
        if until <= self.at(self.now) {
            self.nodes[node].asked = None;
            return self.input(node, Input::LostNodeFound(None));
        }
        let wait = until.duration_since(self.at(self.now)).as_millis();
        let delay = self.history.delays[node];
        self.schedule(u64::try_from(wait).unwrap().saturating_sub(delay), Event::Asks(node));
    }
}

fn note_of(node: usize, end: &WorkerEnd) -> FailureNote {
    let rank = u32::try_from(node).unwrap();
    FailureNote::Worker(WorkerFailure {
        node: NodeName { rank: Some(NodeRank(rank)), ..NodeName::of_host(format!("th{node}")) },
        rank: Rank(rank),
        local_rank: end.local_rank,
        pid: 100,
        ended: end.exit.to_string(),
        message: None,
        last_lines: Vec::new(),
        lost_peer: end.error_file_info.and_then(|error_file_info| match error_file_info.lost_peer? {
            LostPeer::Elsewhere(rank) => Some(PeerLoss::Rank(rank)),
            LostPeer::Here(_) | LostPeer::Unnamed => None,
        }),
    })
}

fn without_loss(note: FailureNote) -> FailureNote {
    match note {
        FailureNote::Worker(worker) => FailureNote::Worker(WorkerFailure { lost_peer: None, ..worker }),
        note => note,
    }
}

/// Runs a history, from the start of a round to the next round.
fn run_history(history: &History, fault: Option<Fault>) -> Result<(), String> {
    let start = clock()(0);
    let count = history.delays.len();
    let node = |index: usize| {
        let rules = rules(1, 3, CliFlavor::Rankrun);
        let mut state = SweptState::new(rules);
        let _ = state.handle(start, Input::Ready);
        let _ = state.handle(start, Input::Joined(round_of(0, index, count)));
        let (end, failure, reported, asked, joined, restarts) = (None, None, None, None, None, None);
        let (is_signalled, is_report_pending, is_stopping, wants_to_join) = (false, false, false, false);
        Node {
            is_signalled,
            state,
            end,
            failure,
            reported,
            is_report_pending,
            is_stopping,
            asked,
            wants_to_join,
            joined,
            restarts,
        }
    };
    let nodes = (0..count).map(node).collect();
    let (events, left) = (BTreeMap::new(), BTreeSet::new());
    let mut world = World { history, fault, start, now: 0, events, count: 0, nodes, note: None, left };
    for (node, plan) in (0..).zip(&history.plans) {
        if let Some(plan) = plan {
            world.schedule(plan.closes, Event::Closes(node));
            world.schedule(plan.ends, Event::Ends(node));
        }
    }
    while let Some(((at, _), event)) = world.events.pop_first() {
        if at > 60_000 {
            break;
        }
        world.now = at;
        world.handle_event(event);
    }
    for node in 0..count {
        world.input(node, Input::Joined(round_of(1, node, count)));
    }
    check_history(&world)
}

fn round_of(number: u64, node: usize, count: usize) -> Box<crate::rendezvous::Round> {
    let (node, count) = (u32::try_from(node).unwrap(), u32::try_from(count).unwrap());
    Box::new(crate::rendezvous::Round {
        node_rank: NodeRank(node),
        nodes: NodeCount::new(count).unwrap(),
        base_rank: Rank(node),
        base_role_rank: Rank(node),
        world_size: WorldSize::new(count).unwrap(),
        role_world_size: WorldSize::new(count).unwrap(),
        ..*round(number)
    })
}

fn check_history(world: &World<'_>) -> Result<(), String> {
    let must = |holds: bool, why: String| if holds { Ok(()) } else { Err(why) };
    let note = world.note.as_ref().ok_or("nothing was told")?;
    let of =
        |wanted: End| world.nodes.iter().filter(move |node| node.end.is_some_and(|(end, _)| end == wanted));
    let has_cause = of(End::ByItself).next().is_some();
    // A worker that was stopped before it was reaped may be the only one that had failed by itself.
    let is_written = world.history.plans.iter().flatten().count() == 1 && of(End::StoppedLate).count() == 1;
    must(!(has_cause || is_written) || note.lost_peer().is_none(), format!("cause: {note:?} stands"))?;
    for (index, node) in (0..).zip(&world.nodes) {
        let (end, at) = node.end.ok_or("a worker runs on")?;
        let joined = node.joined.ok_or(format!("end: node {index} never joins again"))?;
        let restarts = node.restarts.ok_or(format!("end: node {index} does not start again"))?;
        match end {
            End::ByItself => must(restarts == 1, format!("charge: node {index} failed by itself"))?,
            End::OfALoss | End::Stopped if note.lost_peer().is_none() => {
                must(restarts == 0, format!("charge: node {index} lost a peer or was stopped"))?;
            }
            _ => {}
        }
        let limit =
            if end == End::ByItself { MAX_REJOIN_DELAY + 6 * world.history.delays[index] } else { 5_100 };
        must(joined <= at + limit, format!("wait: node {index} ended at {at} and joins at {joined}"))?;
    }
    Ok(())
}

#[test]
fn first_cause_lost_no_peer_in_every_history() {
    let (first, count) = (seed(), if is_soak() { 20 * HISTORIES } else { HISTORIES });
    for seed in first..first + count {
        let history = History::random(seed);
        let result = run_history(&history, None);
        assert_eq!(result, Ok(()), "RANKRUN_SEED={seed}: {history:?}");
    }
}

#[test]
fn every_mutant_of_blame_logic_is_detected() {
    let faults = [
        (Fault::FirstStands, "cause"),
        (Fault::NeverWaits, "charge"),
        (Fault::AlwaysWaits, "wait"),
        (Fault::ForgetsTheLoss, "c"),
    ];
    for (fault, rule) in faults {
        let broken: Vec<String> = (0..MUTANT_HISTORIES)
            .filter_map(|seed| run_history(&History::random(seed), Some(fault)).err())
            .collect();
        assert!(broken.iter().any(|why| why.starts_with(rule)), "{fault:?}: {broken:?}");
    }
}
