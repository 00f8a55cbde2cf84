//! On the way into a round: until it is complete, and its members have told each other their ranks.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::time::{Duration, Instant};

use rankrun_contract::rank::{LocalWorldSize, NodeRank};

use crate::rendezvous::c10d::{C10dBackend, SnapshotQuery, StoreFailure, StoreSnapshot};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::exchange::{Aborted, Exchange, ExchangeError, exchange};
use crate::rendezvous::host::StoreEndpoint;
use crate::rendezvous::round::{RoundGoal, RoundStep, has_time_to_rejoin, next};
use crate::rendezvous::state::{Node, RendezvousState};
use crate::rendezvous::{RendezvousEnd, RendezvousEvent};
use crate::spec::rendezvous::RoundTimes;
use crate::store::client::Client;

use super::book::{by_rank, ranks_of};
use super::driver::{Driver, Phase, random, wall};
use super::member::Past;
use super::watch;

/// When people are told for the first time what is waited for, and how often then.
const FIRST_LINE: Duration = Duration::from_secs(2);
const LINE: Duration = Duration::from_secs(5);

/// How long a name server may take for the store of a torchrun member.
const RESOLVE: Duration = Duration::from_secs(2);

/// On the way.
#[derive(Debug)]
pub(super) struct Joining {
    /// Workers of this node.
    pub(super) workers: LocalWorldSize,
    /// The round that we were in last.
    pub(super) before: Option<Past>,
    /// Then it is given up.
    pub(super) deadline: Instant,
    since: Instant,
    next_line: Instant,
    /// The state as it was a little before the deadline.
    in_time: Option<Box<RendezvousState>>,
}

impl Joining {
    pub(super) fn new(
        workers: LocalWorldSize,
        before: Option<Past>,
        now: Instant,
        times: &RoundTimes,
    ) -> Self {
        let deadline = now + times.join;
        Self { workers, before, deadline, since: now, next_line: now + FIRST_LINE, in_time: None }
    }

    /// How long there is still time, where people are to be told now.
    pub(super) fn line_is_due(&mut self, now: Instant) -> Option<Duration> {
        let is_due = now >= self.next_line;
        if is_due {
            self.next_line = now + LINE;
        }
        is_due.then(|| self.deadline.saturating_duration_since(now))
    }
}

impl Driver {
    /// Goes on with joining; until when there is nothing else to do.
    pub(super) fn join(&mut self) -> Result<Instant, StoreFailure> {
        let mut turn = None;
        loop {
            let now = Instant::now();
            let (Phase::Joining(joining), Some(me), Some(backend)) =
                (&mut self.phase, &self.me, &mut self.backend)
            else {
                return Ok(now);
            };
            if has_time_to_rejoin(&self.book.view(backend.state()), me) {
                joining.deadline = now + me.times.join;
            }
            // The others' deadlines may be a little before ours.
            if now + self.plan.tick() < joining.deadline {
                joining.in_time = Some(Box::new(backend.state().clone()));
            }
            self.memory.record_state(backend.state());
            let view = self.book.view(backend.state());
            let before = joining.before.as_ref().map(|past| past.number);
            let goal = RoundGoal::Join { deadline: joining.deadline, before };
            let step = next(&view, me, goal, now, wall());
            if !matches!(step, RoundStep::Write { .. }) {
                self.pass_turn(turn.take())?;
            }
            match step {
                RoundStep::Write { state, rings } => {
                    let won = self.try_to_write(&state, rings)?;
                    self.pass_turn(turn.take())?;
                    turn = if won { None } else { self.take_turn()? };
                }
                RoundStep::Wait { until } => return Ok(until.min(self.say_who_is_missing(now))),
                RoundStep::Joined => {
                    if let Some(until) = self.fencepost.doubted_until(now) {
                        return Ok(until);
                    }
                    return self.take_seats();
                }
                RoundStep::TimedOut => self.too_few(now),
                RoundStep::Closed => self.closed(false)?,
                RoundStep::NotNeeded => self.closed(true)?,
                RoundStep::Taken { by } => self.taken(&by),
                // Answers to other goals.
                RoundStep::Changed(_) | RoundStep::Done => return Ok(now + self.plan.tick()),
            }
        }
    }

