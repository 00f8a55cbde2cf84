//! What the network between the agents and the store does to their messages.

use super::mutants::Fault;
use super::world::World;

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

    /// How long an agent with a fault does without its connection, where it takes this message for the last one.
    pub(super) fn gives_up(&mut self) -> Option<u64> {
        let is_faulty = self.machine.has(Fault::TakesALossForTheEnd);
        (is_faulty && self.resending_until > self.now && self.random.one_in(10)).then_some(RECONNECTED)
    }
}
