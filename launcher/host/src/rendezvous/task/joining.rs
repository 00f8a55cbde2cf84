//! A node that is not in a round yet: it takes the steps of `round::next` until the round is complete, closed, or too
//! late.
//!
//! It reports what the node waits for. `assigning` follows a complete round; a lost connection is `connection`'s.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalWorldSize;

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::c10d::{SnapshotQuery, StoreFailure};
use crate::rendezvous::error::RendezvousError;
use rankrun_core::rendezvous::RendezvousEnd;
use rankrun_core::rendezvous::round::{RoundGoal, RoundStep, count_other_nodes, has_time_to_rejoin, next};
use rankrun_core::rendezvous::state::{Node, RendezvousState};
use rankrun_core::spec::rendezvous::RoundTimes;

use super::member::PastRound;
use super::peer_directory::ranks_of;
use super::phase::Phase;
use super::rendezvous_task::{RendezvousTask, random, wall};
use super::watch;

/// Time of the first line about the wait, and the time between two lines.
const FIRST_WAIT_LINE: Duration = Duration::from_secs(2);
const WAIT_LINE_INTERVAL: Duration = Duration::from_secs(5);

/// A node on the way into a round.
#[derive(Debug)]
pub(super) struct Joining {
    /// Workers of this node.
    pub(super) workers: LocalWorldSize,
    /// The node does not join if the others are enough.
    leaves_if_possible: bool,
    /// The last round of this node.
    pub(super) before: Option<PastRound>,
    /// Then it gives up.
    pub(super) deadline: Instant,
    since: Instant,
    next_line: Instant,
    /// The state a little before the deadline.
    state_in_time: Option<Box<RendezvousState>>,
}

impl Joining {
    pub(super) fn new(
        (workers, leaves_if_possible): (LocalWorldSize, bool),
        before: Option<PastRound>,
        now: Instant,
        times: &RoundTimes,
    ) -> Self {
        let deadline = now + times.join;
        Self {
            workers,
            leaves_if_possible,
            before,
            deadline,
            since: now,
            next_line: now + FIRST_WAIT_LINE,
            state_in_time: None,
        }
    }

    /// The time that is left, if a line for the user is due.
    pub(super) fn line_is_due(&mut self, now: Instant) -> Option<Duration> {
        let is_due = now >= self.next_line;
        if is_due {
            self.next_line = now + WAIT_LINE_INTERVAL;
        }
        is_due.then(|| self.deadline.saturating_duration_since(now))
    }

    /// Time of the next line for the user.
    pub(super) const fn next_line(&self) -> Instant {
        self.next_line
    }
}

impl RendezvousTask {
    /// Takes steps into the next round; returns the time of the next one.
    pub(super) async fn join(&mut self) -> Result<Instant, StoreFailure> {
        let mut ticket = None;
        loop {
            let now = Instant::now();
            if let Some(others) = self.enough_other_nodes() {
                self.end_with(RendezvousEnd::Excluded { others });
                return Ok(now);
            }
            let Some(step) = self.next_joining_step(now) else { return Ok(now) };
            if !matches!(step, RoundStep::Write { .. }) {
                self.pass_write_ticket(ticket.take()).await?;
            }
            match step {
                RoundStep::Write { state, notifies } => {
                    let won = self.try_to_write(&state, notifies).await?;
                    self.pass_write_ticket(ticket.take()).await?;
                    ticket = if won { None } else { self.take_write_ticket().await? };
                }
                RoundStep::Wait { until } => return Ok(until.min(self.report_waiting(now))),
                RoundStep::Joined => {
                    if let Some(until) = self.lease.doubted_until(now) {
                        return Ok(until);
                    }
                    self.begin_assigning_ranks();
                    return Ok(now + self.plan.tick());
                }
                RoundStep::TimedOut => self.end_with_too_few(now),
                RoundStep::Closed => self.end_with_closed(false).await?,
                RoundStep::NotNeeded => self.end_with_closed(true).await?,
                RoundStep::Taken { by } => self.end_with_taken_rank(&by),
                // Answers to other goals.
                RoundStep::Changed(_) | RoundStep::Done => return Ok(now + self.plan.tick()),
            }
        }
    }

