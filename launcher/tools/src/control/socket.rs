//! The client's end of a control socket: blocking, with limits.
#![expect(clippy::disallowed_methods, reason = "an answer has a deadline")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rankrun_core::posix::Pid;
use rankrun_host::control::folder::{ANSWER_TIMEOUT, JobFolder};
use rankrun_host::control::protocol::{ClientRequest, ErrorKind, Reply, ReplyLine};
use rankrun_host::process::proc::{open_parent, parent_of};

/// A status of a thousand ranks has 200 KiB; stacks have more, since each call has its file.
const MAX_REPLY_BYTES: u64 = 16 << 20;

/// Why a job gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens: the job has ended.
    #[error("the job has ended")]
    Ended,
    /// The job does not answer.
    #[error("the job does not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Silent,
    /// The job serves as many clients as it can.
    #[error("the job has too many clients")]
    Full,
    /// The connection failed.
    #[error("cannot talk to the job: {0}")]
    Io(io::Error),
    /// The answer is not of this protocol.
    #[error("the job's answer is not understood: {0}")]
    Answer(String),
    /// The job has refused.
    #[error("the job refuses: {0}")]
    Refused(String),
}

impl From<io::Error> for ControlError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Self::Ended,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Silent,
            _ => Self::Io(error),
        }
    }
}

/// When a command gives up on jobs that do not answer.
pub(super) fn answer_deadline() -> Instant {
    Instant::now() + ANSWER_TIMEOUT
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A connection to a job.
#[derive(Debug)]
pub(super) struct ControlConnection {
    reader: BufReader<TimedStream>,
}

/// A stream whose reads and writes end at the deadline.
#[derive(Debug)]
struct TimedStream {
    stream: UnixStream,
    deadline: Instant,
}

impl TimedStream {
    fn send(&self, line: &str) -> io::Result<()> {
        self.stream.set_write_timeout(Some(time_left(self.deadline)?))?;
        (&self.stream).write_all(line.as_bytes())
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.deadline)?))?;
        self.stream.read(buffer)
    }
}

impl ControlConnection {
    /// Connects to the job of this folder, which answers by the deadline.
    ///
    /// # Errors
    /// The job has ended, or its queue is full.
    pub(super) fn open(folder: &JobFolder, deadline: Instant) -> Result<Self, ControlError> {
        let stream = folder.connect(time_left(deadline)?)?;
        Ok(Self { reader: BufReader::new(TimedStream { stream, deadline }) })
    }

    /// A handle of the job's launcher, readable at its end. `None` if the launcher runs in another pid namespace, or if its
    /// end would be ours too (PID 1 of a container).
    pub(super) fn launcher(&self, launcher_pid: i32) -> Option<OwnedFd> {
        let agent = self.agent_pid()?;
        (launcher_pid > 1).then(|| open_parent(Pid::from_raw(launcher_pid), agent)).flatten()
    }

    /// The pid of the job's launcher as the kernel knows it, for a job that does not answer.
    pub(super) fn launcher_pid(&self) -> Option<i32> {
        self.agent_pid().and_then(parent_of).map(Pid::as_raw)
    }

    fn agent_pid(&self) -> Option<Pid> {
        let credentials = getsockopt(&self.reader.get_ref().stream, PeerCredentials).ok()?;
        // 0 in a pid namespace that does not see the agent.
        Some(credentials.pid()).filter(|pid| *pid > 0).map(Pid::from_raw)
    }

    /// Sends a request and returns its first answer.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(super) fn ask(&mut self, request: ClientRequest) -> Result<Reply, ControlError> {
        // A job that has no room for a client says so, and closes before it reads.
        let sent = self.reader.get_ref().send(&request.to_line());
        match (self.next_reply(), sent) {
            (Ok(Some(reply)), _) => Ok(reply),
            (Ok(None), _) => Err(ControlError::Ended),
            (Err(ControlError::Io(_)), Err(error)) => Err(error.into()),
            (Err(error), _) => Err(error),
        }
    }

    /// Returns at the end of the job, which closes the connection. The server closes a client that asks nothing: this one
    /// asks whenever it has heard nothing for so long.
    ///
    /// # Errors
    /// The job has no place for this client any more.
    pub(super) fn wait_for_end(mut self, folder: &JobFolder, silence: Duration) -> Result<(), ControlError> {
        let mut is_silent = false;
        loop {
            self.reader.get_mut().deadline = Instant::now() + silence;
            if std::mem::take(&mut is_silent) {
                // A connection that has failed shows it at the next read.
                let _ = self.reader.get_ref().send(&ClientRequest::Status.to_line());
            }
            match self.next_reply() {
                Ok(Some(_)) | Err(ControlError::Answer(_) | ControlError::Refused(_)) => {}
                Err(ControlError::Silent) => is_silent = true,
                Err(ControlError::Full) => return Err(ControlError::Full),
                // The server of a job that ends closes the connections before its socket.
                Ok(None) | Err(ControlError::Ended | ControlError::Io(_)) => {
                    match Self::open(folder, answer_deadline()) {
                        Ok(again) => self = again,
                        Err(ControlError::Ended) => return Ok(()),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// The next line; `None` at the end of the connection.
    ///
    /// # Errors
    /// No line within the limit, or one that is not understood.
    fn next_reply(&mut self) -> Result<Option<Reply>, ControlError> {
        let mut line = Vec::new();
        (&mut self.reader).take(MAX_REPLY_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let read: ReplyLine =
            serde_json::from_slice(&line).map_err(|error| ControlError::Answer(error.to_string()))?;
        match (read.reply, read.kind) {
            (Reply::Error(_), Some(ErrorKind::TooManyClients)) => Err(ControlError::Full),
            (Reply::Error(refusal), _) => Err(ControlError::Refused(refusal)),
            (reply, _) => Ok(Some(reply)),
        }
    }
}
