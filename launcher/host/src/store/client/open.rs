//! Opens a TCP connection by a deadline, also over networks that lose packets or have a long round trip: a second
//! connection request starts before the first is given up. It sends nothing on the connection.

#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for the pauses between requests")]

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::sleep_until;

/// The pauses between two connection requests: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

/// The most connection requests that wait for an answer at once.
const MOST_REQUESTS: usize = 16;

/// A connection request that is on its way.
type ConnectRequest = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Connects to an address. The kernel repeats a lost request only after a second, so another request follows earlier.
/// The first request that is answered wins: a long round trip costs its own time and no more.
///
/// # Errors
/// The address refuses, cannot be reached, or has not answered by `deadline`.
pub(super) async fn open(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    // At once: a timer, even of no time, would take a millisecond.
    let mut requests: Vec<ConnectRequest> = vec![Box::pin(TcpStream::connect(address))];
    let mut pause = PAUSES.0;
    let mut next = Instant::now() + pause;
    loop {
        tokio::select! {
            biased;
            stream = first_answer(&mut requests) => return stream,
            () = sleep_until(next.into()), if requests.len() < MOST_REQUESTS && next <= deadline => {
                requests.push(Box::pin(TcpStream::connect(address)));
                pause = (pause * 2).min(PAUSES.1);
                next = Instant::now() + pause;
            }
            () = sleep_until(deadline.into()) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to a connection request"));
            }
        }
    }
}

/// The result of the first request that has one.
async fn first_answer(requests: &mut [ConnectRequest]) -> io::Result<TcpStream> {
    poll_fn(|context| {
        for request in requests.iter_mut() {
            if let Poll::Ready(answer) = request.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, socket,
    };

    use super::super::blocking::runtime;
    use super::*;

    #[test]
    fn open_connects_to_listener_and_closed_port_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = || runtime().block_on(open(address, Instant::now() + Duration::from_secs(30)));
        let stream = open().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        drop(listener);
        let refused = open().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    /// A listener whose queue is full answers no request: the kernel drops it.
    #[test]
    fn open_to_silent_address_fails_at_deadline() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        bind(listener.as_raw_fd(), &SockaddrStorage::from(any)).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let listener = TcpListener::from(listener);
        let address = listener.local_addr().unwrap();
        let runtime = runtime();
        let mut held = Vec::new();
        let soon = || Instant::now() + Duration::from_millis(50);
        while let Ok(stream) = runtime.block_on(open(address, soon())) {
            held.push(stream);
        }
        let began = Instant::now();
        let error = runtime.block_on(open(address, began + Duration::from_millis(400))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= Duration::from_millis(400));
    }
}
