//! Commands of the agent to the store's thread: a new keyspace, limits, the clients by id, the end. [`StoreServer`]
//! sends them with a channel for the answer; the thread carries them out between two clients.
//!
//! [`StoreServer`]: crate::store::StoreServer

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc;

use tokio::sync::oneshot;

use super::warnings::Warnings;
use super::{RetainedClients, Server};
use crate::blocking::CallAnswer;
use crate::store::StoreError;
use crate::store::connection::is_of_one_connection;

/// A request of the agent. The answer is dropped where the agent does not wait for it.
#[derive(Debug)]
pub(in crate::store) enum ServerCommand {
    /// Begin a generation: without the keys and connections of the last, except the kept ones.
    Reset { kept: RetainedClients, done: CallAnswer<Result<(), StoreError>> },
    /// The most bytes of values, and of connections.
    SetLimit(u64),
    /// Keep some room for the keys that begin with one of these.
    SetReserved(Vec<Vec<u8>>),
    /// Answer with the client ids of open connections.
    Connected(oneshot::Sender<BTreeSet<u32>>),
    /// Answer with the number of open connections of clients that have sent their id.
    Connections(oneshot::Sender<usize>),
    /// Answer with the client ids that lost their last connection since the previous question.
    Departed(oneshot::Sender<BTreeSet<u32>>),
    /// Close the listener and all connections, and answer.
    Stop(mpsc::Sender<()>),
}

impl Server {
    /// Serves the commands that have come. Breaks with the answer of the last one, a stop.
    pub(super) fn drain_commands(&mut self) -> ControlFlow<mpsc::Sender<()>> {
        // Only clears the counter: the commands are in the channel.
        let _ = self.channels.waker.read();
        while let Ok(command) = self.channels.commands.try_recv() {
            match command {
                ServerCommand::Stop(done) => return ControlFlow::Break(done),
                ServerCommand::Reset { kept, done } => {
                    done.send(self.reset(&kept).map_err(|source| StoreError::Reset { source }));
                }
                ServerCommand::SetLimit(bytes) => self.set_limit(bytes),
                ServerCommand::SetReserved(prefixes) => self.keyspace.reserve(prefixes),
                ServerCommand::Connected(answer) => drop(answer.send(self.registry.connected())),
                ServerCommand::Connections(answer) => drop(answer.send(self.registry.connections())),
                ServerCommand::Departed(answer) => drop(answer.send(self.registry.take_departed())),
            }
        }
        ControlFlow::Continue(())
    }

    /// Connections are closed first: that frees the descriptors with which the backlog is emptied.
    fn reset(&mut self, kept: &RetainedClients) -> io::Result<()> {
        let old = self.clients.iter().filter(|(_, client)| !kept.connection(&client.identity));
        for client in old.map(|(client, _)| *client).collect::<Vec<_>>() {
            if let Some(closed) = self.remove(client) {
                self.registry.close_client(client, &closed.identity);
            }
        }
        for client in self.clients.values_mut() {
            // The keys that were found for it are gone. The listing begins again.
            if let Some(listing) = client.connection.listing() {
                self.keyspace.discard_keys(std::mem::take(listing).keys.into_iter());
            }
        }
        self.keyspace.begin_generation(&kept.prefixes);
        self.registry.next_generation();
        self.warnings = Warnings::default();
        loop {
            match self.listener.accept() {
                Ok(old) => drop(old),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
