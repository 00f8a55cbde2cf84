//! The server of a control socket, as a future: it may run on any current-thread runtime. It owns no job state. It
//! asks the agent through a bounded channel, and rings the agent's eventfd.
//!
//! Every buffer has a bound: clients, request lines, waiting requests, events that a slow reader has not read.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::net::{SendFlags, SocketFlags, accept_with, send as send_bytes};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::protocol::{
    Accepted, ClientRequest, MAX_REQUEST_BYTES, Reply, ReplyLine, RequestError, parse_request,
};
use super::snapshot::JobSnapshot;
use crate::process::reserve::open_keeping_reserve;
use crate::stacks::{STACKS_TIMEOUT, StackMethod, StackTarget, take_stacks};

/// More clients at the same time are refused.
const MAX_CLIENTS: usize = 32;
/// More streams of events are refused: they have no time limit.
const MAX_EVENT_STREAMS: usize = 16;
/// Events that a slow reader may be behind.
pub(super) const EVENT_BACKLOG: usize = 256;
/// A client that sends no request, or does not read its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// A reader of events that may have gone is looked at this often.
const HANG_UP_CHECK: Duration = Duration::from_secs(1);
/// One for stacks, which may take two seconds, and one for all others.
const BLOCKING_CALLS: usize = 2;
/// Few descriptors are left: the next try comes after this time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// The answer to a request behind `events`.
const STREAMS_EVENTS: &str = "this connection reads events: connect again for another request";
/// When the job ends, readers of events have this long to read the last ones.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// A request to the agent, with the place for its answer.
#[derive(Debug)]
pub(crate) enum ControlRequest {
    /// The state of the job.
    Status(oneshot::Sender<Box<JobSnapshot>>),
    /// The workers whose stacks are to be taken.
    Stacks(oneshot::Sender<Vec<StackTarget>>),
    /// Stop the job.
    Stop {
        /// The pid of the client.
        client: Option<i32>,
        /// The answer.
        reply: oneshot::Sender<ControlReply>,
    },
    /// Restart the workers.
    Restart {
        /// The pid of the client.
        client: Option<i32>,
        /// The answer.
        reply: oneshot::Sender<ControlReply>,
    },
}

/// The agent's answer to a stop or restart: accepted, or the reason of the refusal.
pub(crate) type ControlReply = Result<Accepted, &'static str>;

/// What the server needs of a job.
#[derive(Debug, Clone)]
pub(super) struct JobLink {
    pub(super) requests: SyncSender<ControlRequest>,
    /// Wakes the agent's loop for a request.
    pub(super) wake: Arc<EventFd>,
    pub(super) events: broadcast::Sender<Arc<str>>,
    /// Closed at the end of the job.
    pub(super) ended: watch::Receiver<()>,
    /// The only user, besides root, that is answered.
    pub(super) uid: u32,
    /// Further ones are refused.
    pub(super) max_clients: usize,
    /// Held by the client whose request for stacks is being answered.
    pub(super) stacks_turn: Arc<tokio::sync::Mutex<()>>,
}

/// The most clients at the same time, by the limit of open files and the number that are open. The job keeps three
/// quarters of the rest: a restart needs descriptors for its workers.
pub(super) fn client_limit(max_open: u64, open: RawFd) -> usize {
    let free = max_open.saturating_sub(u64::try_from(open).unwrap_or_default());
    usize::try_from(free / 4).unwrap_or(MAX_CLIENTS).clamp(1, MAX_CLIENTS)
}

/// Answers clients until the job ends.
///
/// # Errors
/// The listener cannot be watched.
pub(super) async fn serve(
    listener: std::os::unix::net::UnixListener,
    job: JobLink,
    spare: SpareDescriptor,
) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let mut ended = job.ended.clone();
    let max_clients = job.max_clients;
    let clients = Arc::new(Semaphore::new(max_clients));
    let accepting = tokio::spawn(accept_clients(listener, job, spare, Arc::clone(&clients)));
    let _ = ended.changed().await;
    accepting.abort();
    let all = u32::try_from(max_clients).unwrap_or(u32::MAX);
    let _ = timeout(FLUSH_TIMEOUT, clients.acquire_many(all)).await;
    Ok(())
}

