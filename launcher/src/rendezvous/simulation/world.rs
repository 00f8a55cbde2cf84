//! A virtual network of agents around one store: it lets a history happen, and asks the invariants after every write, every
//! start of workers and every look.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalWorldSize;

use super::agent::{Agent, Phase, Then, Why};
use super::history::{History, JOIN, LEASE, MOST, Random, Setup, What};
use super::invariants::{Book, Broken};
use super::mutants::{Fault, Machine};
use super::store::{Answer, Request, Store};
use super::torch::{self, Move, Task};
use crate::rendezvous::descriptor::Descriptor;
use crate::rendezvous::round::{Step, View, is_spare};
use crate::rendezvous::sightings::Sightings;
use crate::rendezvous::state::{Node, State, Timestamp};
use crate::spec::rendezvous::RoundTimes;

/// Between two beats of an agent.
pub(super) const TICK: u64 = LEASE / 5;
/// Without an answer for so long it asks again.
pub(super) const TIMEOUT: u64 = LEASE * 3 / 10;
/// What is sent again at the end of a bad time has arrived so long after it, and what follows from it.
const MOST_LATE: u64 = 4_000;
/// All faults are over for so long before the end is judged at the latest.
pub(super) const PATIENCE: u64 = JOIN + 20_000;
/// The end is well where it stays so for so long.
const CALM: u64 = 2_500;
/// More than this is a job that turns for nothing.
const MOST_TURNS: u32 = 30_000;

/// Everything there is.
pub(super) struct World<'a> {
    pub(super) setup: &'a Setup,
    pub(super) machine: Machine,
    pub(super) store: Store,
    /// By seat; the newest agent of each.
    pub(super) agents: [Option<Agent>; MOST],
    lives: [u32; MOST],
    descriptors: BTreeMap<Node, Descriptor>,
    pub(super) cut_until: [u64; MOST],
    pub(super) losing_until: u64,
    pub(super) resending_until: u64,
    /// All faults are over by then.
    pub(super) quiet: u64,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    happenings: Vec<Option<Happening>>,
    pub(super) random: Random,
    pub(super) book: Book,
    /// What all agents have decided, as one number, and in words.
    pub(super) trace: u64,
    transcript: Option<&'a mut Vec<String>>,
}

/// What happens at a moment.
#[derive(Debug)]
pub(super) enum Happening {
    Chosen(What, usize),
    Arrives { who: Who, id: u64, request: Request, sent: u64 },
    Answered { who: Who, id: u64, answer: Answer, sent: Option<u64> },
    TimesOut { who: Who, id: u64 },
    PulseArrives { who: Who, sent: u64 },
    PulseAnswered { who: Who, sent: u64 },
    Rings { seat: usize },
    Ticks { who: Who },
    Wakes { who: Who },
    Gone(Node),
}

/// A life of an agent: its seat, and which one there.
pub(super) type Who = (usize, u32);

/// Where the virtual clock starts.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
    *ORIGIN.get_or_init(Instant::now)
}

fn at(millis: u64) -> Instant {
    origin() + Duration::from_millis(millis)
}

/// Lets a history happen; what is broken first, else what was decided.
pub(super) fn live(
    history: &History,
    machine: Machine,
    transcript: Option<&mut Vec<String>>,
) -> Result<u64, Broken> {
    let mut world = World {
        setup: &history.setup,
        machine,
        store: Store::default(),
        agents: Default::default(),
        lives: [0; MOST],
        descriptors: BTreeMap::new(),
        cut_until: [0; MOST],
        losing_until: 0,
        resending_until: 0,
        quiet: 0,
        now: 0,
        queue: BinaryHeap::new(),
        happenings: Vec::new(),
        random: Random::new(history.seed),
        book: Book::default(),
        trace: 0,
        transcript,
    };
    world.quiet = world.plan(history);
    world.run()?;
    Ok(world.trace)
}

