//! Errors of the store client.

use std::io;
use std::time::Duration;

use rankrun_contract::store::protocol::{ProtocolError, Reply};

use crate::diagnostic::{Details, Diagnostic};

/// A failed request, or a store that cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection within the timeout.
    #[error("the store at `{host}:{port}` cannot be reached within {timeout:?}")]
    Unreachable {
        /// Host name or address as given.
        host: String,
        /// TCP port of the store.
        port: u16,
        /// The exceeded limit.
        timeout: Duration,
        /// The failure of the last try.
        #[source]
        source: ConnectFailure,
    },
    /// This process or its machine can open no more sockets.
    #[error("{}this process cannot open a socket to the store", Details(self))]
    NoSocket(#[source] io::Error),
    /// Without a launcher there is no store.
    #[error("{}this process has no store: it runs without a launcher", Details(self))]
    NoLauncher,
    /// A key did not appear within the timeout. The connection is usable.
    #[error("wait timeout after {}ms, keys: {}", timeout.as_millis(), keys.join(", "))]
    WaitTimeout {
        /// The exceeded limit.
        timeout: Duration,
        /// Key names as on the wire, with their prefix.
        keys: Vec<String>,
    },
    /// The store has no memory for another wait. The connection is usable.
    #[error("{}the store refuses to wait for {}: it is full", Details(self), keys.join(", "))]
    WaitRefused {
        /// Key names as on the wire, with their prefix.
        keys: Vec<String>,
    },
    /// Reading from or writing to the connection failed.
    #[error("the connection to the store failed")]
    Io(#[from] io::Error),
    /// The request exceeds a limit; nothing was sent and the connection is usable.
    #[error("the request exceeds a limit of the store")]
    Limit(#[source] ProtocolError),
    /// The received bytes are not an answer of the protocol.
    #[error("the answer of the store cannot be decoded")]
    Protocol(#[from] ProtocolError),
    /// The answer does not belong to the request.
    #[error("the store answered `{reply:?}`, which does not fit the request")]
    WrongReply {
        /// The received answer.
        reply: Reply,
    },
    /// An earlier request on this connection failed before it was complete.
    #[error("the connection to the store is broken since an earlier request")]
    Broken,
}

impl StoreError {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoLauncher => Some("start it with `rankrun`"),
            Self::NoSocket(_) => Some("raise the worker's limit of open files with `ulimit -n`"),
            Self::WaitRefused { .. } => {
                Some("raise the limit with the launcher's option `--store-limit SIZE`")
            }
            _ => None,
        }
    }
}

impl Diagnostic for StoreError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

/// Why a try to connect failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectFailure {
    /// The name has no address, or no address accepts.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The listener does not speak the protocol of the store.
    #[error("the listener at this address is not a store")]
    NoStore,
    /// The listener accepts and does not answer.
    #[error("it accepts connections, but does not answer")]
    Silent,
}
