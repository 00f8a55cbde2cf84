//! The agent's end of the control socket. Until the first client connects it is a listening descriptor in the
//! agent's poll, without a thread. It then starts the server on a thread of its own.
#![expect(clippy::disallowed_methods, reason = "an event has its time")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};
use tokio::runtime::Runtime;
use tokio::sync::{broadcast, watch};

use rankrun_contract::rank::{Generation, JobId};

use super::folder::{FolderError, JobFolder, RuntimeFolders};
use super::protocol::{JobEventLine, Reply};
use super::server::{self, EVENT_BACKLOG, JobLink, SpareDescriptor, client_limit};
pub(crate) use super::server::{ControlReply, ControlRequest};
use crate::blocking::is_readable;
use crate::blocking::local_disk::is_in_memory;

/// Requests that wait for the agent.
const MAX_WAITING_REQUESTS: usize = 64;
/// The end of the job waits for the server no longer than this; the server has a shorter limit.
const END_TIMEOUT: Duration = Duration::from_millis(400);

/// The control socket of this job.
#[derive(Debug)]
pub(crate) struct ControlEndpoint {
    folder: JobFolder,
    is_in_memory: bool,
    listener: UnixListener,
    server: ServerState,
    /// Until the server runs, which has one of its own.
    spare: SpareDescriptor,
}

#[derive(Debug)]
enum ServerState {
    /// No client has connected so far.
    Idle,
    Running(RunningServer),
    /// The thread could not be started, or has ended.
    Failed,
}

#[derive(Debug)]
struct RunningServer {
    requests: Receiver<ControlRequest>,
    wake: Arc<EventFd>,
    events: broadcast::Sender<Arc<str>>,
    /// Dropped at the end of the job.
    ended: watch::Sender<()>,
    /// Closed by the end of the server.
    done: Receiver<()>,
}

impl ControlEndpoint {
    /// Makes the folder of the job and listens. The file system may not answer.
    ///
    /// # Errors
    /// No place allows it.
    pub(crate) fn open(places: &RuntimeFolders, job: &JobId) -> Result<Self, FolderError> {
        // First: a folder that is left without a listener would be of a dead job.
        let spare = SpareDescriptor::open()?;
        let (folder, listener) = JobFolder::make(places, job)?;
        let is_in_memory = is_in_memory(&folder.path);
        Ok(Self { folder, is_in_memory, listener, server: ServerState::Idle, spare })
    }

    /// True if the file system of the folder always answers.
    #[must_use]
    pub(crate) const fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// Lets readers have the last events, and stops listening. Returns the folder, which is to be removed.
    #[must_use]
    pub(crate) fn close(self) -> JobFolder {
        if let ServerState::Running(server) = self.server {
            drop(server.ended);
            while server.done.recv_timeout(END_TIMEOUT) == Ok(()) {}
        }
        self.folder
    }

