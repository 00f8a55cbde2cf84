//! Opening a TCP connection over networks that lose packets, and over networks with a long round trip.

#![expect(clippy::disallowed_methods, reason = "how long is left is read from the clock")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

/// The pauses between two connection requests: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

/// The most connection requests that wait for an answer at once.
const MOST_REQUESTS: usize = 16;

/// Connects to an address. The kernel repeats a lost request only after a second, so another request follows earlier.
/// The first request that is answered wins: a long round trip costs its own time and no more.
///
/// # Errors
/// The address refuses, cannot be reached, or has not answered by `deadline`.
pub(super) fn open(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let mut requests = Vec::new();
    let (mut next, mut pause) = (Instant::now(), PAUSES.0);
    loop {
        let now = Instant::now();
        if now >= next && requests.len() < MOST_REQUESTS {
            requests.push(request(address)?);
            next = now + pause;
            pause = (pause * 2).min(PAUSES.1);
        }
        let until = if requests.len() < MOST_REQUESTS { next.min(deadline) } else { deadline };
        if let Some(answered) = wait(&requests, until)? {
            let stream = requests.swap_remove(answered);
            return match stream.take_error()? {
                None => Ok(stream),
                Some(error) => Err(error),
            };
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to a connection request"));
        }
    }
}

/// A socket whose connection request is on its way.
fn request(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// The index of a request that has an answer, or has failed; waits for it until then.
fn wait(requests: &[TcpStream], until: Instant) -> io::Result<Option<usize>> {
    let mut fds: Vec<PollFd<'_>> =
        requests.iter().map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLOUT)).collect();
    let left = until.saturating_duration_since(Instant::now());
    // Rounded up, so that the last millisecond is not spent in a spin.
    let millis = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
    match poll(&mut fds, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
        Ok(_) => Ok(fds.iter().position(|fd| fd.any().unwrap_or(false))),
        Err(Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn open_connects_to_listener_and_closed_port_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let within = || Instant::now() + Duration::from_secs(30);
        let stream = open(address, within()).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        drop(listener);
        let refused = open(address, within()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    /// A listener whose queue is full answers no request: the kernel drops it.
    #[test]
    fn open_to_silent_address_fails_at_deadline() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        nix::sys::socket::bind(listener.as_raw_fd(), &SockaddrStorage::from(any)).unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let listener = TcpListener::from(listener);
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(stream) = open(address, Instant::now() + Duration::from_millis(50)) {
            held.push(stream);
        }
        let began = Instant::now();
        let error = open(address, began + Duration::from_millis(400)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= Duration::from_millis(400));
    }
}