async fn accept_clients(
    listener: UnixListener,
    job: JobLink,
    mut spare: SpareDescriptor,
    clients: Arc<Semaphore>,
) {
    let streams = Arc::new(Semaphore::new(MAX_EVENT_STREAMS.min(job.max_clients.div_ceil(2))));
    loop {
        let Ok(stream) = poll_fn(|context| poll_accept(&listener, context)).await else {
            if !spare.refuse_client(&listener) {
                sleep(ACCEPT_PAUSE).await;
            }
            continue;
        };
        let Ok(credentials) = stream.peer_cred() else { continue };
        if credentials.uid() != job.uid && credentials.uid() != 0 {
            refuse(&stream, &Reply::Error("the job is another user's".to_owned()).to_line());
            continue;
        }
        let Ok(slot) = Arc::clone(&clients).try_acquire_owned() else {
            refuse(&stream, &ReplyLine::too_many_clients());
            continue;
        };
        let client =
            ControlClient { pid: credentials.pid(), job: job.clone(), streams: Arc::clone(&streams) };
        tokio::spawn(async move {
            client.serve(stream).await;
            drop(slot);
        });
    }
}

/// Accepts a client unless few descriptors are left.
fn poll_accept(listener: &UnixListener, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
    let accepted = open_keeping_reserve(|| match listener.poll_accept(context) {
        Poll::Ready(Ok((stream, _))) => Ok(Some(stream)),
        Poll::Ready(Err(error)) => Err(error),
        Poll::Pending => Ok(None),
    });
    accepted.transpose().map_or(Poll::Pending, Poll::Ready)
}

/// Without waiting: a new connection has an empty buffer.
fn refuse(stream: &UnixStream, line: &str) {
    let _ = stream.try_write(line.as_bytes());
}

/// A descriptor that is kept to tell a client that no other one is left.
#[derive(Debug, Default)]
pub(super) struct SpareDescriptor(Option<EventFd>);

impl SpareDescriptor {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(Some(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?)))
    }

    /// Refuses the next client of this nonblocking listener. False if there is none, or another thread was faster.
    pub(super) fn refuse_client(&mut self, listener: &impl AsFd) -> bool {
        self.0 = None;
        let refused = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map(|stream| {
            let _ = send_bytes(&stream, ReplyLine::too_many_clients().as_bytes(), SendFlags::NOSIGNAL);
        });
        *self = Self::open().unwrap_or_default();
        refused.is_ok()
    }
}

struct ControlClient {
    pid: Option<i32>,
    job: JobLink,
    streams: Arc<Semaphore>,
}

impl ControlClient {
    async fn serve(mut self, stream: UnixStream) {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::with_capacity(MAX_REQUEST_BYTES, reader);
        let mut ended = self.job.ended.clone();
        loop {
            let line = tokio::select! {
                line = timeout(CLIENT_TIMEOUT, read_request(&mut reader)) => line,
                _ = ended.changed() => return,
            };
            let Ok(Some(line)) = line else { return };
            // The job was stopped or full, and the client has reported a failure: nothing may happen later.
            if has_hung_up(reader.get_ref().as_ref()) {
                return;
            }
            let request = match parse_request(&line) {
                Ok(request) => request,
                Err(error) => {
                    send(&mut writer, Reply::Error(error.to_string())).await;
                    // The rest of a line that is too long is not read.
                    if error == RequestError::TooLong {
                        return;
                    }
                    continue;
                }
            };
            let reply = match request {
                ClientRequest::Events => return self.stream_events(reader, writer).await,
                ClientRequest::Status => self.status().await,
                ClientRequest::Stacks => self.stacks().await,
                ClientRequest::Stop => {
                    let client = self.pid;
                    self.ask(|reply| ControlRequest::Stop { client, reply }).await.map(reply_of)
                }
                ClientRequest::Restart => {
                    let client = self.pid;
                    self.ask(|reply| ControlRequest::Restart { client, reply }).await.map(reply_of)
                }
            };
            let reply = reply.unwrap_or_else(|reason| Reply::Error(reason.to_owned()));
            if !send(&mut writer, reply).await {
                return;
            }
        }
    }

