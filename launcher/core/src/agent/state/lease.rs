//! The lease of this node: until when the other nodes take it for alive, and what follows from its end. Pure.
//!
//! The lease changes with every heartbeat, so the loop brings it when it asks. The state acts once on each lease.
//!
//! The checks are questions of the loop and not inputs: the answer is an input that waits in the queue while the job is
//! suspended, or goes before the exits in it. So a lease counts as ended once its answer is queued.

use std::time::Instant;

use super::State;
use crate::agent::message::Input;
use crate::rendezvous::MembershipChange;
use crate::rendezvous::lease_deadlines::LeaseDeadlines;

impl State {
    fn open_lease(&self, lease: Option<LeaseDeadlines>) -> Option<LeaseDeadlines> {
        lease.filter(|lease| self.has_workers() && self.peers.ended_lease != Some(lease.kill_by))
    }

    /// When [`Self::check_lease`] is due. Suspended workers cannot stop by themselves: they are killed at the end.
    #[must_use]
    pub fn lease_deadline(&self, lease: Option<LeaseDeadlines>) -> Option<Instant> {
        let lease = self.open_lease(lease)?;
        if self.is_suspended() {
            self.rules.may_have_peers.then_some(lease.kill_by)
        } else {
            Some(lease.stop_at)
        }
    }

    /// The workers are to be stopped, if the store has not extended the lease in time. The loop asks long before the
    /// end of the lease, unless this process stands still.
    #[must_use]
    pub fn check_lease(&mut self, now: Instant, lease: Option<LeaseDeadlines>) -> Option<Input> {
        self.lease_deadline(lease).filter(|at| *at <= now)?;
        let kill_by = self.open_lease(lease)?.kill_by;
        self.peers.ended_lease = Some(kill_by);
        let stood_still = kill_by <= now && !self.is_suspended();
        let cut_off = MembershipChange::CutOff { kill_by };
        Some(Input::Changed(if stood_still { MembershipChange::StoodStill } else { cut_off }))
    }

    /// The guard has killed the workers at the end of this lease, as this process could not. The state needs
    /// this input before their exits.
    #[must_use]
    pub fn workers_killed_by_guard(&mut self, kill_by: Instant) -> Option<Input> {
        let is_unknown = self.peers.ended_lease.replace(kill_by) != Some(kill_by);
        is_unknown.then_some(Input::Changed(MembershipChange::StoodStill))
    }
}
