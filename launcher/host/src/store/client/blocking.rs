//! For tests: the client with blocking calls, on a runtime of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use super::{Client as AsyncClient, ClientError, ClientSettings};

/// A runtime that runs only while a test waits for it.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A [`super::Client`] with blocking calls.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) client: AsyncClient,
    pub(crate) runtime: Runtime,
}

impl Client {
    pub(crate) fn connect(
        addresses: &[SocketAddr],
        settings: ClientSettings,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let runtime = runtime();
        let client = runtime.block_on(AsyncClient::connect(addresses, settings, deadline))?;
        Ok(Self { client, runtime })
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.runtime.block_on(self.client.set(key, value))
    }

    pub(crate) fn get(&mut self, key: &str) -> Result<Vec<u8>, ClientError> {
        self.runtime.block_on(self.client.get(key))
    }

    pub(crate) fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, ClientError> {
        self.runtime.block_on(self.client.compare_set(key, expected, desired))
    }

    pub(crate) fn add(&mut self, key: &str, delta: i64) -> Result<i64, ClientError> {
        self.runtime.block_on(self.client.add(key, delta))
    }

    pub(crate) fn check(&mut self, keys: &[&str]) -> Result<bool, ClientError> {
        self.runtime.block_on(self.client.check(keys))
    }

    pub(crate) fn delete(&mut self, key: &str) -> Result<bool, ClientError> {
        self.runtime.block_on(self.client.delete(key))
    }

    pub(crate) fn multi_get(&mut self, keys: &[&str]) -> Result<Vec<Vec<u8>>, ClientError> {
        self.runtime.block_on(self.client.multi_get(keys))
    }

    pub(crate) fn multi_set(&mut self, pairs: &[(&str, &[u8])]) -> Result<(), ClientError> {
        self.runtime.block_on(self.client.multi_set(pairs))
    }

    pub(crate) fn list_keys(&mut self) -> Result<Vec<Vec<u8>>, ClientError> {
        self.runtime.block_on(self.client.list_keys())
    }

    pub(crate) fn wait(&mut self, keys: &[&str], deadline: Instant) -> Result<bool, ClientError> {
        self.runtime.block_on(self.client.wait(keys, deadline))
    }

    pub(super) fn begin_wait(&mut self, keys: &[&str]) -> Result<(), ClientError> {
        self.runtime.block_on(self.client.begin_wait(keys))
    }

    pub(super) fn end_wait(&mut self, take_back: bool) -> Result<bool, ClientError> {
        self.runtime.block_on(self.client.end_wait(take_back))
    }

    /// Whether the answer of a wait, or the end of the connection, comes within `limit`.
    pub(super) fn is_readable_within(&self, limit: Duration) -> bool {
        let readable = self.client.readable();
        self.runtime.block_on(async { tokio::time::timeout(limit, readable).await.is_ok() })
    }
}
