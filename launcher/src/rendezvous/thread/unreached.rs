//! The store is not reached: what people are told of it, and when it is given up.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::port_owner::{PortOwner, port_owner};
use crate::rendezvous::unreached::Unreached;
use crate::spec::rendezvous::RoundTimes;

use super::connect::Failure;
use super::driver::{Driver, Phase, interfaces};
use super::first::Begun;

/// A store that is silent for so long, and for so many leases, is lost: with the machine that hosts it, or behind a wall
/// that stays. Whoever comes back later could only join as a new node.
const AWAY: (Duration, u32) = (Duration::from_secs(30), 3);
/// How often people are told that a store that this node has joined does not answer.
pub(super) const LOST_LINE: Duration = Duration::from_secs(5);

impl Driver {
    /// Why the store is not reached, as far as a try has shown it.
    fn unreached(&self) -> Option<Unreached> {
        let reason = match self.bond.failure.as_ref()? {
            Failure::Name(error) => Unreached::of_name(&self.plan.endpoint.host, error),
            Failure::Store(error) => Unreached::of_client(error),
        };
        Some(reason.with_owner(|| self.bond.owner.get_or_init(|| self.owner_of_port()).clone()))
    }

    /// The process of this machine that listens on the endpoint's port, where the endpoint means this machine.
    fn owner_of_port(&self) -> Option<PortOwner> {
        let own = interfaces().ok()?;
        let is_own = |at: &SocketAddr| {
            let ip = at.ip().to_canonical();
            ip.is_loopback() || own.iter().any(|one| one.address == Some(ip))
        };
        let is_here = self.bond.addresses().iter().any(is_own);
        if is_here { port_owner(self.plan.endpoint.port) } else { None }
    }

    /// Tells people now and then that the store is not reached, and why.
    pub(super) fn say_unreached(&mut self, now: Instant) {
        let endpoint = &self.plan.endpoint;
        let waited = now.saturating_duration_since(self.bond.since);
        let line = if self.bond.identity.is_some() {
            if now < self.bond.next_line {
                return;
            }
            self.bond.next_line = now + LOST_LINE;
            let waited = humantime::format_duration(Duration::from_secs(waited.as_secs()));
            let why = self.unreached().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("the rendezvous store at `{endpoint}` has not answered for {waited}{why}")
        } else {
            if !self.bond.waiting.may_be_due(waited) {
                return;
            }
            let reason = self.unreached();
            let left = self.plan.times.connect.saturating_sub(waited);
            let has_master_port = self.plan.fixed.is_some();
            let Some(line) = self.bond.waiting.line(waited, reason, (left, has_master_port)) else { return };
            format!("waiting for the rendezvous store at `{endpoint}`: {line}")
        };
        self.outlet.tell(RendezvousEvent::Note(line));
    }

    /// Why it is not tried any longer.
    pub(super) fn gives_up(&mut self, now: Instant) -> Option<RendezvousError> {
        if self.is_over() {
            return None;
        }
        let endpoint = self.plan.endpoint.to_string();
        let (since, times) = (self.bond.since, &self.plan.times);
        let waited = now.saturating_duration_since(since);
        let has_joined = self.bond.identity.is_some();
        let limit = match &self.phase {
            _ if has_joined && self.bond.is_refused() => {
                // Nobody else has the store either: there is nothing to come back to.
                let seen = self.fencepost.acknowledged().unwrap_or(since);
                return (now >= seen + self.refused_after()).then(|| self.lost(endpoint, waited));
            }
            _ if has_joined && matches!(self.begun, Begun::Mixed(_)) => times.read,
            Phase::Joining(joining) if has_joined => {
                longest_silence(times).min(joining.deadline.saturating_duration_since(since))
            }
            _ if has_joined => longest_silence(times),
            _ => times.connect,
        };
        (waited >= limit).then(|| self.lost(endpoint, waited))
    }

    fn lost(&mut self, endpoint: String, waited: Duration) -> RendezvousError {
        let waited = Duration::from_secs(waited.as_secs().max(1));
        let has_joined = self.bond.identity.is_some();
        let (unreached, has_master_port) = (self.unreached(), self.plan.fixed.is_some());
        match self.bond.failure.take() {
            Some(Failure::Name(source)) => {
                let (host, named_by) = (self.plan.endpoint.host.clone(), self.plan.named_by.clone());
                RendezvousError::NoSuchHost { host, named_by, waited, source }
            }
            Some(Failure::Store(source)) if has_joined => RendezvousError::StoreLost { endpoint, source },
            // Without a failure the first try has not ended.
            Some(Failure::Store(_)) | None => {
                let source = Box::new(unreached.unwrap_or(Unreached::NoAnswer));
                RendezvousError::Unreachable { endpoint, waited, has_master_port, source }
            }
        }
    }
}

/// How long a store that this node has joined may be away.
fn longest_silence(times: &RoundTimes) -> Duration {
    AWAY.0.max(times.lease * AWAY.1).min(times.join)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_away_is_not_waited_for_as_long_as_for_nodes() {
        let seconds = Duration::from_secs;
        let limit = |lease, join| {
            longest_silence(&RoundTimes {
                lease: seconds(lease),
                join: seconds(join),
                ..RoundTimes::default()
            })
        };
        assert_eq!([limit(5, 600), limit(60, 600), limit(5, 8)], [seconds(30), seconds(180), seconds(8)]);
    }
}
