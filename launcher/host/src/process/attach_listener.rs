//! The socket between the agent and the wrapper of the worker that a person starts.
//!
//! A socket of records with an abstract name (unix(7)): nothing stays in the file system, and a name of any length of
//! log folder fits. The agent takes one caller at a time, of its own user. The connection ends with the wrapper,
//! however that dies, so no end goes unseen.
//!
//! ```text
//! wrapper                          agent
//!                    ◄──  w  ───   welcome: start it now           or  r TEXT: refused
//!            ───  b  ──►           it is about to be started
//!            ───  s PID  ──►       it was started                  or  n: it cannot be
//!            ───  e EXIT  ──►      it has ended: `code N` or `signal N`, with `core` behind it for a core file
//!                    ◄── x TEXT    the agent does not wait for it any more
//! ```

#![expect(unsafe_code, reason = "nix's accept4 returns a bare number")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials, accept4, bind, connect,
    getsockopt, listen, recv, send, socket,
};
use rankrun_core::posix::Pid;
use uuid::Uuid;

use rankrun_contract::rank::JobId;

use rankrun_core::placement::WorkerId;
use rankrun_core::posix::Exit;

/// The longest record: a line of text.
const MAX_RECORD_LEN: usize = 1024;

/// A report of the wrapper about the worker that is started by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttachReport {
    /// The wrapper started the worker with this pid.
    Started(Pid),
    /// The worker ended, as its wrapper reports.
    Ended {
        /// The process id of the worker.
        pid: Pid,
        /// How the worker ended: exit code or signal.
        exit: Exit,
    },
}

/// The agent's side: the listening socket and its one caller.
#[derive(Debug)]
pub(crate) struct AttachListener {
    /// `None` once the kernel does not accept connections any more.
    listener: Option<OwnedFd>,
    client: AttachClient,
    /// The reason for refusing callers, once the agent refuses them.
    closed: Option<String>,
}

#[derive(Debug)]
enum AttachClient {
    NotConnected,
    /// A wrapper that has not started its worker yet.
    Expected(OwnedFd),
    /// A wrapper that may or may not have started its worker.
    Starting(OwnedFd),
    /// A wrapper with a running worker.
    Running(OwnedFd, Pid),
    Done,
}

/// The name of the socket for the wrapper of a worker. Each generation gets another name. It is random: every user of
/// the machine sees the names in use, and must not be able to take the next one first.
#[must_use]
pub(crate) fn socket_name(job: &JobId, worker: WorkerId) -> String {
    format!("rankrun/{job}/{}/{}/{}", worker.generation, worker.local_rank, Uuid::new_v4().simple())
}

impl AttachListener {
    /// Waits for a wrapper from now on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let listener = new_socket(SockFlag::SOCK_NONBLOCK)?;
        bind(listener.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        listen(&listener, Backlog::new(4)?)?;
        let listener = Some(listener);
        Ok(Self { listener, client: AttachClient::NotConnected, closed: None })
    }