    /// Writes the state, or finds another; afterwards the one that is known is the one that is there.
    pub(super) fn write(&mut self, state: &RendezvousState, rings: bool) -> Result<(), StoreFailure> {
        self.try_to_write(state, rings).map(drop)
    }

    fn try_to_write(&mut self, state: &RendezvousState, rings: bool) -> Result<bool, StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(false) };
        let completes = state.complete && !backend.state().complete;
        // At once: a round trip between the look and the write is a chance for another node to write first.
        let won = backend.write(state, rings && !completes)?;
        self.heard.now(Instant::now());
        if won && completes {
            // Whoever completes the next round may not have been in this one.
            let ranks = ranks_of(state);
            backend.publish_ranks(&crate::rendezvous::ranks_text::to_json(&ranks))?;
            backend.notify_change()?;
            self.book.ranked(ranks);
        }
        self.beat_if_due()?;
        self.meet(std::collections::BTreeMap::new())?;
        if !won {
            self.back_off();
        }
        Ok(won)
    }

    /// A random pause, so that those who write at the same time do not do so again.
    fn back_off(&self) {
        let longest = self.plan.times.cas_backoff.as_secs_f64();
        if longest > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "a random part of one")]
            let part = (random() >> 11) as f64 / (1_u64 << 53) as f64;
            std::thread::sleep(Duration::from_secs_f64(longest * part).min(self.plan.tick()));
        }
    }

    /// Tells people now and then; when the next time is.
    fn say_who_is_missing(&mut self, now: Instant) -> Instant {
        let (Phase::Joining(joining), Some(me), Some(backend)) = (&mut self.phase, &self.me, &self.backend)
        else {
            return now;
        };
        if let Some(left) = joining.line_is_due(now) {
            let waiting =
                watch::waiting((backend.state(), now), me, &self.book, joining.before.as_ref(), left);
            self.outlet.tell(RendezvousEvent::Waiting(waiting));
        }
        joining.next_line
    }

    fn too_few(&mut self, now: Instant) {
        let (Phase::Joining(joining), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
        else {
            return;
        };
        // As it was in time: whoever else gives up has taken itself out of it.
        let too_few = |state: &&RendezvousState| state.participants.len() < me.nodes.min.get() as usize;
        let state = joining.in_time.as_deref().filter(too_few).unwrap_or(backend.state());
        let waiting = watch::waiting((state, now), me, &self.book, joining.before.as_ref(), Duration::ZERO);
        let waited = now.saturating_duration_since(joining.since).as_secs().max(1);
        let here = u32::try_from(waiting.here.len()).unwrap_or(u32::MAX);
        self.over(RendezvousEnd::Failed(RendezvousError::TooFew {
            here,
            needed: waiting.min.get(),
            waited: Duration::from_secs(waited),
            missing: waiting.missing,
        }));
    }

    fn taken(&mut self, by: &Node) {
        let theirs = Box::new(self.book.name(by).without_rank());
        let ours = Box::new(self.own_name().without_rank());
        let node_rank = self.plan.node_rank.unwrap_or_default();
        self.over(RendezvousEnd::Failed(RendezvousError::SameNodeRank { node_rank, ours, theirs }));
    }

    /// There are no more rounds: why, as far as it was told.
    fn closed(&mut self, was_spare: bool) -> Result<(), StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let last = match &self.phase {
            Phase::Joining(joining) => joining.before.as_ref(),
            Phase::Idle | Phase::Member(_) => None,
        };
        let last_number = last.map_or(backend.state().round, |past| past.number);
        let round = if was_spare { backend.state().round } else { last_number };
        let nodes = last.filter(|_| !was_spare).map_or([].as_slice(), |past| past.nodes.as_slice());
        let look: StoreSnapshot = backend.read_snapshot(&SnapshotQuery {
            round: Some(round),
            done: nodes,
            ..SnapshotQuery::default()
        })?;
        let succeeded = look.end.as_ref().map_or(look.successes > 0, |end| end.succeeded);
        // A member that was taken for lost has come back and said that its workers have succeeded too.
        let was_done = !nodes.is_empty() && look.done.len() == nodes.len();
        let (told, rule) = look.end.map_or((None, None), |end| (end.failure, end.rule));
        let failure = told.or(look.failure);
        let over = match rule {
            _ if succeeded && (was_spare || was_done) => RendezvousEnd::NotNeeded,
            Some(rule) => RendezvousEnd::ByRule { rule, failure },
            None => RendezvousEnd::Closed { failure },
        };
        self.over(over);
        Ok(())
    }

    /// The round is complete: tells the other members what they want to know, and learns what we do.
    fn take_seats(&mut self) -> Result<Instant, StoreFailure> {
        let (Phase::Joining(joining), Some(me), Some(backend)) = (&self.phase, &self.me, &mut self.backend)
        else {
            return Ok(Instant::now());
        };
        let (number, nodes) = (backend.state().round, by_rank(backend.state()));
        let (workers, node) = (joining.workers, me.node.clone());
        let ranks = ranks_of(backend.state());
        let Some(mut bell) = backend.take_notifier()? else { return Ok(Instant::now()) };
        self.book.ranked(ranks);
        let members: Vec<_> =
            nodes.iter().map(|node| (node.clone(), self.book.agents.get(node).cloned())).collect();
        let node_rank = nodes.iter().position(|member| *member == node).unwrap_or_default();
        let resolve = |host: &str, port: u16| StoreEndpoint { host: host.to_owned(), port }.resolve(RESOLVE);
        let (keys, role) = (self.plan.keys.clone(), self.plan.role.clone());
        let plan = Exchange {
            keys: &keys,
            round: number,
            role: &role,
            workers,
            node_rank: NodeRank(u32::try_from(node_rank).unwrap_or(u32::MAX)),
            members: &members,
            read_timeout: self.plan.times.read,
            nonce: self.plan.nonce,
            resolve: &resolve,
        };
        let mut memory = std::mem::take(&mut self.memory);
        let Some(mut training_store) = self.training_store.take() else { return Ok(Instant::now()) };
        training_store.set_agent_ids(self.book.agents.values().map(|agent| agent.nonce));
        let mut trouble = None;
        let mut between = |_: &mut Client| {
            self.between(number, &nodes).map_err(|why| {
                trouble = why;
                Aborted
            })
        };
        let result = exchange(&mut bell, &plan, &mut training_store, &mut memory, &mut between);
        (self.memory, self.training_store) = (memory, Some(training_store));
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        match result {
            Ok(round) => {
                self.give_back(bell);
                self.starts(round, nodes);
            }
            Err(ExchangeError::Aborted) => {
                self.give_back(bell);
                self.missed(number, nodes);
            }
            Err(ExchangeError::Store(error)) => return Err(error.into()),
            Err(ExchangeError::Failed(error)) => self.over(RendezvousEnd::Failed(error)),
        }
        Ok(Instant::now())
    }

    fn give_back(&mut self, bell: Client) {
        if let Some(backend) = &mut self.backend {
            backend.give_back(bell);
        }
    }

    /// The round was over before its workers could start: on to the next.
    fn missed(&mut self, number: u64, nodes: Vec<Node>) {
        if let Phase::Joining(joining) = &mut self.phase {
            joining.before = Some(Past { number, nodes });
        }
    }

    /// What goes on while the ranks are exchanged. Breaks where the round cannot come about, with the trouble if it is one.
    fn between(&mut self, number: u64, nodes: &[Node]) -> Result<(), Option<StoreFailure>> {
        if self.obey().is_break() || self.ending.is_some() {
            return Err(None);
        }
        self.beat_if_due().map_err(Some)?;
        let now = Instant::now();
        self.take_gone(now).map_err(Some)?;
        self.look().map_err(Some)?;
        self.say_who_is_missing(now);
        let Some((me, backend)) = self.me.as_ref().zip(self.backend.as_ref()) else { return Err(None) };
        let view = self.book.view(backend.state());
        if let RoundStep::Write { state, rings } = next(&view, me, RoundGoal::Hold, now, wall()) {
            self.write(&state, rings).map_err(Some)?;
        }
        let stands = |state: &RendezvousState| {
            state.round == number
                && state.complete
                && !state.closed
                && nodes.iter().all(|node| state.participants.contains(node))
        };
        let state = self.backend.as_ref().map(C10dBackend::state);
        if state.is_some_and(stands) { Ok(()) } else { Err(None) }
    }
}
