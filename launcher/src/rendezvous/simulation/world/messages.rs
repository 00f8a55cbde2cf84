//! Requests of the simulated agents to the store: their sending, arrival and answers.

use std::rc::Rc;

use super::{Incarnation, MAX_EVENTS, NetworkEvent, TIMEOUT, World, at};
use crate::rendezvous::simulation::invariants::Broken;
use crate::rendezvous::simulation::store::{Answer, Request};
use crate::rendezvous::simulation::torch;
use crate::rendezvous::state::RendezvousState;

impl World<'_> {
    pub(super) fn request_state(&mut self, seat: usize, heartbeat: bool) {
        let Some(agent) = self.agents[seat].as_mut().filter(|agent| agent.is_running()) else { return };
        if agent.pending.is_some() {
            agent.owes = Some(heartbeat || agent.owes == Some(true));
            return;
        }
        let heartbeat = heartbeat || agent.owes == Some(true);
        self.send_request(seat, Request::Look { beat: heartbeat });
    }

    pub(super) fn send_request(&mut self, seat: usize, request: Request) {
        let id = self.pending_events.len() as u64;
        let Some(agent) = &mut self.agents[seat] else { return };
        agent.pending = Some(id);
        if matches!(request, Request::Look { .. }) {
            agent.owes = None;
        }
        let who = self.incarnation_of(seat);
        if let Some(away) = self.give_up_time() {
            return self.schedule_event(self.now + away, NetworkEvent::TimesOut { who, id });
        }
        self.schedule_event(self.now + TIMEOUT, NetworkEvent::TimesOut { who, id });
        if !self.is_lost(seat) {
            let sent = self.now;
            let arrives = sent + self.delay();
            self.schedule_event(arrives, NetworkEvent::Arrives { who, id, request, sent });
        }
    }

    pub(super) fn on_request(
        &mut self,
        who: Incarnation,
        id: u64,
        request: Request,
        sent: u64,
    ) -> Result<(), Broken> {
        let seat = who.0;
        if self.is_cut(seat) {
            return Ok(());
        }
        let is_beat = matches!(request, Request::Look { beat: true });
        match request {
            Request::Look { .. } if is_beat && !self.setup.is_torch(seat) => {
                let node = self.setup.me(seat, who.1).node;
                self.store.write_heartbeat(&node);
            }
            Request::Write { state, expected, rings } if self.store.accepts(expected) => {
                self.check_write(&state)?;
                let is_news = rings || (self.setup.is_torch(seat) && is_news(&self.store.state, &state));
                self.store.write(state);
                self.oracle.rings += u64::from(is_news);
                let others =
                    (0..MAX_EVENTS).filter(|other| *other != seat && rings && !self.setup.is_torch(seat));
                for other in others {
                    if !self.setup.is_torch(other) && !self.is_lost(other) && !self.is_lost(seat) {
                        let rings_at = self.now + self.delay();
                        self.schedule_event(rings_at, NetworkEvent::Rings { seat: other });
                    }
                }
            }
            Request::Write { .. } => self.oracle.lost_writes += 1,
            Request::Look { .. } => {}
        }
        if !self.is_lost(seat) {
            let sent = is_beat.then_some(sent);
            let answer = self.store.answer(is_beat);
            let answered = self.now + self.delay();
            self.schedule_event(answered, NetworkEvent::Answered { who, id, answer, sent });
        }
        Ok(())
    }

    pub(super) fn on_answer(
        &mut self,
        who: Incarnation,
        id: u64,
        answer: Answer,
        sent: Option<u64>,
    ) -> Result<(), Broken> {
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
        agent.schedule_lease_stop(now, stop);
        if let Some(sent) = sent {
            agent.record_heartbeat_sent(sent);
        }
        agent.known = answer.state;
        agent.version = answer.version;
        agent.record_ranks(answer.ranks);
        agent.record_heartbeats(answer.beats.as_deref(), at(now));
        if is_cut_off {
            self.check_cut_off(seat)?;
        }
        self.wait_for_workers(seat);
        self.check_read(seat)?;
        self.act(seat)?;
        if self.agents[seat].as_ref().is_some_and(|agent| agent.owes.is_some()) {
            self.request_state(seat, false);
        }
        Ok(())
    }
}

/// Whether a torchrun agent changed more than heartbeats.
fn is_news(old: &RendezvousState, new: &RendezvousState) -> bool {
    let last_heartbeats = &old.last_heartbeats;
    *old != RendezvousState { last_heartbeats: last_heartbeats.clone(), ..new.clone() }
}
