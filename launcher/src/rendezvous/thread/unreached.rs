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
/// that stays. A node that comes back later could only join as a new one.
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
                // No other node has the store either: there is nothing to come back to.
                let seen = self.fencepost.acknowledged().unwrap_or(since);
                return (now >= seen + self.refused_after())
                    .then(|| self.lost(endpoint, shown_wait(waited, waited)));
            }
            _ if has_joined && matches!(self.begun, Begun::Mixed(_)) => times.read,
            Phase::Joining(joining) if has_joined => {
                longest_silence(times).min(joining.deadline.saturating_duration_since(since))
            }
            _ if has_joined => longest_silence(times),
            _ => times.connect,
        };
        (waited >= limit).then(|| self.lost(endpoint, shown_wait(waited, limit)))
    }

    fn lost(&mut self, endpoint: String, waited: Duration) -> RendezvousError {
        let has_joined = self.bond.identity.is_some();
        let (unreached, has_master_port) = (self.unreached(), self.plan.fixed.is_some());
        match self.bond.failure.take() {
            Some(Failure::Name(source)) => {
                let (host, named_by) = (self.plan.endpoint.host.clone(), self.plan.named_by.clone());
                RendezvousError::NoSuchHost { host, named_by, waited, source }
            }
            Some(Failure::Store(source)) if has_joined => RendezvousError::StoreLost { endpoint, source },
            Some(Failure::Store(_)) | None => {
                let source = Box::new(unreached.unwrap_or(Unreached::FirstTryRuns));
                RendezvousError::Unreachable { endpoint, waited, has_master_port, source }
            }
        }
    }
}

/// The time that an error names: the limit where it was kept, which may be a fraction of a second.
fn shown_wait(waited: Duration, limit: Duration) -> Duration {
    if waited < limit + Duration::from_secs(1) && limit < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(waited.as_secs())
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
    fn connect_error_names_the_configured_timeout() {
        let millis = Duration::from_millis;
        let shown =
            |waited, limit| humantime::format_duration(shown_wait(millis(waited), millis(limit))).to_string();
        assert_eq!([shown(600, 500), shown(1_600, 1_500)], ["500ms", "1s 500ms"]);
        assert_eq!([shown(3_150, 3_000), shown(2_700, 500), shown(60_100, 60_000)], ["3s", "2s", "1m"]);
    }

    #[test]
    fn lost_store_timeout_is_shorter_than_join_timeout() {
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