    /// The number of the other nodes, if this one is to leave and they can go on without it. No node goes on without the
    /// host of the store.
    fn enough_other_nodes(&self) -> Option<usize> {
        let (Phase::Joining(joining), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
        else {
            return None;
        };
        let may_leave = joining.leaves_if_possible
            && self.store.is_none()
            && self.plan.static_job.is_none()
            && !backend.state().closed;
        let others = may_leave.then(|| count_other_nodes(&self.peers.view(backend.state()), me))??;
        (others >= me.nodes.min.get() as usize).then_some(others)
    }

    /// The next step into a round; `None` if this node does not join, or has no connection.
    fn next_joining_step(&mut self, now: Instant) -> Option<RoundStep> {
        let (Phase::Joining(joining), Some(me), Some(backend)) = (&mut self.phase, &self.me, &self.backend)
        else {
            return None;
        };
        let view = self.peers.view(backend.state());
        if has_time_to_rejoin(&view, me) {
            joining.deadline = now + me.times.join;
        }
        // The others' deadlines may be a little before ours.
        if now + self.plan.tick() < joining.deadline {
            joining.state_in_time = Some(Box::new(backend.state().clone()));
        }
        self.address_cache.lock().record_state(backend.state());
        let before = joining.before.as_ref().map(|past| past.number);
        let goal = RoundGoal::Join { deadline: joining.deadline, before };
        Some(next(&view, me, goal, now, wall()))
    }

    /// Writes the state, or reads the one of another writer.
    pub(super) async fn write(
        &mut self,
        state: &RendezvousState,
        notifies: bool,
    ) -> Result<(), StoreFailure> {
        self.try_to_write(state, notifies).await.map(drop)
    }

    async fn try_to_write(&mut self, state: &RendezvousState, notifies: bool) -> Result<bool, StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(false) };
        let completes = state.complete && !backend.state().complete;
        // At once: during a round trip between the read and the write another node may write first.
        let won = backend.write(state, notifies && !completes).await?;
        self.contact.set_last_answer(Instant::now());
        if won && completes {
            // The agent that completes the next round may not have been in this one.
            let ranks = ranks_of(state);
            backend.publish_ranks(&rankrun_core::rendezvous::ranks_text::to_json(&ranks)).await?;
            backend.notify_change().await?;
            self.peers.record_ranks(ranks);
        }
        self.send_due_heartbeat().await?;
        self.record_state(BTreeMap::new()).await?;
        if !won {
            self.back_off().await;
        }
        Ok(won)
    }

    /// A random pause, so that agents that wrote at the same time do not do so again.
    async fn back_off(&self) {
        let longest = self.plan.times.cas_backoff.as_secs_f64();
        if longest > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "a random part of one")]
            let part = (random() >> 11) as f64 / (1_u64 << 53) as f64;
            tokio::time::sleep(Duration::from_secs_f64(longest * part).min(self.plan.tick())).await;
        }
    }

    /// Tells the user now and then which nodes are missing; returns the time of the next line.
    pub(super) fn report_waiting(&mut self, now: Instant) -> Instant {
        let (Some(joining), Some(me), Some(backend)) = (self.phase.joining_mut(), &self.me, &self.backend)
        else {
            return now;
        };
        if let Some(left) = joining.line_is_due(now) {
            let status =
                watch::wait_status((backend.state(), now), me, &self.peers, joining.before.as_ref(), left);
            self.events.send(RendezvousEvent::Waiting(status));
        }
        joining.next_line()
    }

    fn end_with_too_few(&mut self, now: Instant) {
        let (Phase::Joining(joining), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
        else {
            return;
        };
        // Other nodes that have given up are not in the present state any more.
        let has_too_few = |state: &&RendezvousState| state.participants.len() < me.nodes.min.get() as usize;
        let state = joining.state_in_time.as_deref().filter(has_too_few).unwrap_or(backend.state());
        let before = joining.before.as_ref();
        let status = watch::wait_status((state, now), me, &self.peers, before, Duration::ZERO);
        let waited = now.saturating_duration_since(joining.since).as_secs().max(1);
        let here = u32::try_from(status.here.len()).unwrap_or(u32::MAX);
        self.fail(RendezvousError::TooFew {
            here,
            needed: status.min.get(),
            waited: Duration::from_secs(waited),
            missing: status.missing,
        });
    }

    fn end_with_taken_rank(&mut self, by: &Node) {
        let theirs = Box::new(self.peers.name(by).without_rank());
        let ours = Box::new(self.own_name().without_rank());
        let node_rank = self.plan.node_rank.unwrap_or_default();
        self.fail(RendezvousError::SameNodeRank { node_rank, ours, theirs });
    }

    /// There are no more rounds: finds the reason in the store.
    async fn end_with_closed(&mut self, was_spare: bool) -> Result<(), StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let last = self.phase.joining().and_then(|joining| joining.before.as_ref());
        let last_number = last.map_or(backend.state().round, |past| past.number);
        let round = if was_spare { backend.state().round } else { last_number };
        let nodes = last.filter(|_| !was_spare).map_or([].as_slice(), |past| past.nodes.as_slice());
        let query = SnapshotQuery { round: Some(round), done: nodes, ..SnapshotQuery::default() };
        let snapshot = backend.read_snapshot(&query).await?;
        let succeeded = snapshot.end.as_ref().map_or(snapshot.successes > 0, |end| end.succeeded);
        // A member that was declared lost has come back, and its workers have succeeded too.
        let was_done = !nodes.is_empty() && snapshot.done.len() == nodes.len();
        let (noted, rule) = snapshot.end.map_or((None, None), |end| (end.failure, end.rule));
        let failure = noted.or(snapshot.failure);
        let end = match rule {
            _ if succeeded && (was_spare || was_done) => RendezvousEnd::NotNeeded,
            Some(rule) => RendezvousEnd::ByRule { rule, failure },
            None => RendezvousEnd::Closed { failure },
        };
        self.end_with(end);
        Ok(())
    }
}
