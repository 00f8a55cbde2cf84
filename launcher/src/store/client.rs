//! A client of a store: one connection, one request at a time, and no call without an end.
//!
//! Keys are raw, as they are on the wire: the `/` that torch's clients put before theirs is the caller's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How a client connects.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// The number in our greeting (the store's PING).
    pub nonce: u32,
    /// How long the store may take to answer what it can answer at once; a connection on which nothing is acknowledged
    /// for as long is lost.
    pub answer: Duration,
}

/// A connection to a store. Every call ends: with its answer, or with an error once [`ClientSettings::answer`] is over.
/// After an error other than [`ClientError::Limit`] the connection cannot be used any more.
#[derive(Debug)]
pub struct Client {
    settings: ClientSettings,
}

impl Client {
    /// Tries the addresses in turn, again and again (torch's delays are too long for us), until one is answered or
    /// `deadline` has come.
    ///
    /// # Errors
    /// Nothing that speaks the protocol answered in time.
    pub fn connect(
        addresses: &[SocketAddr],
        settings: ClientSettings,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let _ = (addresses, deadline);
        Ok(Self { settings })
    }

    /// Our end.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_addr(&self) -> Result<SocketAddr, ClientError> {
        todo!("{:?}", self.settings)
    }

    /// # Errors
    /// See [`Client`].
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        todo!("{key} {value:?}")
    }

    /// Empty where the key is absent.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn get(&mut self, key: &str) -> Result<Vec<u8>, ClientError> {
        todo!("{key}")
    }

    /// The value after it: `desired` where it was written.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, ClientError> {
        todo!("{key} {expected:?} {desired:?}")
    }

    /// The sum.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn add(&mut self, key: &str, delta: i64) -> Result<i64, ClientError> {
        todo!("{key} {delta}")
    }

    /// Whether all are there.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn check(&mut self, keys: &[&str]) -> Result<bool, ClientError> {
        todo!("{keys:?}")
    }

    /// Whether it was there.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn delete(&mut self, key: &str) -> Result<bool, ClientError> {
        todo!("{key}")
    }

    /// One value for each key, empty where it is absent.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn multi_get(&mut self, keys: &[&str]) -> Result<Vec<Vec<u8>>, ClientError> {
        todo!("{keys:?}")
    }

    /// # Errors
    /// See [`Client`].
    pub fn multi_set(&mut self, pairs: &[(&str, &[u8])]) -> Result<(), ClientError> {
        todo!("{pairs:?}")
    }

    /// All keys of the store.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn list_keys(&mut self) -> Result<Vec<Vec<u8>>, ClientError> {
        todo!()
    }

    /// Until all keys are there; `false` where `deadline` came before (the wait is then taken back).
    ///
    /// # Errors
    /// See [`Client`].
    pub fn wait(&mut self, keys: &[&str], deadline: Instant) -> Result<bool, ClientError> {
        todo!("{keys:?} {deadline:?}")
    }

    /// Begins to wait: [`Self::as_fd`] becomes readable when the answer is there, which [`Self::end_wait`] takes. No other
    /// call meanwhile.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn begin_wait(&mut self, keys: &[&str]) -> Result<(), ClientError> {
        todo!("{keys:?}")
    }

    /// Whether the wait that was begun is answered; where it is not, it is taken back if `take_back`.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn end_wait(&mut self, take_back: bool) -> Result<bool, ClientError> {
        todo!("{take_back}")
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}

/// Why a call to a store failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed, or nothing could be reached.
    #[error("the connection to the store failed")]
    Io(#[from] io::Error),
    /// The store did not answer in time.
    #[error("the store has not answered within {}", humantime::format_duration(*limit))]
    Silent {
        /// How long it was waited for.
        limit: Duration,
    },
    /// What answers is no store.
    #[error("what answers does not speak the store's protocol")]
    NoStore,
    /// A key, value or count is above what the protocol allows.
    #[error("too much for the store's protocol")]
    Limit,
}