    /// Readable when [`Self::receive`] has something to do.
    pub(crate) fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let caller = match &self.client {
            AttachClient::Expected(caller)
            | AttachClient::Starting(caller)
            | AttachClient::Running(caller, _) => Some(caller.as_fd()),
            AttachClient::NotConnected | AttachClient::Done => None,
        };
        self.listener.iter().map(AsFd::as_fd).chain(caller)
    }

    /// Accepts or refuses callers, and returns the reports of the worker, in order. Never waits.
    pub(crate) fn receive(&mut self) -> Vec<AttachReport> {
        let mut reported = Vec::new();
        // First, so that a caller that arrives after another one's end gets an answer.
        while let Some(report) = self.next_report() {
            reported.push(report);
        }
        while let Some(caller) = self.accept() {
            self.answer_client(caller);
        }
        reported
    }

    fn accept(&mut self) -> Option<OwnedFd> {
        loop {
            let listener = self.listener.as_ref()?;
            match accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
                // SAFETY: the kernel has just opened this descriptor for us.
                Ok(caller) => return Some(unsafe { OwnedFd::from_raw_fd(caller) }),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(Errno::EAGAIN) => return None,
                Err(errno) => {
                    tracing::warn!("the worker that is left out cannot be started any more: {errno}");
                    self.listener = None;
                }
            }
        }
    }

    /// Tells the wrapper, now or later, that the agent does not wait for this worker any more. Later reports are
    /// still read.
    pub(crate) fn release_worker(&mut self, reason: &str) {
        match &self.client {
            AttachClient::Expected(caller) => send_record(caller, b'r', reason),
            AttachClient::Starting(caller) | AttachClient::Running(caller, _) => {
                send_record(caller, b'x', reason)
            }
            AttachClient::NotConnected | AttachClient::Done => {}
        }
        self.closed = Some(reason.to_owned());
    }

    fn answer_client(&mut self, client: OwnedFd) {
        let is_ours = is_peer_own_user(&client);
        let refusal = match (&self.closed, &self.client) {
            _ if !is_ours => Some("the launcher belongs to another user".to_owned()),
            (Some(why), _) => Some(why.clone()),
            (None, AttachClient::NotConnected) => None,
            (None, AttachClient::Expected(_) | AttachClient::Starting(_)) => {
                Some("another process starts this worker at the moment".to_owned())
            }
            (None, AttachClient::Running(_, pid)) => Some(format!("this worker runs already, as pid {pid}")),
            (None, AttachClient::Done) => Some("this worker has run already".to_owned()),
        };
        match refusal {
            Some(why) => send_record(&client, b'r', &why),
            None => {
                send_record(&client, b'w', "");
                self.client = AttachClient::Expected(client);
            }
        }
    }

    fn next_report(&mut self) -> Option<AttachReport> {
        loop {
            let received = match &self.client {
                AttachClient::Expected(caller)
                | AttachClient::Starting(caller)
                | AttachClient::Running(caller, _) => receive(caller.as_fd()),
                AttachClient::NotConnected | AttachClient::Done => return None,
            };
            if received == AttachMessage::Empty {
                return None;
            }
            let (caller, reported) =
                handle_message(std::mem::replace(&mut self.client, AttachClient::NotConnected), &received);
            self.client = caller;
            if reported.is_some() {
                return reported;
            }
        }
    }
}

/// The caller's next state, after it sent a record or closed the connection.
fn handle_message(client: AttachClient, received: &AttachMessage) -> (AttachClient, Option<AttachReport>) {
    // A wrapper that is killed takes its worker with it.
    let killed = Exit::Signal { number: libc::SIGKILL, core_dumped: false };
    match (client, received) {
        (AttachClient::Expected(fd), AttachMessage::Record(b'b', _)) => (AttachClient::Starting(fd), None),
        // Another wrapper may try again.
        (AttachClient::Expected(_), _) | (AttachClient::Starting(_), AttachMessage::Record(b'n', _)) => {
            (AttachClient::NotConnected, None)
        }
        (AttachClient::Starting(fd), AttachMessage::Record(b's', text)) => {
            let pid = Pid::from_raw(text.parse().unwrap_or_default());
            (AttachClient::Running(fd, pid), Some(AttachReport::Started(pid)))
        }
        (AttachClient::Starting(fd), _) => {
            let pid = Pid::from_raw(peer_credentials(&fd).map_or(0, |wrapper| wrapper.pid()));
            (AttachClient::Done, Some(AttachReport::Ended { pid, exit: killed }))
        }
        (AttachClient::Running(_, pid), AttachMessage::Record(b'e', text)) => {
            let exit = parse_exit(text).unwrap_or(Exit::Code(1));
            (AttachClient::Done, Some(AttachReport::Ended { pid, exit }))
        }
        (AttachClient::Running(_, pid), _) => {
            (AttachClient::Done, Some(AttachReport::Ended { pid, exit: killed }))
        }
        (caller @ (AttachClient::NotConnected | AttachClient::Done), _) => (caller, None),
    }
}

