//! The simulated network between agents and store: loses, delays and resends messages.

use super::invariants::Broken;
use super::mutants::Fault;
use super::world::{Incarnation, NetworkEvent, TIMEOUT, World};

/// Time until a lost packet is sent again, in milliseconds.
const RESENT: u32 = 300;
/// Maximum number of losses of one packet.
const MOST_LOSSES: u32 = 4;
/// Time until a faulty agent has a new connection, in milliseconds.
const RECONNECTED: u64 = 3_000;

impl World<'_> {
    pub(super) const fn is_cut(&self, slot: usize) -> bool {
        self.cut_until[slot] > self.now
    }

    /// Whether a message from or to this slot is lost.
    pub(super) fn is_lost(&mut self, slot: usize) -> bool {
        self.is_cut(slot)
            || (self.losing_until > self.now && !self.setup.is_torch(slot) && self.random.one_in(4))
    }

    /// Travel time of a message, resends included.
    pub(super) fn delay(&mut self) -> u64 {
        let way = self.random.below(self.setup.delay + 1);
        let is_bad = self.resending_until > self.now;
        let losses = (0..MOST_LOSSES).take_while(|_| is_bad && self.random.one_in(10)).count();
        u64::from(way) + u64::from(RESENT) * losses as u64
    }

    /// Time at which all messages under way have arrived.
    pub(super) fn all_arrived(&self) -> u64 {
        let is_bad = self.resending_until > self.now;
        let resent = if is_bad { RESENT * MOST_LOSSES } else { 0 };
        self.now + u64::from(self.setup.delay + resent) + 1
    }

    /// Sends a heartbeat on the separate connection, unless the previous one is unanswered.
    pub(super) fn send_heartbeat(&mut self, incarnation: Incarnation) {
        let now = self.now;
        if self.setup.is_torch(incarnation.0) || self.machine.has(Fault::TakesALossForTheEnd) {
            return;
        }
        let Some(agent) = self.agent(incarnation) else { return };
        if agent.heartbeat_sent_at.is_some_and(|sent| sent + TIMEOUT > now) {
            return;
        }
        agent.heartbeat_sent_at = Some(now);
        if !self.is_lost(incarnation.0) {
            let arrives = now + self.delay();
            self.schedule_event(arrives, NetworkEvent::HeartbeatArrives { incarnation, sent: now });
        }
    }

    pub(super) fn on_heartbeat_received(&mut self, incarnation: Incarnation, sent: u64) {
        if self.is_cut(incarnation.0) {
            return;
        }
        let node = self.setup.me(incarnation.0, incarnation.1).node;
        self.store.write_heartbeat(&node);
        if !self.is_lost(incarnation.0) {
            let answered = self.now + self.delay();
            self.schedule_event(answered, NetworkEvent::HeartbeatAnswered { incarnation, sent });
        }
    }

    pub(super) fn on_heartbeat_answered(
        &mut self,
        incarnation: Incarnation,
        sent: u64,
    ) -> Result<(), Broken> {
        let (slot, now) = (incarnation.0, self.now);
        let stop = u64::from(self.setup.stops[slot]);
        if self.is_cut(slot) {
            return Ok(());
        }
        let Some(agent) = self.agent(incarnation).filter(|agent| agent.heartbeat_sent_at == Some(sent))
        else {
            return Ok(());
        };
        agent.heartbeat_sent_at = None;
        let is_cut_off = agent.loses_its_workers(now);
        agent.schedule_lease_stop(now, stop);
        agent.record_heartbeat_sent(sent);
        self.wait_for_workers(slot);
        if is_cut_off { self.check_cut_off(slot) } else { Ok(()) }
    }

    /// How long an agent with the fault stays disconnected, if it treats this message as the end of its connection.
    pub(super) fn give_up_time(&mut self) -> Option<u64> {
        let is_faulty = self.machine.has(Fault::TakesALossForTheEnd);
        (is_faulty && self.resending_until > self.now && self.random.one_in(10)).then_some(RECONNECTED)
    }
}
