//! Answers Hugging Face's `KubeflowCallback` in rank 0 over HTTP on the loopback, on a thread of its own. Each report
//! becomes a heartbeat in the FIFO of that worker, so hangs are found as with any program that sends heartbeats.
#![expect(clippy::disallowed_methods, reason = "a client has a time limit")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use uuid::Uuid;

use rankrun_core::hang::trainer_request::{Refusal, request_body};
use rankrun_core::hang::trainer_status::TrainerStatus;

/// A client that takes longer is left alone: another one may wait.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// After a failure, so that the loop does not spin.
const RETRY_TIME: Duration = Duration::from_millis(100);

/// The last report, once there is one.
pub(crate) type SharedTrainerStatus = Arc<Mutex<Option<TrainerStatus>>>;

/// The agent's end of the thread. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct TrainerServer {
    ended: Arc<EventFd>,
    status: SharedTrainerStatus,
}

impl TrainerServer {
    /// A free port of the loopback.
    pub(super) fn listen() -> io::Result<TcpListener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Writes a new token to the file `token`, and answers requests that have it. `heartbeats` is the worker's FIFO.
    ///
    /// # Errors
    /// The file cannot be made, or no descriptor or no thread is left.
    pub(super) fn start(listener: TcpListener, token: &Path, heartbeats: Arc<File>) -> io::Result<Self> {
        // One of them has 122 random bits.
        let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(token)?;
        file.write_all(secret.as_bytes())?;
        let ended = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let status = SharedTrainerStatus::default();
        let listening = ReportListener {
            listener,
            token: secret,
            heartbeats,
            ended: Arc::clone(&ended),
            status: Arc::clone(&status),
            bad_report: Once::new(),
        };
        thread::Builder::new().name("trainer-server".to_owned()).spawn(move || listening.run())?;
        Ok(Self { ended, status })
    }

    pub(super) fn status(&self) -> SharedTrainerStatus {
        Arc::clone(&self.status)
    }
}

impl Drop for TrainerServer {
    fn drop(&mut self) {
        let _ = self.ended.write(1);
    }
}

/// What the thread has. It is not printed: it has the token.
struct ReportListener {
    listener: TcpListener,
    token: String,
    /// Opened without blocking: where nothing reads it, a heartbeat is lost.
    heartbeats: Arc<File>,
    ended: Arc<EventFd>,
    status: SharedTrainerStatus,
    bad_report: Once,
}

impl ReportListener {
    fn run(self) {
        while self.wait_for(self.listener.as_fd(), None) {
            match self.listener.accept() {
                Ok((stream, _)) => self.answer(stream),
                Err(error) if is_transient(&error) => {}
                Err(_) if self.has_ended_after(RETRY_TIME) => return,
                Err(_) => {}
            }
        }
    }

    /// False at the end of the generation, and at the deadline.
    fn wait_for(&self, readable: BorrowedFd<'_>, deadline: Option<Instant>) -> bool {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            // Rounded up, so that the last millisecond does not spin.
            let timeout = left.map_or(PollTimeout::NONE, |left| {
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
            let mut fds = [readable, self.ended.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut fds, timeout) {
                Ok(_) if fds[1].any().unwrap_or(true) => return false,
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return true,
                Err(_) if self.has_ended_after(RETRY_TIME) => return false,
                Err(_) => {}
            }
        }
    }

    /// Waits for this time; true if the generation ends meanwhile.
    fn has_ended_after(&self, time: Duration) -> bool {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.ended.as_fd(), PollFlags::POLLIN)];
        let polled = poll(&mut fds, timeout);
        if polled.is_err() {
            thread::sleep(time);
        }
        polled.is_ok_and(|ready| ready > 0)
    }

    /// One request; the connection is closed behind it.
    fn answer(&self, mut stream: TcpStream) {
        let deadline = Instant::now() + REQUEST_TIME;
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut received = Vec::new();
        let status = loop {
            match request_body(&received, &self.token) {
                Ok(Some(body)) => break self.record(body),
                Ok(None) => {}
                Err(refusal) => break refusal.status(),
            }
            if !self.wait_for(stream.as_fd(), Some(deadline)) {
                return;
            }
            let mut chunk = [0; 16 << 10];
            match stream.read(&mut chunk) {
                Ok(0) => return,
                Ok(length) => received.extend_from_slice(&chunk[..length]),
                Err(error) if is_transient(&error) => {}
                Err(_) => return,
            }
        };
        // It fits into the socket's buffer, which is empty.
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
    }

    /// The words of the answer.
    fn record(&self, body: &[u8]) -> &'static str {
        let mut last = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        match TrainerStatus::parse(body, *last) {
            Ok(status) => {
                *last = Some(status);
                let _ = self.heartbeats.as_ref().write_all(status.heartbeat().as_bytes());
                "200 OK"
            }
            Err(error) => {
                let text = "is ignored, as are further bad ones";
                self.bad_report.call_once(|| tracing::warn!("a report of the Trainer {text}: {error}"));
                Refusal::BadRequest.status()
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
#[path = "trainer_server_tests.rs"]
mod tests;