/// Whether the other side is our user's, or root's.
fn is_peer_own_user(other: &OwnedFd) -> bool {
    let own = rustix::process::getuid().as_raw();
    peer_credentials(other).is_some_and(|peer| peer.uid() == own || peer.uid() == 0)
}

fn peer_credentials(client: &OwnedFd) -> Option<UnixCredentials> {
    getsockopt(client, PeerCredentials).ok()
}

/// The result of one read of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttachMessage {
    Record(u8, String),
    Empty,
    Closed,
}

/// The wrapper's side: connects to the agent that listens at `name`.
///
/// # Errors
/// No agent of this user listens there. After the agent's end any user can take the name.
pub(super) fn connect_to_agent(name: &str) -> io::Result<OwnedFd> {
    let agent = new_socket(SockFlag::empty())?;
    connect(agent.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    // Root may start a worker of any user.
    if !is_peer_own_user(&agent) && !rustix::process::getuid().is_root() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(agent)
}

/// The wrapper's side: how its worker ended.
pub(super) fn send_exit(agent: &impl AsFd, exit: Exit) {
    let text = match exit {
        Exit::Code(code) => format!("code {code}"),
        Exit::Signal { number, core_dumped: false } => format!("signal {number}"),
        Exit::Signal { number, core_dumped: true } => format!("signal {number} core"),
    };
    send_record(agent, b'e', &text);
}

fn parse_exit(text: &str) -> Option<Exit> {
    let fields: Vec<&str> = text.split(' ').collect();
    match fields.as_slice() {
        ["code", code] => Some(Exit::Code(code.parse().ok()?)),
        ["signal", number] => Some(Exit::Signal { number: number.parse().ok()?, core_dumped: false }),
        ["signal", number, "core"] => Some(Exit::Signal { number: number.parse().ok()?, core_dumped: true }),
        _ => None,
    }
}

/// The next record, waiting for it where the socket is one that waits.
pub(super) fn receive(from: BorrowedFd<'_>) -> AttachMessage {
    let mut record = [0; MAX_RECORD_LEN];
    loop {
        return match recv(from.as_raw_fd(), &mut record, MsgFlags::empty()) {
            Ok(length @ 1..) => {
                AttachMessage::Record(record[0], String::from_utf8_lossy(&record[1..length]).into_owned())
            }
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN) => AttachMessage::Empty,
            Ok(_) | Err(_) => AttachMessage::Closed,
        };
    }
}

/// One record; a side that is gone is noticed by the next look.
pub(super) fn send_record(to: &impl AsFd, kind: u8, text: &str) {
    let end = text.floor_char_boundary(MAX_RECORD_LEN - 1);
    let record = [&[kind], &text.as_bytes()[..end]].concat();
    let _ = send(to.as_fd().as_raw_fd(), &record, MsgFlags::MSG_NOSIGNAL);
}

