//! What both ends of a connection to a store ask of the kernel: no delay, and an end where the peer is silent.

use std::net::TcpStream;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

/// So often the kernel asks a peer that says nothing, before the connection is lost.
const QUESTIONS: u32 = 3;

/// Sends at once, and makes a connection fail on which the peer's kernel has acknowledged nothing for `silence`, whether
/// something is being sent (`TCP_USER_TIMEOUT`) or not (keep-alive).
pub(super) fn watch(stream: &TcpStream, silence: Duration) -> nix::Result<()> {
    // A request and its answer are a few bytes each way: waiting to fill a packet would cost 40 ms.
    setsockopt(stream, sockopt::TcpNoDelay, &true)?;
    let between = (silence / QUESTIONS).as_secs().clamp(1, 60);
    let between = u32::try_from(between).unwrap_or(1);
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &between)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &between)?;
    setsockopt(stream, sockopt::TcpKeepCount, &QUESTIONS)?;
    // Zero would mean the system's own: hours.
    let silence = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX).max(1);
    setsockopt(stream, sockopt::TcpUserTimeout, &silence)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::socket::getsockopt;

    use super::*;

    #[test]
    fn a_silent_peer_is_given_up_after_the_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (silence, millis, between) in
            [(15_000, 15_000, 5), (200, 200, 1), (0, 1, 1), (3_600_000, 3_600_000, 60)]
        {
            watch(&stream, Duration::from_millis(silence)).unwrap();
            assert_eq!(getsockopt(&stream, sockopt::TcpUserTimeout).unwrap(), millis);
            assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), between);
            assert_eq!(getsockopt(&stream, sockopt::TcpKeepInterval).unwrap(), between);
            assert_eq!(getsockopt(&stream, sockopt::TcpKeepCount).unwrap(), QUESTIONS);
            assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
            assert!(stream.nodelay().unwrap());
        }
    }
}
