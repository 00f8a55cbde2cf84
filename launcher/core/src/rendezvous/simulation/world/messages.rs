//! Requests of the simulated agents to the store: their sending, arrival and answers.

use std::rc::Rc;

use super::{Incarnation, MAX_EVENTS, NetworkEvent, TIMEOUT, World, at};
use crate::rendezvous::simulation::invariants::Broken;
use crate::rendezvous::simulation::store::{Answer, Request};
use crate::rendezvous::simulation::torch;
use crate::rendezvous::state::RendezvousState;

impl World<'_> {
    pub(super) fn request_state(&mut self, slot: usize, heartbeat: bool) {
        let Some(agent) = self.agents[slot].as_mut().filter(|agent| agent.is_running()) else { return };
        if agent.pending.is_some() {
            agent.owes = Some(heartbeat || agent.owes == Some(true));
            return;
        }
        let heartbeat = heartbeat || agent.owes == Some(true);
        self.send_request(slot, Request::Read { reads_heartbeats: heartbeat });
    }

    pub(super) fn send_request(&mut self, slot: usize, request: Request) {
        let id = self.pending_events.len() as u64;
        let Some(agent) = &mut self.agents[slot] else { return };
        agent.pending = Some(id);
        if matches!(request, Request::Read { .. }) {
            agent.owes = None;
        }
        let incarnation = self.incarnation_of(slot);
        if let Some(away) = self.give_up_time() {
            return self.schedule_event(self.now + away, NetworkEvent::TimesOut { incarnation, id });
        }
        self.schedule_event(self.now + TIMEOUT, NetworkEvent::TimesOut { incarnation, id });
        if !self.is_lost(slot) {
            let sent = self.now;
            let arrives = sent + self.delay();
            self.schedule_event(arrives, NetworkEvent::Arrives { incarnation, id, request, sent });
        }
    }

    pub(super) fn on_request(
        &mut self,
        incarnation: Incarnation,
        id: u64,
        request: Request,
        sent: u64,
    ) -> Result<(), Broken> {
        let slot = incarnation.0;
        if self.is_cut(slot) {
            return Ok(());
        }
        let reads_heartbeats = matches!(request, Request::Read { reads_heartbeats: true });
        match request {
            Request::Read { .. } if reads_heartbeats && !self.setup.is_torch(slot) => {
                let node = self.setup.me(slot, incarnation.1).node;
                self.store.write_heartbeat(&node);
            }
            Request::Write { state, expected, notifies } if self.store.accepts(expected) => {
                self.check_write(&state)?;
                let is_change =
                    notifies || (self.setup.is_torch(slot) && is_change(&self.store.state, &state));
                self.store.write(state);
                self.oracle.notifies += u64::from(is_change);
                let others =
                    (0..MAX_EVENTS).filter(|other| *other != slot && notifies && !self.setup.is_torch(slot));
                for other in others {
                    if !self.setup.is_torch(other) && !self.is_lost(other) && !self.is_lost(slot) {
                        let rings_at = self.now + self.delay();
                        self.schedule_event(rings_at, NetworkEvent::Rings { slot: other });
                    }
                }
            }
            Request::Write { .. } => self.oracle.lost_writes += 1,
            Request::Read { .. } => {}
        }
        if !self.is_lost(slot) {
            let sent = reads_heartbeats.then_some(sent);
            let answer = self.store.answer(reads_heartbeats);
            let answered = self.now + self.delay();
            self.schedule_event(answered, NetworkEvent::Answered { incarnation, id, answer, sent });
        }
        Ok(())
    }

    pub(super) fn on_answer(
        &mut self,
        incarnation: Incarnation,
        id: u64,
        answer: Answer,
        sent: Option<u64>,
    ) -> Result<(), Broken> {
        let slot = incarnation.0;
        let (now, stop) = (self.now, u64::from(self.setup.stops[slot]));
        let is_torch = self.setup.is_torch(slot);
        let wall = self.wall(slot);
        let Some(agent) = self.agent(incarnation).filter(|agent| agent.pending == Some(id)) else {
            return Ok(());
        };
        agent.pending = None;
        if is_torch {
            agent.known = Rc::new(torch::cleaned(&answer.state, &agent.me, wall));
            agent.version = answer.version;
            return self.act(slot);
        }
        let is_cut_off = agent.loses_its_workers(now);
        agent.schedule_lease_stop(now, stop);
        if let Some(sent) = sent {
            agent.record_heartbeat_sent(sent);
        }
        agent.known = answer.state;
        agent.version = answer.version;
        agent.record_ranks(answer.ranks);
        agent.record_heartbeats(answer.heartbeats.as_deref(), at(now));
        if is_cut_off {
            self.check_cut_off(slot)?;
        }
        self.wait_for_workers(slot);
        self.check_read(slot)?;
        self.act(slot)?;
        if self.agents[slot].as_ref().is_some_and(|agent| agent.owes.is_some()) {
            self.request_state(slot, false);
        }
        Ok(())
    }
}

/// Whether a torchrun agent changed more than heartbeats.
fn is_change(old: &RendezvousState, new: &RendezvousState) -> bool {
    let last_heartbeats = &old.last_heartbeats;
    *old != RendezvousState { last_heartbeats: last_heartbeats.clone(), ..new.clone() }
}
