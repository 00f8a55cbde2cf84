//! The agent's end of the connection: says hello, reads the launch, and stops the job when the other end says so or is
//! gone.
#![expect(unsafe_code, reason = "the environment of the process is set before it has a thread")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::thread;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, getsockname, setsockopt, socket, sockopt,
};
use nix::unistd::{dup2_stdin, getpid};

use crate::process::kill;
use crate::process::pid_of_nix;
use rankrun_core::posix::Signal;
use rankrun_core::ssh::protocol::{AgentFrame, FrameError, Hello, NodeLaunch, PROTOCOL};

/// Why an agent launches nothing.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The connection broke, or the launcher at its other end is gone.
    #[error("the launcher that started this agent by ssh is gone")]
    Connection(#[source] io::Error),
    /// The other end is not a launcher of this version.
    #[error("the launcher that started this agent by ssh cannot be understood")]
    Frame(#[from] FrameError),
    /// The working folder is not on this host.
    #[error("the working folder `{}` cannot be entered on this host", path.display())]
    Directory {
        /// The folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl NodeError {
    /// The one thing to do.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Connection(_) => "see the messages of the launcher there",
            Self::Frame(_) => "`rankrun --hosts` starts this agent; it is not for people",
            Self::Directory { .. } => {
                "start the job in a folder that each host has under the same path, such as one on a shared disk"
            }
        }
    }
}

/// The connection to the launcher that started this agent.
#[derive(Debug)]
pub struct Lifeline {
    frames: File,
    /// Keeps a port free for the store of the job: bound, and not listening.
    _port: Option<OwnedFd>,
}

/// Says hello, waits for the launch, and prepares this process for it: working folder, environment, and standard input,
/// which is empty for the workers. The words of the launch are the result.
///
/// Called before any thread exists.
///
/// # Errors
/// The other end is gone or is another program, or its working folder is not here.
pub fn receive_launch(version: &str) -> Result<(Vec<String>, Lifeline), NodeError> {
    let reserved = reserve_port().ok();
    let port = reserved.as_ref().map_or(0, |(_, port)| *port);
    let hello = Hello { protocol: PROTOCOL, version: version.to_owned(), port, machine: machine() };
    let mut stdout = io::stdout();
    stdout.write_all(&hello.line()).and_then(|()| stdout.flush()).map_err(NodeError::Connection)?;
    let mut frames = detach_stdin().map_err(NodeError::Connection)?;
    let NodeLaunch { directory, environment, words } = match read_frame(&mut frames)? {
        Some(AgentFrame::Launch(launch)) => launch,
        Some(AgentFrame::Stop { .. } | AgentFrame::Forward { .. }) | None => {
            return Err(NodeError::Connection(io::ErrorKind::UnexpectedEof.into()));
        }
    };
    std::env::set_current_dir(&directory)
        .map_err(|source| NodeError::Directory { path: directory.into(), source })?;
    for (name, value) in environment.iter().filter(|(name, value)| is_variable(name, value)) {
        // SAFETY: no other thread exists, so none reads the environment.
        unsafe { std::env::set_var(name, value) };
    }
    Ok((words, Lifeline { frames, _port: reserved.map(|(socket, _)| socket) }))
}

impl Lifeline {
    /// Stops this process's job when the other end says so or is gone. In the guard, after the agent was forked.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn watch(self) -> io::Result<()> {
        thread::Builder::new().name("ssh-lifeline".to_owned()).spawn(move || self.forward_signals())?;
        Ok(())
    }

    fn forward_signals(mut self) {
        let mut is_stopping = false;
        while let Ok(Some(frame)) = read_frame(&mut self.frames) {
            let (signal, stops) = match frame {
                AgentFrame::Stop { signal } => (signal, true),
                AgentFrame::Forward { signal } => (signal, false),
                AgentFrame::Launch(_) => break,
            };
            if let Some(signal) = Signal::ALL.into_iter().find(|known| *known as i32 == signal) {
                is_stopping |= stops;
                let _ = kill(pid_of_nix(getpid()), signal);
            }
        }
        // A job that stops has its grace, also when the user's launcher does not wait for it.
        if !is_stopping {
            let _ = kill(pid_of_nix(getpid()), Signal::SIGTERM);
        }
    }
}

/// The next frame; nothing at the end of the input.
fn read_frame(input: &mut impl Read) -> Result<Option<AgentFrame>, NodeError> {
    let mut header = [0; 4];
    match input.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read.map_err(NodeError::Connection)?,
    }
    let mut json = vec![0; AgentFrame::length_of(header)?];
    input.read_exact(&mut json).map_err(NodeError::Connection)?;
    Ok(Some(AgentFrame::decode(&json)?))
}

/// Standard input as a descriptor that no worker inherits; `/dev/null` takes its place.
fn detach_stdin() -> io::Result<File> {
    let frames = io::stdin().as_fd().try_clone_to_owned()?;
    dup2_stdin(File::open("/dev/null")?)?;
    Ok(frames.into())
}

/// A free port that no other program is given while the socket is open. The store of the job can listen on it, since both
/// sockets permit that (`SO_REUSEADDR`) and this one does not listen.
fn reserve_port() -> nix::Result<(OwnedFd, u16)> {
    let any: [SocketAddr; 2] = [(Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()];
    any.into_iter().map(bind_unused).find(Result::is_ok).unwrap_or(Err(Errno::EADDRNOTAVAIL))
}

fn bind_unused(address: SocketAddr) -> nix::Result<(OwnedFd, u16)> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let reserved = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&reserved, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&reserved, sockopt::Ipv6V6Only, &false)?;
    }
    bind(reserved.as_raw_fd(), &SockaddrStorage::from(address))?;
    let bound: SockaddrStorage = getsockname(reserved.as_raw_fd())?;
    let v6 = bound.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::port);
    let port = v6.or(bound.as_sockaddr_in().map(nix::sys::socket::SockaddrIn::port));
    Ok((reserved, port.ok_or(Errno::EADDRNOTAVAIL)?))
}

/// What tells this host from others; nothing where the kernel does not say it. Containers of one machine have namespaces of
/// their own.
fn machine() -> String {
    let namespace = |name: &&str| std::fs::read_link(format!("/proc/self/ns/{name}"));
    let kernel = |name: &&str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    // Machines that were copied while they ran have the same boot and the same numbers.
    let texts: io::Result<Vec<_>> = ["random/boot_id", "hostname"].iter().map(kernel).collect();
    let namespaces: io::Result<Vec<_>> = ["net", "pid", "uts"].iter().map(namespace).collect();
    match (texts, namespaces) {
        (Ok(texts), Ok(namespaces)) => {
            let namespaces = namespaces.iter().map(|link| link.to_string_lossy());
            texts.iter().map(|text| text.trim().into()).chain(namespaces).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

/// Whether the system takes it.
fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn reserved_port_is_given_to_store_alone() {
        let (_reserved, port) = reserve_port().unwrap();
        let (_other, another) = reserve_port().unwrap();
        assert_ne!(port, another);
        // The standard library sets SO_REUSEADDR, as the store does.
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
    }

    #[test]
    fn frames_are_read_until_end_of_input() {
        let stop = AgentFrame::Stop { signal: 15 };
        let bytes = stop.encode().unwrap();
        let mut input = &bytes[..];
        assert_eq!(read_frame(&mut input).unwrap(), Some(stop));
        assert_eq!(read_frame(&mut input).unwrap(), None);
        assert!(read_frame(&mut &bytes[..bytes.len() - 1]).is_err());
        assert!(read_frame(&mut &[0xff_u8; 8][..]).is_err());
    }
}
