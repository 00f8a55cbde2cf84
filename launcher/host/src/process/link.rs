//! The messages between guard and agent: single-byte records over a socket pair. The end of the socket means the
//! death of the other process.
#![expect(unsafe_code, reason = "nix cannot set the owner of a pipe's signals")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::unistd::{getpid, pipe2};

use rankrun_core::exit_code::ExitStatus;

/// Messages from the guard to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToAgent {
    /// The guard received this signal; the agent handles it.
    Signal(i32),
    /// The terminal has changed its size.
    Resized,
    /// The guard is about to be stopped (Ctrl-Z): the agent stops all processes of the job, and answers.
    Suspend,
    /// The guard continues, and the job with it.
    Resume,
}

/// Messages from the agent to the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToGuard {
    /// The signal forwarded last was handled: the next one is a second one.
    Handled,
    /// The job has ended and its workers are gone: end with this status.
    Finish(ExitStatus),
    /// All processes of the job are stopped.
    Suspended,
}

/// The result of one read of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkMessage<T> {
    /// A message of the other process.
    Message(T),
    /// No message has arrived so far.
    Empty,
    /// The other process has closed its end.
    Closed,
}

/// One end of the socket pair between guard and agent.
#[derive(Debug)]
pub struct GuardLink {
    socket: OwnedFd,
    /// The agent's end of the [`lifeline`].
    _alive: Option<OwnedFd>,
}

const RECORD_LEN: usize = 2;

/// fcntl(2), which the libc crate has for musl alone.
const F_SETSIG: libc::c_int = 10;

/// Both ends, non-blocking and closed on exec.
///
/// # Errors
/// The kernel's refusal.
pub fn pair() -> io::Result<(GuardLink, GuardLink)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    Ok((GuardLink { socket: one, _alive: None }, GuardLink { socket: other, _alive: None }))
}

impl GuardLink {
    /// Holds an end of the `lifeline` too.
    #[must_use]
    pub fn with(self, alive: OwnedFd) -> Self {
        Self { _alive: Some(alive), ..self }
    }

    fn send(&self, record: [u8; RECORD_LEN]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), &record, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }

    fn receive(&self) -> LinkMessage<[u8; RECORD_LEN]> {
        let mut record = [0; RECORD_LEN];
        match recv(self.socket.as_raw_fd(), &mut record, MsgFlags::empty()) {
            Ok(RECORD_LEN) => LinkMessage::Message(record),
            Err(Errno::EAGAIN | Errno::EINTR) => LinkMessage::Empty,
            Ok(_) | Err(_) => LinkMessage::Closed,
        }
    }

    /// Guard's side: forwards a signal.
    ///
    /// # Errors
    /// The agent is gone, or has not read a great many signals.
    pub(crate) fn send_to_agent(&self, message: ToAgent) -> io::Result<()> {
        self.send(match message {
            ToAgent::Signal(number) => [b's', u8::try_from(number).unwrap_or_default()],
            ToAgent::Resized => [b'w', 0],
            ToAgent::Suspend => [b'z', 0],
            ToAgent::Resume => [b'g', 0],
        })
    }

    /// Guard's side: returns the next message, without waiting.
    #[must_use]
    pub(crate) fn receive_from_agent(&self) -> LinkMessage<ToGuard> {
        match self.receive() {
            LinkMessage::Message([b'h', _]) => LinkMessage::Message(ToGuard::Handled),
            LinkMessage::Message([b'z', _]) => LinkMessage::Message(ToGuard::Suspended),
            LinkMessage::Message([b'c', code]) => {
                LinkMessage::Message(ToGuard::Finish(ExitStatus::Code(code)))
            }
            LinkMessage::Message([b'k', signal]) => {
                LinkMessage::Message(ToGuard::Finish(ExitStatus::Signal(i32::from(signal))))
            }
            LinkMessage::Message(_) | LinkMessage::Closed => LinkMessage::Closed,
            LinkMessage::Empty => LinkMessage::Empty,
        }
    }

    /// Agent's side: tells the guard.
    ///
    /// # Errors
    /// The guard is gone.
    pub fn send_to_guard(&self, message: ToGuard) -> io::Result<()> {
        self.send(match message {
            ToGuard::Handled => [b'h', 0],
            ToGuard::Suspended => [b'z', 0],
            ToGuard::Finish(ExitStatus::Code(code)) => [b'c', code],
            ToGuard::Finish(ExitStatus::Signal(signal)) => [b'k', u8::try_from(signal).unwrap_or_default()],
        })
    }

    /// Agent's side: returns the next message, without waiting.
    #[must_use]
    pub(crate) fn receive_from_guard(&self) -> LinkMessage<ToAgent> {
        match self.receive() {
            LinkMessage::Message([b's', signal]) => LinkMessage::Message(ToAgent::Signal(i32::from(signal))),
            LinkMessage::Message([b'w', _]) => LinkMessage::Message(ToAgent::Resized),
            LinkMessage::Message([b'z', _]) => LinkMessage::Message(ToAgent::Suspend),
            LinkMessage::Message([b'g', _]) => LinkMessage::Message(ToAgent::Resume),
            LinkMessage::Message(_) | LinkMessage::Closed => LinkMessage::Closed,
            LinkMessage::Empty => LinkMessage::Empty,
        }
    }
}

/// The ends of a pipe that carries no data: the guard's, and the one that the agent alone has.
///
/// When the second is closed, the kernel sends SIGCONT, which nothing can hold up, to the process that made the pipe
/// (signal-driven IO, fcntl(2)). So a stopped guard is woken by the agent's end and by nothing else, whatever process
/// has stopped it.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn lifeline() -> io::Result<(OwnedFd, OwnedFd)> {
    let (watched, lifeline) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: both take a number and change only the owner and the flags of this pipe.
    let is_set = unsafe {
        libc::fcntl(watched.as_raw_fd(), F_SETSIG, libc::SIGCONT) == 0
            && libc::fcntl(watched.as_raw_fd(), libc::F_SETOWN, getpid().as_raw()) == 0
    };
    if !is_set {
        return Err(io::Error::last_os_error());
    }
    fcntl(&watched, FcntlArg::F_SETFL(OFlag::O_ASYNC))?;
    Ok((watched, lifeline))
}

impl AsFd for GuardLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_delivers_messages_and_reports_close() {
        let (guard, agent) = pair().unwrap();
        assert_eq!(agent.receive_from_guard(), LinkMessage::Empty);
        for message in [ToAgent::Signal(15), ToAgent::Resized, ToAgent::Suspend, ToAgent::Resume] {
            guard.send_to_agent(message).unwrap();
            assert_eq!(agent.receive_from_guard(), LinkMessage::Message(message));
        }
        for message in [
            ToGuard::Handled,
            ToGuard::Suspended,
            ToGuard::Finish(ExitStatus::Code(143)),
            ToGuard::Finish(ExitStatus::Signal(2)),
        ] {
            agent.send_to_guard(message).unwrap();
            assert_eq!(guard.receive_from_agent(), LinkMessage::Message(message));
        }
        drop(agent);
        assert_eq!(guard.receive_from_agent(), LinkMessage::Closed);
    }
}