    /// Readable when [`Self::take_requests`] has something to do.
    #[must_use]
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.server {
            ServerState::Idle => Some(self.listener.as_fd()),
            ServerState::Running(server) => Some(server.wake.as_fd()),
            ServerState::Failed => None,
        }
    }

    /// The requests since the last call. A first client starts the server.
    pub(crate) fn take_requests(&mut self) -> Vec<ControlRequest> {
        if matches!(self.server, ServerState::Idle) && is_readable(self.listener.as_fd()) {
            self.server = start_server(&self.listener).unwrap_or_else(|error| {
                if self.spare.refuse_client(&self.listener) {
                    tracing::info!("a client of the control socket is refused: {error}");
                    return ServerState::Idle;
                }
                tracing::warn!("the control socket is not served: {error}");
                ServerState::Failed
            });
        }
        let ServerState::Running(server) = &self.server else { return Vec::new() };
        // Nonblocking: without a request there is nothing to read.
        let _ = server.wake.read();
        let mut requests = Vec::new();
        let end = loop {
            match server.requests.try_recv() {
                Ok(request) => requests.push(request),
                Err(end) => break end,
            }
        };
        if end == TryRecvError::Disconnected {
            self.server = ServerState::Failed;
        }
        requests
    }

    /// Lets the next client start a server that has failed: descriptors may be free again.
    pub(crate) fn retry_server(&mut self) {
        if matches!(self.server, ServerState::Failed) {
            self.server = ServerState::Idle;
        }
    }

    /// How many clients read events.
    #[must_use]
    pub(crate) fn event_readers(&self) -> usize {
        if let ServerState::Running(server) = &self.server { server.events.receiver_count() } else { 0 }
    }

    /// Sends an event to the clients that read events.
    pub(crate) fn publish(&self, generation: Generation, name: &str, text: String) {
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

fn start_server(listener: &UnixListener) -> io::Result<ServerState> {
    let listener = listener.try_clone()?;
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let (sender, requests) = sync_channel(MAX_WAITING_REQUESTS);
    let (events, _) = broadcast::channel(EVENT_BACKLOG);
    let (ended, is_ended) = watch::channel(());
    let (at_end, done) = channel();
    let job = JobLink {
        requests: sender,
        wake: Arc::clone(&wake),
        events: events.clone(),
        ended: is_ended,
        uid: rustix::process::geteuid().as_raw(),
        // The kernel gives the lowest number that is free.
        max_clients: client_limit(getrlimit(Resource::RLIMIT_NOFILE)?.0, wake.as_fd().as_raw_fd()),
        stacks_turn: Arc::default(),
    };
    let (runtime, spare) = (server::new_runtime()?, SpareDescriptor::open()?);
    let server = server::serve(listener, job, spare);
    let at_end = (Arc::clone(&wake), at_end);
    thread::Builder::new()
        .name("rankrun-control".to_owned())
        .spawn(move || run_server(runtime, server, at_end))?;
    Ok(ServerState::Running(RunningServer { requests, wake, events, ended, done }))
}

fn run_server(
    runtime: Runtime,
    server: impl Future<Output = io::Result<()>>,
    (wake, at_end): (Arc<EventFd>, Sender<()>),
) {
    if let Err(error) = server::run(runtime, server) {
        tracing::warn!("the control socket is not served: {error}");
    }
    drop(at_end);
    // The agent notices that the channel of requests is closed.
    let _ = wake.write(1);
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::control::protocol::ClientRequest;

    fn open(name: &str) -> ControlEndpoint {
        let root = std::env::temp_dir().join(format!("rankrun-endpoint-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let places = RuntimeFolders::of(Some(root.as_os_str()), None, 4_000_000_000);
        ControlEndpoint::open(&places, &JobId("00000000-0000-4000-8000-000000000000".to_owned())).unwrap()
    }

    fn close(endpoint: ControlEndpoint) {
        let folder = endpoint.close();
        folder.remove().unwrap();
        std::fs::remove_dir_all(folder.path.parent().unwrap().parent().unwrap()).unwrap();
    }

    /// The job answers a new client.
    fn expect_answer(endpoint: &mut ControlEndpoint) {
        let connect = |path: &std::path::Path| UnixStream::connect(path);
        let mut client = endpoint.folder.with_socket_path(connect).unwrap();
        client.write_all(ClientRequest::Stop.to_line().as_bytes()).unwrap();
        let request = loop {
            if let Some(request) = endpoint.take_requests().pop() {
                break request;
            }
        };
        let ControlRequest::Stop { reply, .. } = request else { panic!("{request:?}") };
        reply.send(Err("seen")).unwrap();
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).unwrap();
        assert!(line.contains("seen"), "{line}");
    }

    #[test]
    fn failed_server_is_not_polled_and_starts_at_the_next_try() {
        let mut endpoint = open("failed");
        endpoint.server = ServerState::Failed;
        assert!(endpoint.as_fd().is_none() && endpoint.take_requests().is_empty());
        endpoint.retry_server();
        expect_answer(&mut endpoint);
        // A running server stays.
        endpoint.retry_server();
        expect_answer(&mut endpoint);
        close(endpoint);
    }

    #[test]
    fn server_whose_thread_has_ended_has_failed() {
        let mut endpoint = open("ended");
        expect_answer(&mut endpoint);
        let ServerState::Running(server) = &mut endpoint.server else { panic!("a client was answered") };
        server.requests = channel().1;
        assert!(endpoint.take_requests().is_empty());
        assert!(matches!(endpoint.server, ServerState::Failed));
        endpoint.retry_server();
        expect_answer(&mut endpoint);
        close(endpoint);
    }
}
