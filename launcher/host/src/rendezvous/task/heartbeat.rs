//! Heartbeats of this node, by a task and a connection of their own. A request of the rendezvous that waits for its
//! answer, for a name server or for another node delays none, and a packet lost on one connection holds up nothing on
//! the other.
//!
//! In a quiet round each heartbeat takes along what the rendezvous task would read at this moment: one write and one
//! answer, so an idle node wakes itself and the store once for both. The heartbeat is first, and waits for no value.
//!
//! The task ends with its [`HeartbeatSender`]: a node must not look alive if only its heartbeats were left.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its own rhythm")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::io_thread::kernel_timer::KernelTimer;
use crate::rendezvous::c10d::{SnapshotKeys, known_identity};
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

/// What a heartbeat has read.
#[derive(Debug)]
pub(super) struct HeartbeatRead {
    pub(super) keys: Arc<SnapshotKeys>,
    pub(super) values: Vec<Vec<u8>>,
    /// Send time of the heartbeat.
    pub(super) sent: Instant,
}

/// The messages to the task.
#[derive(Debug, Clone)]
struct HeartbeatOrders {
    /// For the next connection.
    addresses: Vec<SocketAddr>,
    /// What each heartbeat reads.
    keys: Option<Arc<SnapshotKeys>>,
}

/// The running task. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct HeartbeatSender {
    orders: watch::Sender<HeartbeatOrders>,
    reads: mpsc::Receiver<HeartbeatRead>,
}

impl HeartbeatSender {
    /// Starts the task on the calling task's runtime.
    pub(super) fn start(config: HeartbeatConfig, addresses: Vec<SocketAddr>) -> Self {
        let (orders, received) = watch::channel(HeartbeatOrders { addresses, keys: None });
        // An older read is of no use.
        let (sender, reads) = mpsc::channel(1);
        tokio::spawn(send_heartbeats(config, received, sender));
        Self { orders, reads }
    }

    /// Sets the addresses for the next connection.
    pub(super) fn set_addresses(&self, addresses: &[SocketAddr]) {
        self.orders.send_if_modified(|orders| {
            let is_new = orders.addresses != addresses;
            if is_new {
                addresses.clone_into(&mut orders.addresses);
            }
            is_new
        });
    }

    /// Sets what the heartbeats read from the next one on. The task need not wake for it.
    pub(super) fn set_keys(&self, keys: Option<SnapshotKeys>) {
        self.orders.send_if_modified(|orders| {
            if orders.keys.as_deref() != keys.as_ref() {
                orders.keys = keys.map(Arc::new);
            }
            false
        });
    }

    /// What the next heartbeat has read. May be dropped at any time.
    pub(super) async fn next_read(&mut self) -> HeartbeatRead {
        match self.reads.recv().await {
            Some(read) => read,
            // The runtime ends.
            None => std::future::pending().await,
        }
    }
}

/// Whether the rendezvous task can leave its own heartbeat out, since the heartbeat task sends them: then the time of
/// its next tick, unless a heartbeat has read everything before. Pure.
///
/// `acknowledged` is the newest heartbeat of either task, and `own` that of the rendezvous task.
pub(super) fn tick_behind_heartbeats(
    acknowledged: Option<Instant>,
    own: Option<Instant>,
    now: Instant,
    period: Duration,
) -> Option<Instant> {
    let sent = acknowledged.filter(|sent| own != Some(*sent))?;
    Some(tick_after(sent, period)).filter(|next| now < *next)
}

/// The next tick after a heartbeat of the heartbeat task: its next heartbeat is late then.
pub(super) fn tick_after(sent: Instant, period: Duration) -> Instant {
    sent + period * 5 / 4
}

/// When the rendezvous task reads, by its own deadline: left to the heartbeat after `sent` if it is just about then.
/// Each deadline is a few periods after some heartbeat has read. Pure.
pub(super) fn read_beside_heartbeat(deadline: Instant, sent: Instant, period: Duration) -> Instant {
    let slack = period / 16;
    if deadline + slack < sent + period { deadline } else { deadline.max(sent + period + slack) }
}

