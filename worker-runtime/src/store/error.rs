//! Why the store did not do what it was asked.

use std::io;
use std::time::Duration;

use rankrun_contract::store::protocol::{ProtocolError, Reply};

use crate::diagnostic::{Details, Diagnostic};

/// A failed request, or a store that cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection was made in time.
    #[error("cannot reach the store at `{host}:{port}` within {timeout:?}")]
    Unreachable {
        /// The host as it was given.
        host: String,
        /// The port.
        port: u16,
        /// How long it was tried.
        timeout: Duration,
        /// How the last try failed.
        #[source]
        source: ConnectFailure,
    },
    /// This process, or its machine, may open no more.
    #[error("{}no socket for a connection to the store", Details(self))]
    NoSocket(#[source] io::Error),
    /// There is a store only where a launcher hosts one.
    #[error("there is no store: this process was not started by a launcher")]
    NoLauncher,
    /// What was waited for did not come. The connection is usable.
    #[error("wait timeout after {}ms, keys: {}", timeout.as_millis(), keys.join(", "))]
    WaitTimeout {
        /// How long it was waited.
        timeout: Duration,
        /// The keys as they are on the wire.
        keys: Vec<String>,
    },
    /// The store has no memory left to remember what is waited for. The connection is usable.
    #[error("the store refuses to wait for {}: it is full", keys.join(", "))]
    WaitRefused {
        /// The keys as they are on the wire.
        keys: Vec<String>,
    },
    /// The connection failed.
    #[error("the connection to the store failed")]
    Io(#[from] io::Error),
    /// The request is above a limit; nothing was sent and the connection is usable.
    #[error("the store takes no such request")]
    Limit(#[source] ProtocolError),
    /// What came back is no answer.
    #[error("the store was not understood")]
    Protocol(#[from] ProtocolError),
    /// The answer is not one of the request.
    #[error("the store answered `{reply:?}`, which does not fit the request")]
    WrongReply {
        /// The answer.
        reply: Reply,
    },
    /// An earlier request failed half-way.
    #[error("the connection to the store is broken since an earlier request")]
    Broken,
}

impl StoreError {
    /// What to do about it, where something is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoSocket(_) => Some("give the worker more descriptors: `ulimit -n`"),
            Self::WaitRefused { .. } => Some("`--store-limit SIZE` of the launcher raises the limit"),
            _ => None,
        }
    }
}

impl Diagnostic for StoreError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

/// How one try to connect failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectFailure {
    /// The name has no address, or no address lets us in.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something else listens there.
    #[error("what listens there is no store")]
    NoStore,
    /// It accepts connections and does not answer.
    #[error("it accepts connections, but does not answer")]
    Silent,
}
