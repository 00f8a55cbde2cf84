//! Heartbeats of this node, by a task and a connection of their own. A request of the rendezvous that waits for its
//! answer, for a name server or for another node delays none, and a packet lost on one connection holds up nothing on
//! the other.
//!
//! The task ends with its [`HeartbeatSender`]: a node must not look alive if only its heartbeats were left.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its own rhythm")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout_at;

use crate::rendezvous::c10d::known_identity;
use crate::store::client::{Client, ClientError, ClientSettings};
use rankrun_core::rendezvous::keys::RendezvousKeys;
use rankrun_core::rendezvous::state::Node;

use super::lease::LeaseState;
use super::refusals::Refusals;
use super::rendezvous_task::random;

/// The pause before another attempt to connect.
const RETRY: Duration = Duration::from_millis(20);

/// What the heartbeat task needs.
#[derive(Debug)]
pub(super) struct HeartbeatConfig {
    pub(super) settings: ClientSettings,
    pub(super) keys: RendezvousKeys,
    /// Identity of the store that this node has joined.
    pub(super) identity: String,
    pub(super) node: Node,
    /// The time between two heartbeats.
    pub(super) period: Duration,
    pub(super) lease: Duration,
    pub(super) lease_state: LeaseState,
}

/// The running task. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct HeartbeatSender {
    addresses: watch::Sender<Vec<SocketAddr>>,
}

impl HeartbeatSender {
    /// Starts the task on the calling task's runtime.
    pub(super) fn start(config: HeartbeatConfig, addresses: Vec<SocketAddr>) -> Self {
        let (addresses, received) = watch::channel(addresses);
        tokio::spawn(send_heartbeats(config, received));
        Self { addresses }
    }

    /// Sets the addresses for the next connection.
    pub(super) fn set_addresses(&self, addresses: &[SocketAddr]) {
        self.addresses.send_if_modified(|before| {
            let is_new = before != addresses;
            if is_new {
                addresses.clone_into(before);
            }
            is_new
        });
    }
}

/// Whether the rendezvous task can leave its own heartbeat out, since the heartbeat task sends them: then the time of its
/// next tick, beside the next heartbeat, so that one wake-up serves both. Pure.
///
/// `acknowledged` is the newest heartbeat of either task, and `own` that of the rendezvous task.
pub(super) fn tick_beside_heartbeats(
    acknowledged: Option<Instant>,
    own: Option<Instant>,
    now: Instant,
    period: Duration,
) -> Option<Instant> {
    let sent = acknowledged.filter(|sent| own != Some(*sent) && now < *sent + period * 5 / 4)?;
    let next = sent + period;
    Some(if next <= now + period / 4 { next + period } else { next })
}

async fn send_heartbeats(config: HeartbeatConfig, mut addresses: watch::Receiver<Vec<SocketAddr>>) {
    let mut client: Option<Client> = None;
    let (mut is_connected, mut refusals) = (false, Refusals::default());
    loop {
        let began = Instant::now();
        let known = addresses.borrow_and_update().clone();
        let sent = tokio::select! {
            sent = config.send_heartbeat(&mut client, is_connected, &known) => sent,
            () = closed(&addresses) => return,
        };
        match sent {
            Ok(()) => {
                is_connected = true;
                refusals.clear();
            }
            Err(error) => {
                tracing::debug!(%error, "the connection for heartbeats is lost");
                is_connected = false;
                if error.is_closed_by_store() {
                    refusals.add(began, None);
                }
            }
        }
        let next = if is_connected {
            began + config.period
        } else {
            Instant::now() + refusals.pause(random()).max(RETRY)
        };
        if let Ok(Err(_)) = timeout_at(next.into(), addresses.changed()).await {
            return;
        }
    }
}

/// Returns when the sender of the addresses is dropped.
async fn closed(addresses: &watch::Receiver<Vec<SocketAddr>>) {
    let mut addresses = addresses.clone();
    while addresses.changed().await.is_ok() {}
}

impl HeartbeatConfig {
    /// Sends one heartbeat. An old connection is kept until there is another: its end could tell the store's host that
    /// this node has gone.
    async fn send_heartbeat(
        &self,
        client: &mut Option<Client>,
        is_connected: bool,
        addresses: &[SocketAddr],
    ) -> Result<(), ClientError> {
        if !is_connected {
            *client = Some(self.connect(addresses).await?);
        }
        let Some(client) = client else { return Ok(()) };
        let sent = Instant::now();
        client.add(&self.keys.heartbeat(&self.node), 1).await?;
        self.lease_state.acknowledge(sent, self.lease);
        Ok(())
    }

    async fn connect(&self, addresses: &[SocketAddr]) -> Result<Client, ClientError> {
        let mut client =
            Client::connect_within(addresses, self.settings.clone(), self.settings.answer).await?;
        let is_same = known_identity(&mut client, &self.keys).await? == self.identity;
        if is_same { Ok(client) } else { Err(ClientError::NoStore) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(1);

    #[test]
    fn own_heartbeat_is_left_out_while_the_heartbeat_task_sends() {
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let tick = |acknowledged, own, now| {
            let next = tick_beside_heartbeats(acknowledged, own, at(now), PERIOD);
            next.map(|next| (next - origin).as_millis())
        };
        assert_eq!(tick(Some(at(0)), None, 100), Some(1000), "beside the next heartbeat");
        assert_eq!(tick(Some(at(0)), None, 740), Some(1000));
        // This task woke first: the heartbeat of this moment is about to be sent.
        assert_eq!(tick(Some(at(0)), None, 1000), Some(2000));
        assert_eq!(tick(Some(at(0)), None, 1249), Some(2000));
        assert_eq!(tick(Some(at(0)), None, 1250), None, "the heartbeat task is late");
        assert_eq!(tick(Some(at(0)), Some(at(0)), 100), None, "the heartbeat task has sent none since");
        assert_eq!(tick(None, None, 0), None);
    }
}