    async fn status(&self) -> Result<Reply, &'static str> {
        let snapshot = self.ask(ControlRequest::Status).await?;
        // `/proc` and log files may block.
        let status = tokio::task::spawn_blocking(move || snapshot.complete()).await;
        status.map(|status| Reply::Status(Box::new(status))).map_err(|_| "the processes cannot be examined")
    }

    #[expect(clippy::disallowed_methods, reason = "the request has a limit of its own")]
    async fn stacks(&self) -> Result<Reply, &'static str> {
        let asked = Instant::now();
        // One at a time takes them, and those that wait get what it found.
        let _turn = self.job.stacks_turn.lock().await;
        let targets = self.ask(ControlRequest::Stacks).await?;
        // The workers' handlers take their time.
        let take = move || take_stacks(targets, StackMethod::Tools, asked, Instant::now() + STACKS_TIMEOUT);
        let stacks = tokio::task::spawn_blocking(take).await;
        stacks.map(Reply::Stacks).map_err(|_| "the stacks cannot be taken")
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> ControlRequest,
    ) -> Result<T, &'static str> {
        let (sender, answer) = oneshot::channel();
        match self.job.requests.try_send(request(sender)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err("too many requests are waiting; try again"),
            Err(TrySendError::Disconnected(_)) => return Err("the job has ended"),
        }
        // A full counter has not been read either.
        let _ = self.job.wake.write(1);
        answer.await.map_err(|_| "the job has ended")
    }

    async fn stream_events(&mut self, reader: BufReader<OwnedReadHalf>, mut writer: OwnedWriteHalf) {
        let Ok(_slot) = Arc::clone(&self.streams).try_acquire_owned() else {
            send(&mut writer, Reply::Error("too many clients read events; try again".to_owned())).await;
            return;
        };
        let mut events = self.job.events.subscribe();
        let mut request = pin!(next_request(reader));
        loop {
            let next = tokio::select! {
                biased;
                next = events.recv() => next,
                _ = self.job.ended.changed() => return,
                reader = &mut request => {
                    let Some(reader) = reader else { return };
                    if !send(&mut writer, Reply::Error(STREAMS_EVENTS.to_owned())).await {
                        return;
                    }
                    request.set(next_request(reader));
                    continue;
                }
            };
            match next {
                Ok(line) => {
                    if !send_line(&mut writer, &line).await {
                        return;
                    }
                }
                Err(RecvError::Lagged(lost)) => {
                    let last = format!("this reader is too slow: {lost} events are lost; connect again");
                    send(&mut writer, Reply::Error(last)).await;
                    return;
                }
                Err(RecvError::Closed) => return,
            }
        }
    }
}

fn reply_of(reply: ControlReply) -> Reply {
    reply.map_or_else(|reason| Reply::Error(reason.to_owned()), Reply::Accepted)
}

/// The next line without its end; `None` at the end of the connection.
async fn read_request(reader: &mut BufReader<OwnedReadHalf>) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let mut limited = reader.take(MAX_REQUEST_BYTES as u64 + 1);
    limited.read_until(b'\n', &mut line).await.ok().filter(|read| *read > 0)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Some(line)
}

/// The reader, after a request of a client that reads events; `None` once the client reads no more. A client that has
/// only ended its own side, as `socat` does, still reads.
async fn next_request(mut reader: BufReader<OwnedReadHalf>) -> Option<BufReader<OwnedReadHalf>> {
    if read_request(&mut reader).await.is_some() {
        return Some(reader);
    }
    while !has_hung_up(reader.get_ref().as_ref()) {
        sleep(HANG_UP_CHECK).await;
    }
    None
}

fn has_hung_up(stream: &UnixStream) -> bool {
    let mut stream = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let _ = poll(&mut stream, PollTimeout::ZERO);
    stream[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

async fn send(writer: &mut OwnedWriteHalf, reply: Reply) -> bool {
    send_line(writer, &reply.to_line()).await
}

/// False if the client does not read.
async fn send_line(writer: &mut OwnedWriteHalf, line: &str) -> bool {
    matches!(timeout(CLIENT_TIMEOUT, writer.write_all(line.as_bytes())).await, Ok(Ok(())))
}

/// The runtime of the server. It takes descriptors, and starts no thread.
///
/// # Errors
/// No descriptor is left.
pub(super) fn new_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_CALLS).build()
}

/// Runs the server on this thread.
///
/// # Errors
/// The error of the server.
pub(super) fn run(runtime: Runtime, server: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let result = runtime.block_on(server);
    // A read of a log file may hang.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