impl World<'_> {
    /// Puts everything that is chosen into the queue; when the last fault is over.
    fn plan(&mut self, history: &History) -> u64 {
        let mut moment = 0;
        let mut quiet = 0;
        for seat in 0..history.setup.nodes as usize {
            let boots = u64::from(history.setup.boots[seat]);
            quiet = quiet.max(boots);
            self.later(boots, Happening::Chosen(What::Boot, seat));
        }
        for event in &history.events {
            moment += u64::from(event.after);
            let lasts = match event.what {
                What::Cut(lasts) | What::Loses(lasts) | What::Resends(lasts) => u64::from(lasts),
                _ => 0,
            };
            quiet = quiet.max(moment + lasts);
            self.later(moment, Happening::Chosen(event.what, event.seat));
        }
        quiet
    }

    pub(super) fn later(&mut self, moment: u64, happening: Happening) {
        self.happenings.push(Some(happening));
        let id = self.happenings.len() - 1;
        self.queue.push(Reverse((moment, id as u64, id)));
    }

    fn run(&mut self) -> Result<(), Broken> {
        let quiet = self.quiet;
        let mut calm = None;
        for _ in 0..MOST_TURNS {
            let Some(Reverse((moment, _, id))) = self.queue.pop() else { return self.judge_end(true) };
            self.now = moment;
            let happening = self.happenings[id].take().expect("everything happens once");
            let is_news = matches!(happening, Happening::Answered { .. });
            self.happen(happening)?;
            if self.now <= quiet || !is_news {
                continue;
            }
            let news = self.book.rings;
            if !self.is_well() {
                calm = None;
            } else if calm.is_none_or(|(_, then)| then != news) {
                calm = Some((self.now, news));
            }
            let is_calm = calm.is_some_and(|(since, _)| self.now >= since + CALM);
            // It takes long until a torchrun agent is known to be dead.
            let patience = PATIENCE * if self.setup.torch == 0 { 1 } else { 2 };
            if is_calm || self.now > quiet + patience {
                return self.judge_end(is_calm);
            }
        }
        Err(Broken::new("R5", format!("{MOST_TURNS} turns, and no end")))
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Broken> {
        match happening {
            Happening::Chosen(what, seat) => self.choose(what, seat),
            Happening::Arrives { who, id, request, sent } => self.arrive(who, id, request, sent),
            Happening::Answered { who, id, answer, sent } => {
                if self.is_cut(who.0) {
                    return Ok(());
                }
                self.answered(who, id, answer, sent)
            }
            Happening::TimesOut { who, id } => {
                let now = self.now;
                let Some(agent) = self.agent(who).filter(|agent| agent.pending == Some(id)) else {
                    return Ok(());
                };
                agent.pending = None;
                agent.clear_since = now;
                self.ask(who.0, Request::Look { beat: true });
                Ok(())
            }
            Happening::PulseArrives { who, sent } => {
                self.pulse_arrives(who, sent);
                Ok(())
            }
            Happening::PulseAnswered { who, sent } => self.pulse_answered(who, sent),
            Happening::Rings { seat } => {
                if self.is_cut(seat) {
                    return Ok(());
                }
                self.look(seat, false);
                Ok(())
            }
            Happening::Ticks { who } => {
                if self.agent(who).is_some() {
                    self.later(self.now + TICK, Happening::Ticks { who });
                    self.pulse(who);
                    self.look(who.0, true);
                }
                Ok(())
            }
            Happening::Wakes { who } => self.wake(who),
            Happening::Gone(node) => {
                let host = self.agents[0].as_mut().filter(|host| host.lives());
                let Some(host) = host else { return Ok(()) };
                host.sightings.gone(&node);
                self.look(0, false);
                Ok(())
            }
        }
    }

    /// The agent of this life, as long as it lives.
    pub(super) fn agent(&mut self, (seat, life): Who) -> Option<&mut Agent> {
        let is_it = self.lives[seat] == life;
        self.agents[seat].as_mut().filter(|agent| is_it && agent.lives())
    }

    const fn who(&self, seat: usize) -> Who {
        (seat, self.lives[seat])
    }

    fn choose(&mut self, what: What, seat: usize) -> Result<(), Broken> {
        self.say(|_| format!("{what:?} of n{seat}"));
        let lives = self.agents[seat].as_ref().is_some_and(Agent::lives);
        let stop = u64::from(self.setup.stops[seat]);
        let now = self.now;
        match what {
            What::Boot if !lives => self.boot(seat),
            What::Loses(lasts) => {
                self.losing_until = now + u64::from(lasts);
                self.book.disturbed = self.book.disturbed.max(self.losing_until);
            }
            What::Resends(lasts) => {
                self.resending_until = now + u64::from(lasts);
                self.book.late = self.book.late.max(self.resending_until + MOST_LATE);
            }
            What::Cut(lasts) if lives && !self.setup.is_torch(seat) => {
                self.cut_until[seat] = now + u64::from(lasts);
                self.book.disturbed = self.book.disturbed.max(self.cut_until[seat]);
                if let Some(agent) = &mut self.agents[seat] {
                    agent.clear_since = self.cut_until[seat];
                }
            }
            What::Crash if lives => self.crash(seat, Why::Crashed),
            // It goes without a word.
            What::Leaves if lives && self.setup.is_torch(seat) => self.crash(seat, Why::Left),
            What::Fails | What::Leaves | What::Closes if lives => {
                let agent = self.agents[seat].as_mut().expect("it lives");
                agent.mind_the_lease(now, stop);
                let then = match what {
                    What::Leaves => Then::Leave,
                    What::Closes => Then::Close,
                    _ => Then::Join,
                };
                self.book.may_close |= then == Then::Close;
                agent.stop(now, stop, then);
                self.wait_for_workers(seat);
                return self.act(seat);
            }
            _ => {}
        }
        Ok(())
    }

    fn boot(&mut self, seat: usize) {
        self.lives[seat] += 1;
        let me = self.setup.me(seat, self.lives[seat]);
        let is_torch = self.setup.is_torch(seat);
        if !is_torch {
            let descriptor = Descriptor {
                protocol: 1,
                version: String::new(),
                host: String::new(),
                nodes: me.nodes,
                node_rank: me.node_rank,
                lease: me.times.lease,
                workers: LocalWorldSize::ONE,
                entrypoint: String::new(),
                nonce: 0,
            };
            self.descriptors.insert(me.node.clone(), descriptor);
        }
        self.cut_until[seat] = 0;
        let mut agent = Agent::new(me, self.now, self.now + JOIN);
        let lease = agent.me.times.lease;
        let lease = match self.machine {
            machine if machine.has(Fault::IsImpatient) => lease * 3 / 5,
            machine if machine.has(Fault::IgnoresTheDead) => lease * 100,
            _ => lease,
        };
        agent.sightings = Sightings::new(&RoundTimes { lease, ..agent.me.times });
        agent.outlives = self.machine.has(Fault::OutlivesItsLease);
        self.agents[seat] = Some(agent);
        let who = self.who(seat);
        self.later(self.now + TICK, Happening::Ticks { who });
        self.ask(seat, Request::Look { beat: true });
    }

    fn crash(&mut self, seat: usize, why: Why) {
        let agent = self.agents[seat].as_mut().expect("it lives");
        agent.phase = Phase::Ended(why);
        let node = agent.me.node.clone();
        self.book.crashed.insert(node.clone(), self.now);
        if self.setup.hosts && seat != 0 && !self.is_cut(seat) {
            // The end of a connection comes after all that was sent through it.
            self.later(self.all_arrived(), Happening::Gone(node));
        }
    }

    fn look(&mut self, seat: usize, beat: bool) {
        let Some(agent) = self.agents[seat].as_mut().filter(|agent| agent.lives()) else { return };
        if agent.pending.is_some() {
            agent.owes = Some(beat || agent.owes == Some(true));
            return;
        }
        let beat = beat || agent.owes == Some(true);
        self.ask(seat, Request::Look { beat });
    }

    fn ask(&mut self, seat: usize, request: Request) {
        let id = self.happenings.len() as u64;
        let Some(agent) = &mut self.agents[seat] else { return };
        agent.pending = Some(id);
        if matches!(request, Request::Look { .. }) {
            agent.owes = None;
        }
        let who = self.who(seat);
        if let Some(away) = self.gives_up() {
            return self.later(self.now + away, Happening::TimesOut { who, id });
        }
        self.later(self.now + TIMEOUT, Happening::TimesOut { who, id });
        if !self.is_lost(seat) {
            let sent = self.now;
            let arrives = sent + self.delay();
            self.later(arrives, Happening::Arrives { who, id, request, sent });
        }
    }

    fn arrive(&mut self, who: Who, id: u64, request: Request, sent: u64) -> Result<(), Broken> {
        let seat = who.0;
        if self.is_cut(seat) {
            return Ok(());
        }
        let is_beat = matches!(request, Request::Look { beat: true });
        match request {
            Request::Look { .. } if is_beat && !self.setup.is_torch(seat) => {
                let node = self.setup.me(seat, who.1).node;
                self.store.beat(&node);
            }
            Request::Write { state, expected, rings } if self.store.accepts(expected) => {
                self.judge_write(&state)?;
                let is_news = rings || (self.setup.is_torch(seat) && is_news(&self.store.state, &state));
                self.store.write(state);
                self.book.rings += u64::from(is_news);
                let others = (0..MOST).filter(|other| *other != seat && rings && !self.setup.is_torch(seat));
                for other in others {
                    if !self.setup.is_torch(other) && !self.is_lost(other) && !self.is_lost(seat) {
                        let rings_at = self.now + self.delay();
                        self.later(rings_at, Happening::Rings { seat: other });
                    }
                }
            }
            Request::Write { .. } => self.book.lost_writes += 1,
            Request::Look { .. } => {}
        }
        if !self.is_lost(seat) {
            let sent = is_beat.then_some(sent);
            let answer = self.store.answer(is_beat);
            let answered = self.now + self.delay();
            self.later(answered, Happening::Answered { who, id, answer, sent });
        }
        Ok(())
    }

    fn answered(&mut self, who: Who, id: u64, answer: Answer, sent: Option<u64>) -> Result<(), Broken> {
        let seat = who.0;
        let (now, stop) = (self.now, u64::from(self.setup.stops[seat]));
        let is_torch = self.setup.is_torch(seat);
        let wall = self.wall(seat);
        let Some(agent) = self.agent(who).filter(|agent| agent.pending == Some(id)) else {
            return Ok(());
        };
        agent.pending = None;
        if is_torch {
            agent.known = Rc::new(torch::cleaned(&answer.state, &agent.me, wall));
            agent.version = answer.version;
            return self.act(seat);
        }
        let is_cut_off = agent.loses_its_workers(now);
        agent.mind_the_lease(now, stop);
        if let Some(sent) = sent {
            agent.has_beaten(sent);
        }
        agent.known = answer.state;
        agent.version = answer.version;
        agent.learn(answer.ranks);
        agent.see(answer.beats.as_deref(), at(now));
        if is_cut_off {
            self.judge_cut_off(seat)?;
        }
        self.wait_for_workers(seat);
        self.judge_look(seat)?;
        self.act(seat)?;
        if self.agents[seat].as_ref().is_some_and(|agent| agent.owes.is_some()) {
            self.look(seat, false);
        }
        Ok(())
    }

    /// When the workers are gone, it goes on.
    pub(super) fn wait_for_workers(&mut self, seat: usize) {
        let now = self.now;
        let Some(agent) = &self.agents[seat] else { return };
        if let Phase::Stopping { until, .. } = agent.phase {
            self.wake_at(seat, until.max(now));
        }
    }

    fn wake_at(&mut self, seat: usize, moment: u64) {
        let now = self.now;
        let Some(agent) = &mut self.agents[seat] else { return };
        if agent.wakes < now || agent.wakes > moment || agent.wakes == now && moment > now {
            agent.wakes = moment;
            let who = self.who(seat);
            self.later(moment, Happening::Wakes { who });
        }
    }

    fn wake(&mut self, who: Who) -> Result<(), Broken> {
        let seat = who.0;
        let (now, stop) = (self.now, u64::from(self.setup.stops[seat]));
        let is_torch = self.setup.is_torch(seat);
        let Some(agent) = self.agent(who) else { return Ok(()) };
        if !is_torch {
            agent.mind_the_lease(now, stop);
        }
        if let Phase::Stopping { until, then, round } = agent.phase
            && until <= now
        {
            agent.before = Some(round);
            agent.torch.has_left = false;
            agent.phase = match then {
                Then::Join => Phase::Joining { deadline: now + JOIN },
                Then::Leave => Phase::Parting { closes: false },
                Then::Close => Phase::Parting { closes: true },
                Then::End => Phase::Ended(Why::Closed),
            };
        }
        self.wait_for_workers(seat);
        if is_torch {
            self.look(seat, false);
            return Ok(());
        }
        self.act(seat)
    }

    pub(super) fn wall(&self, seat: usize) -> Timestamp {
        let offset = i64::from(self.setup.offsets[seat]) * 1_000;
        Timestamp((1_700_000_000_000 + i64::try_from(self.now).expect("small") + offset) * 1_000)
    }

    /// Asks the round logic what to do, and does it, unless an answer is on its way.
    fn act(&mut self, seat: usize) -> Result<(), Broken> {
        if self.setup.is_torch(seat) {
            return self.act_as_torch(seat);
        }
        let (now, wall) = (self.now, self.wall(seat));
        let Some(agent) = self.agents[seat].as_mut().filter(|agent| agent.pending.is_none()) else {
            return Ok(());
        };
        if agent.known.closed && matches!(agent.phase, Phase::Running { .. }) {
            agent.stop(now, u64::from(self.setup.stops[seat]), Then::End);
            self.wait_for_workers(seat);
            return Ok(());
        }
        if let Phase::Joining { deadline } = &mut agent.phase
            && is_spare(&agent.known, &agent.me.node)
        {
            *deadline = now + JOIN;
        }
        let Some(goal) = agent.goal(at) else { return Ok(()) };
        let ranks = agent.ranks.as_deref();
        let view =
            View { state: &agent.known, sightings: &agent.sightings, agents: &self.descriptors, ranks };
        let step = self.machine.next(&view, &agent.me, goal, (at(now), wall));
        self.note(seat, &step);
        self.perform(seat, step)
    }

    fn perform(&mut self, seat: usize, step: Step) -> Result<(), Broken> {
        let now = self.now;
        let agent = self.agents[seat].as_mut().expect("it acts");
        let end = match step {
            Step::Write { state, rings } => {
                let request = Request::Write { state: Rc::new(state), expected: agent.version, rings };
                self.ask(seat, request);
                return Ok(());
            }
            Step::Wait { until } => {
                let until = until.saturating_duration_since(origin()).as_millis();
                self.wake_at(seat, u64::try_from(until).expect("small").max(now + 1));
                return Ok(());
            }
            // Others may have gone on without it: it has to hear again that it is in.
            Step::Joined if agent.doubted_until > now && !agent.is_cut_off(now) => {
                let until = agent.doubted_until;
                self.wake_at(seat, until);
                return Ok(());
            }
            Step::Joined if agent.is_cut_off(now) => {
                self.look(seat, true);
                return Ok(());
            }
            Step::Joined => return self.start(seat),
            Step::Changed(_) => {
                agent.stop(now, u64::from(self.setup.stops[seat]), Then::Join);
                self.wait_for_workers(seat);
                return self.act(seat);
            }
            Step::TimedOut => {
                self.judge_timeout()?;
                Why::TimedOut
            }
            Step::Closed => Why::Closed,
            Step::NotNeeded => Why::NotNeeded,
            Step::Taken { ref by } => {
                self.judge_refusal(by)?;
                Why::Taken
            }
            Step::Done if matches!(agent.phase, Phase::Parting { closes: true }) => Why::HasClosed,
            Step::Done => {
                self.judge_left(seat)?;
                Why::Left
            }
        };
        self.agents[seat].as_mut().expect("it acts").phase = Phase::Ended(end);
        Ok(())
    }

    fn start(&mut self, seat: usize) -> Result<(), Broken> {
        self.judge_start(seat)?;
        let agent = self.agents[seat].as_mut().expect("it acts");
        let members: Rc<[Node]> = agent.known.participants.nodes().cloned().collect();
        agent.phase = Phase::Running { round: agent.known.round, members };
        agent.before = Some(agent.known.round);
        self.act(seat)
    }

    fn act_as_torch(&mut self, seat: usize) -> Result<(), Broken> {
        let (now, wall) = (self.now, self.wall(seat));
        let stop = u64::from(self.setup.stops[seat]);
        let Some(agent) = self.agents[seat].as_mut().filter(|agent| agent.pending.is_none()) else {
            return Ok(());
        };
        if let Phase::Joining { deadline } = &mut agent.phase
            && is_spare(&agent.known, &agent.me.node)
        {
            *deadline = now + JOIN;
        }
        let task = match &agent.phase {
            Phase::Joining { deadline } => {
                let left = i64::try_from(*deadline).expect("small") - i64::try_from(now).expect("small");
                Task::Join { left }
            }
            Phase::Running { .. } if !agent.known.wait_list.is_empty() => {
                agent.stop(now, stop, Then::Join);
                self.wait_for_workers(seat);
                return Ok(());
            }
            Phase::Running { .. } => Task::Run,
            Phase::Parting { .. } => Task::Close,
            Phase::Stopping { .. } | Phase::Ended(_) => return Ok(()),
        };
        let known = Rc::clone(&agent.known);
        let step = torch::next(&known, &agent.me, task, &mut agent.torch, wall);
        self.say(|_| format!("n{seat} (torchrun) {}: {}", brief(&known), moved(&step)));
        let agent = self.agents[seat].as_mut().expect("it acts");
        match step {
            Move::Write(state) => {
                let request = Request::Write { state: Rc::new(state), expected: agent.version, rings: false };
                self.ask(seat, request);
            }
            // The ticks are its looks.
            Move::Sleep => {}
            Move::Finish if task == Task::Close => agent.phase = Phase::Ended(Why::HasClosed),
            Move::Finish => return self.start(seat),
            Move::TimedOut => agent.phase = Phase::Ended(Why::TimedOut),
            Move::Closed => agent.phase = Phase::Ended(Why::Closed),
        }
        Ok(())
    }

    fn note(&mut self, seat: usize, step: &Step) {
        let agent = self.agents[seat].as_ref().expect("it acts");
        let what = match step {
            Step::Write { state, rings } => {
                let lists = state.participants.len() * 64 + state.wait_list.len() * 8;
                1 + 2 * u64::from(*rings) + 4 * (lists + state.redundancy_list.len()) as u64
            }
            Step::Wait { .. } => 2,
            Step::Joined => 4,
            Step::Changed(_) => 6,
            _ => 8,
        };
        let round = agent.known.round * 2 + u64::from(agent.known.complete);
        for part in [self.now, seat as u64, what, round] {
            self.trace = (self.trace ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
        self.say(|world| {
            let agent = world.agents[seat].as_ref().expect("it acts");
            let phase = match &agent.phase {
                Phase::Running { round, .. } => format!("runs {round}"),
                phase => format!("{phase:?}"),
            };
            let step = match step {
                Step::Wait { .. } => "waits".to_owned(),
                Step::Write { state, .. } => format!("writes {}", brief(state)),
                step => format!("{step:?}"),
            };
            format!("{} {phase} in {}: {step}", agent.me.node, brief(&agent.known))
        });
    }

    fn say(&mut self, what: impl FnOnce(&Self) -> String) {
        if let Some(transcript) = self.transcript.take() {
            transcript.push(format!("{:>6} ms  {}", self.now, what(self)));
            self.transcript = Some(transcript);
        }
    }
}

/// Whether a torchrun agent has changed more than heartbeats.
fn is_news(old: &State, new: &State) -> bool {
    let last_heartbeats = &old.last_heartbeats;
    *old != State { last_heartbeats: last_heartbeats.clone(), ..new.clone() }
}

fn moved(step: &Move) -> String {
    match step {
        Move::Write(state) => format!("writes {}", brief(state)),
        step => format!("{step:?}"),
    }
}

/// A state in one line.
fn brief(state: &State) -> String {
    let names =
        |nodes: &mut dyn Iterator<Item = &Node>| nodes.map(Node::to_string).collect::<Vec<_>>().join(" ");
    let members: Vec<_> = state.participants.iter().map(|(node, rank)| format!("{node}={rank}")).collect();
    format!(
        "[round {}{}{}{}; {}; waiting {}; spare {}]",
        state.round,
        if state.complete { " complete" } else { "" },
        if state.closed { " closed" } else { "" },
        if state.deadline.is_some() { " last call" } else { "" },
        members.join(" "),
        names(&mut state.wait_list.iter()),
        names(&mut state.redundancy_list.iter()),
    )
}
