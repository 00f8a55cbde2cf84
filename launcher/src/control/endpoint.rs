//! The agent's end of the control socket. Until the first client connects it is a listening descriptor in the
//! agent's poll, without a thread. It then starts the server on a thread of its own.
#![expect(clippy::disallowed_methods, reason = "an event has its time")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::{broadcast, watch};

use rankrun_contract::rank::{Generation, JobId};

use super::folder::{JobFolder, RuntimeFolders};
use super::protocol::{JobEventLine, Reply};
use super::server::{self, EVENT_BACKLOG, JobLink};
pub use super::server::{ControlReply, ControlRequest};
use crate::blocking::is_readable;

/// Requests that wait for the agent.
const MAX_WAITING_REQUESTS: usize = 64;
/// The end of the job waits for the server no longer than this; the server has a shorter limit.
const END_TIMEOUT: Duration = Duration::from_millis(400);

/// The control socket of this job.
#[derive(Debug)]
pub struct ControlEndpoint {
    folder: JobFolder,
    server: ServerState,
}

#[derive(Debug)]
enum ServerState {
    /// No client has connected so far.
    Idle(UnixListener),
    Running(RunningServer),
    /// The thread could not be started.
    Failed,
}

#[derive(Debug)]
struct RunningServer {
    requests: Receiver<ControlRequest>,
    wake: Arc<EventFd>,
    events: broadcast::Sender<Arc<str>>,
    /// Dropped at the end of the job.
    ended: Option<watch::Sender<()>>,
    /// Closed by the end of the server.
    done: Receiver<()>,
}

impl ControlEndpoint {
    /// Makes the folder of the job and listens.
    ///
    /// # Errors
    /// No place allows it.
    pub fn open(places: &RuntimeFolders, job: &JobId) -> io::Result<Self> {
        let (folder, listener) = JobFolder::make(places, job)?;
        Ok(Self { folder, server: ServerState::Idle(listener) })
    }

    /// Readable when [`Self::take_requests`] has something to do.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.server {
            ServerState::Idle(listener) => Some(listener.as_fd()),
            ServerState::Running(server) => Some(server.wake.as_fd()),
            ServerState::Failed => None,
        }
    }

    /// The requests since the last call. A first client starts the server.
    pub fn take_requests(&mut self) -> Vec<ControlRequest> {
        if let ServerState::Idle(listener) = &self.server {
            if !is_readable(listener.as_fd()) {
                return Vec::new();
            }
            self.server = start_server(listener).unwrap_or_else(|error| {
                tracing::warn!("the control socket is not served: {error}");
                ServerState::Failed
            });
        }
        let ServerState::Running(server) = &self.server else { return Vec::new() };
        // Nonblocking: without a request there is nothing to read.
        let _ = server.wake.read();
        server.requests.try_iter().collect()
    }

    /// True if a client reads events.
    #[must_use]
    pub fn has_event_readers(&self) -> bool {
        matches!(&self.server, ServerState::Running(server) if server.events.receiver_count() > 0)
    }

    /// Sends an event to the clients that read events.
    pub fn publish(&self, generation: Generation, name: &str, text: String) {
        let ServerState::Running(server) = &self.server else { return };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = Reply::Event(JobEventLine {
            name: name.to_owned(),
            time_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            generation: u64::from(generation.0),
            text,
        });
        // An error means that the last reader has gone.
        let _ = server.events.send(line.to_line().into());
    }
}

impl Drop for ControlEndpoint {
    /// Lets readers have the last events, and removes the folder.
    fn drop(&mut self) {
        if let ServerState::Running(server) = &mut self.server {
            drop(server.ended.take());
            while server.done.recv_timeout(END_TIMEOUT) == Ok(()) {}
        }
        if let Err(error) = self.folder.remove()
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!("`{}` stays: {error}", self.folder.path.display());
        }
    }
}

fn start_server(listener: &UnixListener) -> io::Result<ServerState> {
    let listener = listener.try_clone()?;
    listener.set_nonblocking(true)?;
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let (sender, requests) = sync_channel(MAX_WAITING_REQUESTS);
    let (events, _) = broadcast::channel(EVENT_BACKLOG);
    let (ended, is_ended) = watch::channel(());
    let (at_end, done) = channel();
    let uid = rustix::process::geteuid().as_raw();
    let job =
        JobLink { requests: sender, wake: Arc::clone(&wake), events: events.clone(), ended: is_ended, uid };
    thread::Builder::new()
        .name("rankrun-control".to_owned())
        .spawn(move || run_server(listener, job, at_end))?;
    Ok(ServerState::Running(RunningServer { requests, wake, events, ended: Some(ended), done }))
}

fn run_server(listener: UnixListener, job: JobLink, at_end: Sender<()>) {
    let serve = async move {
        match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => server::serve(listener, job).await,
            Err(error) => tracing::warn!("the control socket is not served: {error}"),
        }
    };
    if let Err(error) = server::run(serve) {
        tracing::warn!("the control socket is not served: {error}");
    }
    drop(at_end);
}
