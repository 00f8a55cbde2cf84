//! Signs of life over a connection of their own, from a thread of their own: a call of the other thread that waits for its
//! answer, for a name server or for another node puts off none, and a packet that is lost on one connection holds up
//! nothing on the other.
//!
//! It ends with whoever started it: a node of which only this were left would look alive.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its own rhythm")]

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::rendezvous::c10d::known_identity;
use crate::rendezvous::keys::RendezvousKeys;
use crate::rendezvous::state::Node;
use crate::store::client::{Client, ClientError, ClientSettings};

use super::driver::random;
use super::fence::Fencepost;
use super::refusals::Refusals;

/// Before it is tried again to connect.
const RETRY: Duration = Duration::from_millis(20);

/// What gives signs of life.
#[derive(Debug)]
pub(super) struct Heart {
    /// Where the store is.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) settings: ClientSettings,
    pub(super) keys: RendezvousKeys,
    /// The store that was joined: another one knows nobody.
    pub(super) identity: String,
    /// Who lives.
    pub(super) node: Node,
    /// Between two signs.
    pub(super) tick: Duration,
    pub(super) lease: Duration,
    pub(super) fencepost: Fencepost,
}

/// The thread, which ends when this goes.
#[derive(Debug)]
pub(super) struct Pulse {
    addresses: mpsc::Sender<Vec<SocketAddr>>,
}

impl Pulse {
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start(heart: Heart) -> io::Result<Self> {
        let (addresses, told) = mpsc::channel();
        thread::Builder::new().name("pulse".to_owned()).spawn(move || heart.run(&told))?;
        Ok(Self { addresses })
    }

    /// The store is there now.
    pub(super) fn moves_to(&self, addresses: &[SocketAddr]) {
        // Only a thread that has panicked does not hear it.
        let _ = self.addresses.send(addresses.to_vec());
    }
}

impl Heart {
    fn run(mut self, told: &mpsc::Receiver<Vec<SocketAddr>>) {
        let mut client: Option<Client> = None;
        let (mut is_connected, mut refusals) = (false, Refusals::default());
        loop {
            let began = Instant::now();
            match self.beat(&mut client, is_connected) {
                Ok(()) => {
                    is_connected = true;
                    refusals.clear();
                }
                Err(error) => {
                    tracing::debug!(%error, "the connection for the signs of life is lost");
                    is_connected = false;
                    if error.is_closed_by_store() {
                        refusals.add(began, None);
                    }
                }
            }
            let pause = refusals.pause(random()).max(RETRY);
            let next = if is_connected { began + self.tick } else { Instant::now() + pause };
            match told.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(addresses) => self.addresses = addresses,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// One sign of life. An old connection is kept until there is another: its end could tell the store's host that this
    /// node is gone.
    fn beat(&self, client: &mut Option<Client>, is_connected: bool) -> Result<(), ClientError> {
        if !is_connected {
            *client = Some(self.connect()?);
        }
        let Some(client) = client else { return Ok(()) };
        let sent = Instant::now();
        client.add(&self.keys.heartbeat(&self.node), 1)?;
        self.fencepost.acknowledge(sent, self.lease);
        Ok(())
    }

    fn connect(&self) -> Result<Client, ClientError> {
        let deadline = Instant::now() + self.settings.answer;
        let mut client = Client::connect(&self.addresses, self.settings.clone(), deadline)?;
        let is_it = known_identity(&mut client, &self.keys)? == self.identity;
        if is_it { Ok(client) } else { Err(ClientError::NoStore) }
    }
}