async fn send_heartbeats(
    config: HeartbeatConfig,
    mut orders: watch::Receiver<HeartbeatOrders>,
    reads: mpsc::Sender<HeartbeatRead>,
) {
    let mut connection: Option<HeartbeatConnection> = None;
    let (mut is_connected, mut refusals) = (false, Refusals::default());
    loop {
        let began = Instant::now();
        let known = orders.borrow_and_update().clone();
        let sent = tokio::select! {
            sent = config.send_heartbeat(&mut connection, is_connected, known) => sent,
            () = closed(&orders) => return,
        };
        match sent {
            Ok(read) => {
                is_connected = true;
                refusals.clear();
                // A rendezvous task that has not taken the read before reads itself.
                let _ = read.map(|read| reads.try_send(read));
            }
            Err(error) => {
                tracing::debug!(%error, "the connection for heartbeats is lost");
                is_connected = false;
                if error.is_closed_by_store() {
                    refusals.add(began, None);
                }
            }
        }
        let pause = async {
            match &connection {
                Some(HeartbeatConnection { timer, .. }) if is_connected => timer.expired().await,
                _ => sleep(refusals.pause(random()).max(RETRY)).await,
            }
        };
        tokio::select! {
            () = pause => {}
            changed = orders.changed() => if changed.is_err() { return },
        }
    }
}

/// Returns when the sender of the orders is dropped.
async fn closed(orders: &watch::Receiver<HeartbeatOrders>) {
    let mut orders = orders.clone();
    while orders.changed().await.is_ok() {}
}

/// The connection, with the timer of its heartbeats.
struct HeartbeatConnection {
    client: Client,
    timer: KernelTimer,
}

impl HeartbeatConfig {
    /// Sends one heartbeat, and returns what it has read. An old connection is kept until there is another: its end
    /// could tell the store's host that this node has gone.
    async fn send_heartbeat(
        &self,
        connection: &mut Option<HeartbeatConnection>,
        is_connected: bool,
        orders: HeartbeatOrders,
    ) -> Result<Option<HeartbeatRead>, ClientError> {
        if !is_connected {
            *connection = Some(self.connect(&orders.addresses).await?);
        }
        let Some(HeartbeatConnection { client, timer }) = connection else { return Ok(None) };
        let sent = Instant::now();
        timer.set(self.period)?;
        let names = orders.keys.as_ref().map_or([].as_slice(), |keys| keys.names.as_slice());
        client.add_and_request(&self.keys.heartbeat(&self.node), 1, names).await?;
        self.lease_state.acknowledge(sent, self.lease);
        let Some(keys) = orders.keys else { return Ok(None) };
        // The next heartbeat does not wait for them.
        let values = client.requested_values(sent + self.period).await?;
        Ok(values.map(|values| HeartbeatRead { keys, values, sent }))
    }

    async fn connect(&self, addresses: &[SocketAddr]) -> Result<HeartbeatConnection, ClientError> {
        let mut client =
            Client::connect_within(addresses, self.settings.clone(), self.settings.answer).await?;
        if known_identity(&mut client, &self.keys).await? != self.identity {
            return Err(ClientError::NoStore);
        }
        Ok(HeartbeatConnection { client, timer: KernelTimer::new()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(1);

    #[test]
    fn own_heartbeat_is_omitted_while_the_heartbeat_task_sends() {
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let tick = |acknowledged, own, now| {
            let next = tick_behind_heartbeats(acknowledged, own, at(now), PERIOD);
            next.map(|next| (next - origin).as_millis())
        };
        assert_eq!(tick(Some(at(0)), None, 100), Some(1250), "the next heartbeat is late then");
        assert_eq!(tick(Some(at(0)), None, 1249), Some(1250));
        assert_eq!(tick(Some(at(0)), None, 1250), None, "the heartbeat task is late");
        assert_eq!(tick(Some(at(0)), Some(at(0)), 100), None, "the heartbeat task has sent none since");
        assert_eq!(tick(None, None, 0), None);
    }

    #[test]
    fn read_that_is_due_beside_the_next_heartbeat_is_left_to_it() {
        let origin = Instant::now();
        let read = |deadline| {
            let deadline = origin + Duration::from_micros(deadline);
            (read_beside_heartbeat(deadline, origin, PERIOD) - origin).as_micros()
        };
        assert_eq!([read(500_000), read(937_499)], [500_000, 937_499]);
        assert_eq!([read(937_500), read(1_000_000), read(1_062_499)], [1_062_500; 3]);
        assert_eq!([read(1_062_501), read(4_000_000)], [1_062_501, 4_000_000]);
    }
}
