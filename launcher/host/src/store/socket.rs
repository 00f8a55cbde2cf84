//! Socket options of both ends of a store connection: no delay, early retransmission, and an end of the connection to
//! a silent peer.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
// The last of them is made of the others.
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// A stream with few packets under way sends a lost one again and again after the same time, six times long
    /// (`TCP_THIN_LINEAR_TIMEOUTS`, tcp(7) of Linux 2.6.34).
    ThinLinearTimeouts,
    Both,
    libc::IPPROTO_TCP,
    libc::TCP_THIN_LINEAR_TIMEOUTS,
    bool
);

sockopt_impl!(
    /// The kernel's measurements of a connection (`TCP_INFO`, tcp(7)).
    ConnectionInfo,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info
);

/// The kernel's smoothed round-trip time (RFC 6298); zero where it has measured none.
pub(super) fn round_trip(stream: &impl AsFd) -> Duration {
    getsockopt(stream, ConnectionInfo)
        .map_or(Duration::ZERO, |info| Duration::from_micros(info.tcpi_rtt.into()))
}

/// The number of keepalive probes to a silent peer, before the connection is lost: a few may all be lost on the way,
/// although the peer lives.
const KEEPALIVE_PROBES: u32 = 6;

/// Sends at once, and makes a connection fail on which the peer's kernel has acknowledged nothing for `silence`, whether
/// something is being sent (`TCP_USER_TIMEOUT`) or not (keep-alive).
pub(super) fn set_peer_timeout(stream: &impl AsFd, silence: Duration) -> nix::Result<()> {
    // A request and its answer are a few bytes each way: waiting to fill a packet would cost 40 ms.
    setsockopt(stream, sockopt::TcpNoDelay, &true)?;
    // Of a request and its answer no later packet tells that one was lost: only time does, and that would double with
    // every loss, to seconds after a few.
    setsockopt(stream, ThinLinearTimeouts, &true)?;
    let between = (silence / KEEPALIVE_PROBES).as_secs().clamp(1, 60);
    let between = u32::try_from(between).unwrap_or(1);
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &between)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &between)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    // Zero would mean the system's own: hours.
    let silence = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX).max(1);
    setsockopt(stream, sockopt::TcpUserTimeout, &silence)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn loopback_connection_has_short_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let measured = round_trip(&stream);
        assert!(!measured.is_zero() && measured < Duration::from_secs(10), "{measured:?}");
    }

    #[test]
    fn silence_sets_tcp_timeout_and_keepalive() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (silence, millis, between) in
            [(15_000, 15_000, 2), (200, 200, 1), (0, 1, 1), (3_600_000, 3_600_000, 60)]
        {
            set_peer_timeout(&stream, Duration::from_millis(silence)).unwrap();
            assert_eq!(getsockopt(&stream, sockopt::TcpUserTimeout).unwrap(), millis);
            assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), between);
            assert_eq!(getsockopt(&stream, sockopt::TcpKeepInterval).unwrap(), between);
            assert_eq!(getsockopt(&stream, sockopt::TcpKeepCount).unwrap(), KEEPALIVE_PROBES);
            assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
            assert!(getsockopt(&stream, ThinLinearTimeouts).unwrap());
            assert!(stream.nodelay().unwrap());
        }
    }
}
