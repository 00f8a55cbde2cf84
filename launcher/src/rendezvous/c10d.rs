//! The shared state and what is around it in the rendezvous store, over two connections: one for requests, and one that
//! waits for the bell, so that a change by another rankrun agent is known as soon as it is made.
//!
//! After every write that others want to know of, the writer rings: it counts `version` up and sets the key with that
//! number. An observer takes the version and everything else in one request, which the store answers at one moment, and
//! then waits for the key of the next version. So no ring between look and wait is lost.

mod tell;

pub use tell::FirstBy;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::rendezvous::FailureNote;
use crate::rendezvous::keys::{Keys, RoundKeys};
use crate::rendezvous::note::ClosingNote;
use crate::rendezvous::pickle::{self, NotAState};
use crate::rendezvous::state::{Node, State};
use crate::rendezvous::text::harmless_bytes;
use crate::store::client::{Client, ClientError, ClientSettings, Unanswered};

pub use tell::Introduction;

/// torch's text for "there is no state yet" (contract 5.2).
const SENTINEL: &[u8] = b"Y2FuaW1hZGFt";

/// So many rings are kept for observers that are late.
const KEPT_RINGS: i64 = 64;

/// Longest text of a store's identity that is believed.
const MAX_IDENTITY: usize = 64;

/// Why the store gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The connection is of no use any more.
    #[error(transparent)]
    Store(#[from] ClientError),
    /// What stands where the shared state should be is something else.
    #[error("the value of `{key}` is not the state of a rendezvous")]
    NotAState {
        /// The key.
        key: String,
        /// What is wrong with it.
        source: NotAState,
    },
}

/// Both connections, and the state as it was seen last.
#[derive(Debug)]
pub struct Backend {
    keys: Keys,
    calls: Client,
    /// Lent out during an exchange of ranks.
    bell: Option<Client>,
    /// What the bell waits for.
    armed: Option<Awaited>,
    /// torch's keys of the only round, where there is only one.
    only: Option<RoundKeys>,
    version: i64,
    text: Vec<u8>,
    state: State,
}

/// What to listen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// The ring of this version.
    Ring(i64),
    /// That the workers of all nodes of this round have succeeded. A torchrun agent that hosts the store is gone a moment
    /// later: who looks then finds nobody.
    Success(u64),
}

/// What to look for beside the state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wants<'a> {
    /// The round of which the failure and the end of the workers are wanted.
    pub round: Option<u64>,
    /// Whose workers have succeeded in it.
    pub done: &'a [Node],
    /// Whose signs of life.
    pub beats: &'a [Node],
}

/// What one look has shown; the state itself is [`Backend::state`].
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// How the job was closed, where the closer said it.
    pub end: Option<ClosingNote>,
    /// The first failure of the round.
    pub failure: Option<FailureNote>,
    /// Whether the workers of all nodes of the round have succeeded.
    pub all_succeeded: bool,
    /// How many nodes have said so in torch's way.
    pub successes: usize,
    /// Those of [`Wants::done`] whose workers have.
    pub done: Vec<Node>,
    /// The ranks of the round before, as they were written.
    pub ranks: Vec<u8>,
    /// The counters that were there.
    pub beats: BTreeMap<Node, i64>,
}

impl Backend {
    /// Connects, and makes sure that there is a state to read.
    ///
    /// # Errors
    /// Nothing that speaks the protocol answered the first connection within `limit`, or the second in as long again.
    pub fn connect(
        addresses: &[SocketAddr],
        settings: &ClientSettings,
        keys: Keys,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        let mut calls = Client::connect_within(addresses, settings.clone(), limit)?;
        let bell = Client::connect_within(&[calls.peer_addr()?], settings.clone(), limit)?;
        calls.compare_set(keys.state(), b"", SENTINEL)?;
        Ok(Self {
            keys,
            calls,
            bell: Some(bell),
            armed: None,
            only: None,
            version: 0,
            text: SENTINEL.to_vec(),
            state: State::default(),
        })
    }

