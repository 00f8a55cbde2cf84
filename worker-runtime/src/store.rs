//! The blocking client of the key-value store that the launcher (or torch) serves.
//!
//! It speaks the protocol of torch's `TCPStore` and names keys as torch does: user key `k` is `/k` on the
//! wire, and `/p/k` under the prefix `p`, so that Rust and Python ranks share keys. Clones share one
//! connection with one request in flight; a wait in one thread delays the others, as in torch. A connection
//! that failed during a request is not used again.

mod connection;
mod error;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rankrun_contract::store::protocol::{Reply, Request};

use connection::{Connection, Server};
pub use error::{ConnectFailure, StoreError};

/// Default limit for connecting and waiting, as in torch: 5 minutes.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Limit for answers that need no waiting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to the store, with a key prefix.
#[derive(Debug, Clone)]
pub struct TcpStore {
    connection: Arc<Mutex<Connection>>,
    server: Arc<Server>,
    prefix: String,
    timeout: Duration,
}

impl TcpStore {
    /// Connects to the store at `host:port` as one of its members, with growing pauses between tries until
    /// `timeout`, which is also the limit of [`get`](Self::get).
    ///
    /// # Errors
    /// The failure of the last try. A listener that accepts and does not answer is one.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, StoreError> {
        let server = Server { host: host.to_owned(), port };
        let mut connection = Connection::open(&server, timeout, ANSWER_TIMEOUT)?;
        // A Python rank that serves the store counts its members by this key.
        connection.call(&Request::Add { key: b"init/".to_vec(), delta: 1 })?;
        Ok(Self::new(connection, server, "/".to_owned(), timeout))
    }

    fn new(connection: Connection, server: Server, prefix: String, timeout: Duration) -> Self {
        Self { connection: Arc::new(Mutex::new(connection)), server: Arc::new(server), prefix, timeout }
    }

    /// A handle with a connection of its own, so that its waits delay no other handle. `answer_timeout`
    /// limits answers that need no waiting.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn with_own_connection(&self, answer_timeout: Duration) -> Result<Self, StoreError> {
        let server = Server::clone(&self.server);
        let connection = Connection::open(&server, self.timeout, answer_timeout)?;
        Ok(Self::new(connection, server, self.prefix.clone(), self.timeout))
    }

    /// A handle on the same connection for keys under `prefix`; torch's `PrefixStore`.
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> Self {
        Self { prefix: format!("{}{prefix}/", self.prefix), ..self.clone() }
    }

    /// A handle on the same connection with another limit for [`get`](Self::get).
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The address of this end of the connection, at which other nodes reach this node.
    ///
    /// # Errors
    /// The system does not tell it.
    pub fn local_address(&self) -> Result<IpAddr, StoreError> {
        self.lock_connection().local_address()
    }

    /// Stores a value under a key.
    ///
    /// # Errors
    /// The connection failed, or a limit of the protocol is exceeded; so for all requests.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.lock_connection().send(&Request::Set { key: self.prefixed_key(key), value: value.to_vec() })
    }

    /// Waits until the key has a value, and returns it.
    ///
    /// # Errors
    /// [`StoreError::WaitTimeout`] names the key after the timeout.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.wait(&[key], self.timeout)?;
        match self.call(&Request::Get { key: self.prefixed_key(key) })? {
            Reply::Value(value) => Ok(Arc::unwrap_or_clone(value)),
            reply => Err(StoreError::WrongReply { reply }),
        }
    }

    /// Waits until all keys have a value.
    ///
    /// # Errors
    /// [`StoreError::WaitTimeout`] names the keys; the connection stays usable.
    pub fn wait(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError> {
        self.lock_connection().wait(&Request::Wait { keys: self.prefixed_keys(keys) }, timeout)
    }

    /// Whether all keys have a value now.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        match self.call(&Request::Check { keys: self.prefixed_keys(keys) })? {
            Reply::AllPresent(all) => Ok(all),
            reply => Err(StoreError::WrongReply { reply }),
        }
    }

    /// Adds to a number, kept as decimal text and initially 0; returns the sum.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.call_for_number(&Request::Add { key: self.prefixed_key(key), delta })
    }

    /// Stores `desired` if the value is `expected` (empty: no value); returns the value after that.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>, StoreError> {
        let (expected, desired) = (expected.to_vec(), desired.to_vec());
        match self.call(&Request::CompareSet { key: self.prefixed_key(key), expected, desired })? {
            Reply::Value(value) => Ok(Arc::unwrap_or_clone(value)),
            reply => Err(StoreError::WrongReply { reply }),
        }
    }

    /// Removes a key; returns whether it existed.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.call_for_number(&Request::DeleteKey { key: self.prefixed_key(key) })? == 1)
    }

    /// Waits until all keys have a value, and returns the values.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.wait(keys, self.timeout)?;
        match self.call(&Request::MultiGet { keys: self.prefixed_keys(keys) })? {
            Reply::Values(values) => Ok(values.into_iter().map(Arc::unwrap_or_clone).collect()),
            reply => Err(StoreError::WrongReply { reply }),
        }
    }

    /// Stores several values at once.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let pairs = pairs.iter().map(|&(key, value)| (self.prefixed_key(key), value.to_vec())).collect();
        self.lock_connection().send(&Request::MultiSet { pairs })
    }

    /// Waits until `world_size` members have made this call with this key. Use a new key for each barrier.
    ///
    /// # Errors
    /// [`StoreError::WaitTimeout`] names the key if a member is missing.
    pub fn barrier(&self, key: &str, world_size: u32, timeout: Duration) -> Result<(), StoreError> {
        if self.prefix == "/" {
            let request = Request::Barrier { key: self.prefixed_key(key), world_size: i64::from(world_size) };
            return self.lock_connection().wait(&request, timeout);
        }
        // torch's barrier through a `PrefixStore` consists of these requests; its ranks may take part.
        let last = format!("{key}/last_member");
        if self.add(&format!("{key}/num_members"), 1)? == i64::from(world_size) {
            self.set(&last, b"1")?;
        }
        self.wait(&[&last], timeout)
    }

    fn call(&self, request: &Request) -> Result<Reply, StoreError> {
        self.lock_connection().call(request)
    }

    fn call_for_number(&self, request: &Request) -> Result<i64, StoreError> {
        match self.call(request)? {
            Reply::Number(number) => Ok(number),
            reply => Err(StoreError::WrongReply { reply }),
        }
    }

    /// A thread that panicked during a request has left the connection marked as broken.
    fn lock_connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prefixed_key(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }

    fn prefixed_keys(&self, keys: &[&str]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| self.prefixed_key(key)).collect()
    }
}
