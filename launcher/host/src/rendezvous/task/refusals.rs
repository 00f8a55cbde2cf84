//! A store that closes the connection on a request of this agent: how long to wait before the next try, and when to
//! give up.
//!
//! [`Refusals`] is pure. A refusal and a lost connection differ in what follows: the store accepts the next
//! connection and closes it too.

use std::time::{Duration, Instant};

use crate::rendezvous::error::RendezvousError;
use crate::store::client::{Client, ClientError, UnansweredRequest};
use rankrun_core::rendezvous::text::escape_bytes_for_terminal;

use super::phase::Phase;
use super::rendezvous_task::{Participation, RendezvousTask};

/// Fewer closed connections in a row say that connections are lost, not that a request is refused.
const CLOSED_CONNECTIONS_FOR_REFUSAL: u32 = 5;
/// The pause before the second try, and the longest one. The first try follows at once.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Longest value that is shown, in bytes.
const MAX_SHOWN: usize = 64;
/// Time limit for a connection that reads the value of the refused key.
const VALUE_LIMIT: Duration = Duration::from_millis(500);

/// Connections that the store has closed on a request, since it has served one for long enough.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: u32,
    since: Option<Instant>,
    /// The request that was refused last.
    request: Option<UnansweredRequest>,
}

impl Refusals {
    /// The store has closed a connection while this request had no answer.
    pub(super) fn add(&mut self, now: Instant, request: Option<UnansweredRequest>) {
        self.count = self.count.saturating_add(1);
        self.since.get_or_insert(now);
        self.request = request.or(self.request.take());
    }

    /// The store serves our requests.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) const fn exist(&self) -> bool {
        self.count > 0
    }

    /// How long to wait before the next connection; `random` spreads agents that were refused together.
    pub(super) fn pause(&self, random: u64) -> Duration {
        let Some(doublings) = self.count.checked_sub(2) else { return Duration::ZERO };
        let longest = PAUSES.1.min(PAUSES.0.saturating_mul(1 << doublings.min(16)));
        let half = longest / 2;
        // From half of it to all of it.
        half + half * u32::from(random.to_le_bytes()[0]) / u32::from(u8::MAX)
    }

    /// Whether the request is given up: after `limit` without an acknowledged heartbeat, the last of which was sent at
    /// `acknowledged`, or without a served request where there was none.
    pub(super) fn exceed(&self, now: Instant, acknowledged: Option<Instant>, limit: Duration) -> bool {
        let Some(since) = self.since else { return false };
        // Heartbeats may go on while another request is refused: then the first refusal counts.
        let silent_since = acknowledged.map_or(since, |sent| sent.min(since));
        self.count >= CLOSED_CONNECTIONS_FOR_REFUSAL && now >= silent_since + limit
    }
}

impl RendezvousTask {
    /// Records a connection that was lost, and sets the time of the next attempt.
    pub(super) fn record_lost_connection(&mut self, error: &ClientError, now: Instant) {
        if !error.is_closed_by_store() {
            return;
        }
        let request = self.backend.as_ref().and_then(|backend| backend.unanswered().cloned());
        let refusals = &mut self.connection.refusals;
        refusals.add(now, request);
        self.connection.retry_at = now + refusals.pause(super::rendezvous_task::random());
    }

    /// Ends the rendezvous if the store has refused a request for too long.
    pub(super) async fn give_up_refused(&mut self, now: Instant) {
        let acknowledged = self.lease.acknowledged();
        if self.is_over() || !self.connection.refusals.exceed(now, acknowledged, self.refused_after()) {
            return;
        }
        match &self.phase {
            Phase::Member(membership) if membership.is_over() => {
                self.participation = Participation::JobIsOver;
            }
            _ => {
                let error = self.refusal().await;
                self.fail(error);
            }
        }
    }