fn new_socket(flags: SockFlag) -> io::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_contract::rank::{Generation, LocalRank};

    /// A door of this test alone.
    fn open_listener(test: u32) -> (AttachListener, String) {
        let worker = WorkerId { generation: Generation(test), local_rank: LocalRank(1) };
        let name = socket_name(&JobId(std::process::id().to_string()), worker);
        (AttachListener::open(&name).unwrap(), name)
    }

    /// Connects, and returns the agent's answer.
    fn connect_client(listener: &mut AttachListener, name: &str) -> (OwnedFd, AttachMessage) {
        let wrapper = connect_to_agent(name).unwrap();
        assert_eq!(listener.receive(), []);
        let answer = receive(wrapper.as_fd());
        (wrapper, answer)
    }

    const PID: Pid = Pid::from_raw(42);

    #[test]
    fn attached_worker_reports_start_and_exit() {
        let (mut listener, name) = open_listener(0);
        let (wrapper, answer) = connect_client(&mut listener, &name);
        assert_eq!(answer, AttachMessage::Record(b'w', String::new()));
        send_record(&wrapper, b'b', "");
        send_record(&wrapper, b's', "42");
        send_exit(&wrapper, Exit::Code(3));
        let ended = AttachReport::Ended { pid: PID, exit: Exit::Code(3) };
        assert_eq!(listener.receive(), [AttachReport::Started(PID), ended]);
        assert!(
            matches!(connect_client(&mut listener, &name).1, AttachMessage::Record(b'r', text) if text.contains("has run"))
        );
    }

    #[test]
    fn wrapper_killed_after_start_is_reported_as_exit() {
        let (mut listener, name) = open_listener(1);
        let (wrapper, _) = connect_client(&mut listener, &name);
        send_record(&wrapper, b'b', "");
        send_record(&wrapper, b's', "42");
        assert_eq!(listener.receive(), [AttachReport::Started(PID)]);
        drop(wrapper);
        let exit = Exit::Signal { number: libc::SIGKILL, core_dumped: false };
        assert_eq!(listener.receive(), [AttachReport::Ended { pid: PID, exit }]);
        assert_eq!(listener.receive(), []);
    }

    #[test]
    fn failed_attach_can_be_repeated() {
        let (mut listener, name) = open_listener(2);
        let (gone_before, _) = connect_client(&mut listener, &name);
        drop(gone_before);
        let (wrapper, answer) = connect_client(&mut listener, &name);
        assert_eq!(answer, AttachMessage::Record(b'w', String::new()));
        send_record(&wrapper, b'b', "");
        send_record(&wrapper, b'n', "");
        assert_eq!(connect_client(&mut listener, &name).1, AttachMessage::Record(b'w', String::new()));
    }

    #[test]
    fn wrapper_killed_during_start_is_reported_as_exit() {
        let (mut listener, name) = open_listener(5);
        let (wrapper, _) = connect_client(&mut listener, &name);
        send_record(&wrapper, b'b', "");
        drop(wrapper);
        let exit = Exit::Signal { number: libc::SIGKILL, core_dumped: false };
        let pid = crate::process::own_pid();
        assert_eq!(listener.receive(), [AttachReport::Ended { pid, exit }]);
    }

    #[test]
    fn socket_name_is_random() {
        let worker = WorkerId { generation: Generation(1), local_rank: LocalRank(0) };
        let name = || socket_name(&JobId("job".to_owned()), worker);
        assert_ne!(name(), name());
    }

    #[test]
    fn second_attach_is_refused() {
        let (mut listener, name) = open_listener(3);
        let (wrapper, _) = connect_client(&mut listener, &name);
        assert!(
            matches!(connect_client(&mut listener, &name).1, AttachMessage::Record(b'r', text) if text.contains("another process"))
        );
        send_record(&wrapper, b'b', "");
        send_record(&wrapper, b's', "42");
        assert_eq!(listener.receive(), [AttachReport::Started(PID)]);
        assert!(
            matches!(connect_client(&mut listener, &name).1, AttachMessage::Record(b'r', text) if text.contains("pid 42"))
        );
    }

    #[test]
    fn released_wrapper_gets_reason_and_can_still_report_exit() {
        let (mut listener, name) = open_listener(4);
        let (wrapper, _) = connect_client(&mut listener, &name);
        send_record(&wrapper, b'b', "");
        send_record(&wrapper, b's', "42");
        assert_eq!(listener.receive(), [AttachReport::Started(PID)]);
        listener.release_worker("rank 0 failed");
        assert_eq!(receive(wrapper.as_fd()), AttachMessage::Record(b'x', "rank 0 failed".to_owned()));
        let exit = Exit::Signal { number: libc::SIGSEGV, core_dumped: true };
        send_exit(&wrapper, exit);
        assert_eq!(listener.receive(), [AttachReport::Ended { pid: PID, exit }]);
        let refused = AttachMessage::Record(b'r', "rank 0 failed".to_owned());
        assert_eq!(connect_client(&mut listener, &name).1, refused);
        drop(listener);
        assert!(connect_to_agent(&name).is_err());
    }
}
