//! What the network between the agents and the store does to their messages.

use super::invariants::Broken;
use super::mutants::Fault;
use super::world::{Happening, TIMEOUT, Who, World};

/// How long it takes until a packet that was lost is sent again.
const RESENT: u32 = 300;
/// No packet is lost more often in a row.
const MOST_LOSSES: u32 = 4;
/// After this a faulty agent has a connection again.
const RECONNECTED: u64 = 3_000;

impl World<'_> {
    pub(super) const fn is_cut(&self, seat: usize) -> bool {
        self.cut_until[seat] > self.now
    }

    /// Whether a message from or to that seat never arrives.
    pub(super) fn is_lost(&mut self, seat: usize) -> bool {
        self.is_cut(seat)
            || (self.losing_until > self.now && !self.setup.is_torch(seat) && self.random.one_in(4))
    }

    /// How long a message is under way, with what is sent again of it.
    pub(super) fn delay(&mut self) -> u64 {
        let way = self.random.below(self.setup.delay + 1);
        let is_bad = self.resending_until > self.now;
        let losses = (0..MOST_LOSSES).take_while(|_| is_bad && self.random.one_in(10)).count();
        u64::from(way) + u64::from(RESENT) * losses as u64
    }

    /// When all that is under way now has arrived.
    pub(super) fn all_arrived(&self) -> u64 {
        let is_bad = self.resending_until > self.now;
        let resent = if is_bad { RESENT * MOST_LOSSES } else { 0 };
        self.now + u64::from(self.setup.delay + resent) + 1
    }

    /// A sign of life over a connection of its own, unless the one before is still to be answered.
    pub(super) fn pulse(&mut self, who: Who) {
        let now = self.now;
        if self.setup.is_torch(who.0) || self.machine.has(Fault::TakesALossForTheEnd) {
            return;
        }
        let Some(agent) = self.agent(who) else { return };
        if agent.pulse.is_some_and(|sent| sent + TIMEOUT > now) {
            return;
        }
        agent.pulse = Some(now);
        if !self.is_lost(who.0) {
            let arrives = now + self.delay();
            self.later(arrives, Happening::PulseArrives { who, sent: now });
        }
    }

    pub(super) fn pulse_arrives(&mut self, who: Who, sent: u64) {
        if self.is_cut(who.0) {
            return;
        }
        let node = self.setup.me(who.0, who.1).node;
        self.store.beat(&node);
        if !self.is_lost(who.0) {
            let answered = self.now + self.delay();
            self.later(answered, Happening::PulseAnswered { who, sent });
        }
    }

    pub(super) fn pulse_answered(&mut self, who: Who, sent: u64) -> Result<(), Broken> {
        let (seat, now) = (who.0, self.now);
        let stop = u64::from(self.setup.stops[seat]);
        if self.is_cut(seat) {
            return Ok(());
        }
        let Some(agent) = self.agent(who).filter(|agent| agent.pulse == Some(sent)) else { return Ok(()) };
        agent.pulse = None;
        let is_cut_off = agent.loses_its_workers(now);
        agent.mind_the_lease(now, stop);
        agent.has_beaten(sent);
        self.wait_for_workers(seat);
        if is_cut_off { self.judge_cut_off(seat) } else { Ok(()) }
    }

    /// How long an agent with a fault does without its connection, where it takes this message for the last one.
    pub(super) fn gives_up(&mut self) -> Option<u64> {
        let is_faulty = self.machine.has(Fault::TakesALossForTheEnd);
        (is_faulty && self.resending_until > self.now && self.random.one_in(10)).then_some(RECONNECTED)
    }
}