    /// Our end of the connection.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_ip(&self) -> Result<IpAddr, ClientError> {
        Ok(self.calls.local_addr()?.ip())
    }

    /// Where the store was reached.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn peer_addr(&self) -> Result<SocketAddr, ClientError> {
        self.calls.peer_addr()
    }

    /// The kernel's smoothed round-trip time of the connection for requests.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.calls.round_trip()
    }

    /// Which store this is: `fresh` where nobody has said yet, which only a first connection may be the first to do.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn identity(&mut self, fresh: &str) -> Result<String, ClientError> {
        let key = self.keys.store();
        let found = self.calls.compare_set(&key, b"", fresh.as_bytes())?;
        Ok(harmless_bytes(&found, MAX_IDENTITY))
    }

    /// Which store this is, where somebody has said it.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn known_identity(&mut self) -> Result<String, ClientError> {
        known_identity(&mut self.calls, &self.keys)
    }

    /// The state as it was seen last.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The keys of the job.
    #[must_use]
    pub const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// There is one round, with these keys of torch's.
    pub fn use_round(&mut self, only: RoundKeys) {
        self.only = Some(only);
    }

    /// The connection for requests.
    pub const fn calls(&mut self) -> &mut Client {
        &mut self.calls
    }

    /// The first request on either connection that nothing has answered.
    #[must_use]
    pub fn unanswered(&self) -> Option<&Unanswered> {
        self.calls.unanswered().or_else(|| self.bell.as_ref()?.unanswered())
    }

    /// Looks at the store, in one request.
    ///
    /// # Errors
    /// The connection is lost, or the state is none.
    pub fn look(&mut self, wants: &Wants<'_>) -> Result<Look, Trouble> {
        let keys = &self.keys;
        let mut names = vec![keys.version(), keys.state().to_owned(), keys.end(), keys.ranks()];
        if let Some(round) = wants.round {
            let torch = self.torch_keys(round);
            names.extend([keys.failure(round), torch.last_member(), torch.num_members()]);
            names.extend(wants.done.iter().map(|node| keys.done(round, node)));
        }
        names.extend(wants.beats.iter().map(|node| keys.beat(node)));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut values = self.calls.multi_get(&names)?.into_iter();
        let mut next = || values.next().unwrap_or_default();
        self.version = number(&next()).unwrap_or(0);
        let text = next();
        let mut look = Look { end: ClosingNote::from_json(&next()), ranks: next(), ..Look::default() };
        if wants.round.is_some() {
            look.failure = FailureNote::from_json(&next());
            look.all_succeeded = !next().is_empty();
            look.successes = number(&next()).and_then(|nodes| usize::try_from(nodes).ok()).unwrap_or(0);
            look.done = wants.done.iter().filter(|_| !next().is_empty()).cloned().collect();
        }
        look.beats = wants.beats.iter().filter_map(|node| Some((node.clone(), number(&next())?))).collect();
        self.keep(text)?;
        Ok(look)
    }

    /// Makes a text that was read the state that is known.
    fn keep(&mut self, text: Vec<u8>) -> Result<(), Trouble> {
        if text == self.text {
            return Ok(());
        }
        self.state = match &text[..] {
            // Absent: the keyspace of a store that is another one now. It is found out by its identity.
            b"" | SENTINEL => State::default(),
            text => pickle::decode(text)
                .map_err(|source| Trouble::NotAState { key: self.keys.state().to_owned(), source })?,
        };
        self.text = text;
        Ok(())
    }

    /// Writes the state if it is still the one that was seen last; whether it was. Either way what is there now is the
    /// state that is known.
    ///
    /// # Errors
    /// The connection is lost, or what is there is no state.
    pub fn write(&mut self, state: &State, rings: bool) -> Result<bool, Trouble> {
        let text = pickle::encode(state);
        let found = self.calls.compare_set(self.keys.state(), &self.text, &text)?;
        if found != text {
            self.keep(found)?;
            return Ok(false);
        }
        self.text = text;
        self.state.clone_from(state);
        if rings {
            self.ring()?;
        }
        Ok(true)
    }

    /// Tells the other rankrun agents that there is something to look at.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn ring(&mut self) -> Result<(), ClientError> {
        let version = self.calls.add(&self.keys.version(), 1)?;
        // Our own ring is no news for us, unless somebody else has rung before it.
        if version == self.version.wrapping_add(1) {
            self.version = version;
        }
        self.calls.set(&self.keys.bell(version), b"1")?;
        if version > KEPT_RINGS {
            self.calls.delete(&self.keys.bell(version - KEPT_RINGS))?;
        }
        Ok(())
    }

    /// Listens for the first ring after the last look, or for the success of the round that is named.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn listen(&mut self, success_of: Option<u64>) -> Result<(), ClientError> {
        let Some(bell) = &mut self.bell else { return Ok(()) };
        let next = success_of.map_or(Awaited::Ring(self.version.wrapping_add(1)), Awaited::Success);
        if self.armed != Some(next) {
            if self.armed.take().is_some() {
                bell.end_wait(true)?;
            }
            let key = match next {
                Awaited::Ring(version) => self.keys.bell(version),
                Awaited::Success(round) => self.torch_keys(round).last_member(),
            };
            let Some(bell) = &mut self.bell else { return Ok(()) };
            bell.begin_wait(&[&key])?;
            self.armed = Some(next);
        }
        Ok(())
    }

    /// What has come since [`Self::listen`] of what it listens for.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn has_rung(&mut self) -> Result<Option<Awaited>, ClientError> {
        let (Some(bell), Some(awaited)) = (&mut self.bell, self.armed) else { return Ok(None) };
        if !bell.end_wait(false)? {
            return Ok(None);
        }
        self.armed = None;
        Ok(Some(awaited))
    }

    fn torch_keys(&self, round: u64) -> RoundKeys {
        self.only.clone().unwrap_or_else(|| self.keys.round(round))
    }

    /// Readable when the bell rings.
    #[must_use]
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().filter(|_| self.armed.is_some()).map(AsFd::as_fd)
    }

    /// Lends out the connection of the bell, which nobody listens to until it is given back.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn lend(&mut self) -> Result<Option<Client>, ClientError> {
        if self.armed.take().is_some()
            && let Some(bell) = &mut self.bell
        {
            bell.end_wait(true)?;
        }
        Ok(self.bell.take())
    }

    /// Takes back what was lent.
    pub fn give_back(&mut self, bell: Client) {
        self.bell = Some(bell);
    }
}

/// Which store this is, where somebody has said it.
///
/// # Errors
/// See [`Client`].
pub fn known_identity(client: &mut Client, keys: &Keys) -> Result<String, ClientError> {
    Ok(harmless_bytes(&client.get(&keys.store())?, MAX_IDENTITY))
}

/// A counter as the store keeps it.
fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