    async fn refusal(&mut self) -> RendezvousError {
        let endpoint = self.plan.endpoint.to_string();
        let recorded = self.connection.refusals.request.take();
        let recorded = recorded.unwrap_or_else(|| UnansweredRequest { request: "PING", key: String::new() });
        let heartbeat = self.me.as_ref().map(|me| self.plan.keys.heartbeat(&me.node));
        let heartbeat = match heartbeat {
            Some(key) => Some((self.value_of(&key).await, UnansweredRequest { request: "ADD", key })),
            None => None,
        };
        // The recorded request may have been sent before the refused heartbeat.
        let spoiled = heartbeat.filter(|(value, _)| is_no_counter(value));
        let is_spoiled = spoiled.is_some();
        let (value, UnansweredRequest { request, key }) = match spoiled {
            Some(spoiled) => spoiled,
            None => (self.value_of(&recorded.key).await, recorded),
        };
        let is_spoiled = is_spoiled || (request == "ADD" && is_no_counter(&value));
        let (key, value) = (
            escape_bytes_for_terminal(key.as_bytes(), MAX_SHOWN * 4),
            escape_bytes_for_terminal(&value, MAX_SHOWN),
        );
        RendezvousError::Refused { endpoint, request, key, value, is_spoiled }
    }

    /// The value of a key; empty if the store does not answer.
    async fn value_of(&self, key: &str) -> Vec<u8> {
        let (addresses, settings) = (&self.connection.addresses, self.client_settings());
        let connected = Client::connect_within(addresses, settings, VALUE_LIMIT).await;
        let Ok(mut client) = connected else { return Vec::new() };
        client.get(key).await.unwrap_or_default()
    }
}

/// Whether a value makes the store refuse an `ADD` to its key.
fn is_no_counter(value: &[u8]) -> bool {
    let is_number = std::str::from_utf8(value).is_ok_and(|text| text.parse::<i64>().is_ok());
    !value.is_empty() && !is_number
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test chooses its moments relative to one")]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(2500);

    fn refused(times: u32, now: Instant) -> Refusals {
        let mut refusals = Refusals::default();
        (0..times).for_each(|_| refusals.add(now, None));
        refusals
    }

    #[test]
    fn first_reconnect_is_immediate_and_later_pauses_grow_to_a_limit() {
        let now = Instant::now();
        for random in [0, 0x7f, 0xff, u64::MAX] {
            let pauses: Vec<_> = (0..40).map(|times| refused(times, now).pause(random)).collect();
            assert_eq!(pauses[..2], [Duration::ZERO; 2]);
            assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
            assert!(pauses[2] >= PAUSES.0 / 2 && pauses[39] <= PAUSES.1 && pauses[39] >= PAUSES.1 / 2);
        }
    }

    /// The reconnects that a refused agent makes until it gives up.
    #[test]
    fn refused_request_is_retried_until_the_limit() {
        for random in [0, 0xff] {
            let start = Instant::now();
            let (mut refusals, mut now, mut tries) = (Refusals::default(), start, 0);
            while !refusals.exceed(now, Some(start), LIMIT) {
                refusals.add(now, None);
                now += refusals.pause(random).max(Duration::from_millis(1));
                tries += 1;
            }
            assert!((CLOSED_CONNECTIONS_FOR_REFUSAL..=20).contains(&tries), "{tries}");
            assert!(now >= start + LIMIT && now <= start + LIMIT + PAUSES.1, "{:?}", now - start);
        }
    }

    #[test]
    fn limit_counts_from_last_acknowledged_heartbeat_or_first_refusal() {
        let start = Instant::now();
        let refusals = refused(CLOSED_CONNECTIONS_FOR_REFUSAL, start + LIMIT);
        assert!(refusals.exceed(start + LIMIT, Some(start), LIMIT), "nothing acknowledged for that long");
        let later = start + LIMIT * 2;
        assert!(!refusals.exceed(later - Duration::from_millis(1), None, LIMIT));
        assert!(refusals.exceed(later, None, LIMIT));
        // Heartbeats are acknowledged, and something else is refused all the time.
        assert!(refusals.exceed(later, Some(later), LIMIT));
    }

    #[test]
    fn few_closed_connections_are_not_a_refusal() {
        let start = Instant::now();
        let mut refusals = refused(CLOSED_CONNECTIONS_FOR_REFUSAL - 1, start);
        assert!(!refusals.exceed(start + LIMIT * 100, None, LIMIT));
        refusals.add(start, None);
        assert!(refusals.exceed(start + LIMIT, None, LIMIT));
        refusals.clear();
        assert!(!refusals.exist() && !refusals.exceed(start + LIMIT * 100, None, LIMIT));
    }
}
