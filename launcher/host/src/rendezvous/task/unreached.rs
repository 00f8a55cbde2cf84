//! The store is not reached: the lines for the user, and the end of the attempts.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::blocking::call_on_thread;
use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::port_owner::{PortOwner, port_owner};
use crate::rendezvous::unreached::UnreachedReason;
use rankrun_core::spec::rendezvous::RoundTimes;

use super::connection::ConnectFailure;
use super::opening::interfaces;
use super::phase::Phase;
use super::rendezvous_task::{Participation, RendezvousTask};
use super::static_start::StaticProgress;

/// A store that is silent for this time, and for this number of leases, is lost: with the machine that hosts it, or
/// behind a firewall that stays. A node that comes back later could only join as a new one.
const AWAY: (Duration, u32) = (Duration::from_secs(30), 3);
/// The time between two lines about a lost store.
pub(super) const LOST_LINE: Duration = Duration::from_secs(5);

/// When the attempts to reach a store end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GiveUp {
    at: Instant,
    /// The limit that the error names, if it is a fixed one.
    limit: Option<Duration>,
}

impl RendezvousTask {
    /// Tells the user about a store that is not reached, or gives up. Returns the time of the next check.
    pub(super) async fn check_unreached(&mut self, now: Instant) -> Instant {
        let Some(GiveUp { at, limit }) = self.give_up_time() else { return now + LOST_LINE };
        if now < at {
            let next_line = self.report_unreached(now).await;
            return next_line.min(at);
        }
        match &self.phase {
            // The agent needs no store any more.
            Phase::Member(membership) if membership.is_over() => {
                self.participation = Participation::JobIsOver;
            }
            _ => {
                let waited = now.saturating_duration_since(self.connection.since);
                let error = self.unreached_error(shown_wait(waited, limit.unwrap_or(waited))).await;
                self.fail(error);
            }
        }
        now
    }

    fn give_up_time(&self) -> Option<GiveUp> {
        if self.is_over() {
            return None;
        }
        let (since, times) = (self.connection.since, &self.plan.times);
        let has_joined = self.connection.identity.is_some();
        if has_joined && self.connection.is_refused() {
            // No other node reaches the store either: there is nothing to come back to.
            let seen = self.lease.acknowledged().unwrap_or(since);
            return Some(GiveUp { at: seen + self.refused_after(), limit: None });
        }
        let limit = match self.phase.joining() {
            _ if !has_joined => times.connect,
            _ if matches!(self.static_progress, StaticProgress::Mixed(_)) => times.read,
            Some(joining) => longest_silence(times).min(joining.deadline.saturating_duration_since(since)),
            None => longest_silence(times),
        };
        Some(GiveUp { at: since + limit, limit: Some(limit) })
    }

    /// Tells the user now and then that the store is not reached, and why. Returns the time of the next line.
    async fn report_unreached(&mut self, now: Instant) -> Instant {
        let endpoint = self.plan.endpoint.clone();
        let since = self.connection.since;
        let waited = now.saturating_duration_since(since);
        let line = if self.connection.identity.is_some() {
            if now < self.connection.next_line {
                return self.connection.next_line;
            }
            self.connection.next_line = now + LOST_LINE;
            let waited = humantime::format_duration(Duration::from_secs(waited.as_secs()));
            let reason =
                self.unreached_reason().await.map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("the rendezvous store at `{endpoint}` has not answered for {waited}{reason}")
        } else {
            let next_line = since + self.connection.waiting.next_line(waited);
            if !self.connection.waiting.may_be_due(waited) {
                return next_line;
            }
            let reason = self.unreached_reason().await;
            let left = self.plan.times.connect.saturating_sub(waited);
            let has_master_port = self.plan.static_job.is_some();
            let line = self.connection.waiting.line(waited, reason, (left, has_master_port));
            let Some(line) = line else { return next_line };
            format!("waiting for the rendezvous store at `{endpoint}`: {line}")
        };
        self.events.send(RendezvousEvent::StoreUnreached(line));
        now + LOST_LINE
    }

    /// Why the store is not reached, as far as an attempt has shown it.
    async fn unreached_reason(&mut self) -> Option<UnreachedReason> {
        let endpoint = &self.plan.endpoint;
        let reason = match self.connection.failure.as_ref()? {
            ConnectFailure::Name(error) => UnreachedReason::of_name(&endpoint.host, error),
            ConnectFailure::Store(error) if endpoint.is_loopback() => UnreachedReason::of_client(error),
            ConnectFailure::Store(error) => {
                UnreachedReason::of_client(error).with_addresses(&endpoint.host, &self.connection.addresses)
            }
        };
        if reason.is_another_program() && self.connection.owner.is_none() {
            self.connection.owner = Some(self.owner_of_port().await);
        }
        Some(reason.with_owner(self.connection.owner.clone().flatten()))
    }

    /// The process of this machine that listens on the endpoint's port, if the endpoint is this machine.
    async fn owner_of_port(&self) -> Option<PortOwner> {
        let own = interfaces().ok()?;
        let is_own = |at: &SocketAddr| {
            let ip = at.ip().to_canonical();
            ip.is_loopback() || own.iter().any(|one| one.address == Some(ip))
        };
        let (is_here, port) = (self.connection.addresses.iter().any(is_own), self.plan.endpoint.port);
        // It reads the files of every process.
        if is_here { call_on_thread("port-owner", move || port_owner(port)).await.ok()? } else { None }
    }

    async fn unreached_error(&mut self, waited: Duration) -> RendezvousError {
        let endpoint = self.plan.endpoint.to_string();
        let has_joined = self.connection.identity.is_some();
        let (reason, has_master_port) = (self.unreached_reason().await, self.plan.static_job.is_some());
        match self.connection.failure.take() {
            Some(ConnectFailure::Name(source)) => {
                let (host, named_by) = (self.plan.endpoint.host.clone(), self.plan.named_by.clone());
                RendezvousError::NoSuchHost { host, named_by, waited, source }
            }
            Some(ConnectFailure::Store(source)) if has_joined => {
                RendezvousError::StoreLost { endpoint, source }
            }
            Some(ConnectFailure::Store(_)) | None => {
                let source = Box::new(reason.unwrap_or(UnreachedReason::FirstTryRuns));
                RendezvousError::Unreachable { endpoint, waited, has_master_port, source }
            }
        }
    }
}

/// The time that an error names: the limit if it was kept, which may be a fraction of a second.
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
