//! Socket options that turn a silent partition into an error, and errors caused by this process itself.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};

/// Silence after which the kernel probes the other end.
const IDLE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered probes after which the connection fails.
const PROBE_COUNT: u32 = 4;

/// Sends small messages at once, and detects after half a minute of silence that the other
/// machine is gone. Data under way to it delays that: the kernel repeats it for about a quarter
/// of an hour, or for `unacknowledged`.
///
/// A live peer that does not read for `unacknowledged` is given up as well, so only peers that always read
/// may have it. It also replaces the count of probes and must not exceed their total time.
pub(crate) fn enable_keepalive(stream: &TcpStream, unacknowledged: Option<Duration>) -> nix::Result<()> {
    setsockopt(stream, sockopt::TcpNoDelay, &true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &seconds(IDLE))?;
    setsockopt(stream, sockopt::TcpKeepInterval, &seconds(INTERVAL))?;
    setsockopt(stream, sockopt::TcpKeepCount, &PROBE_COUNT)?;
    let Some(time) = unacknowledged else { return Ok(()) };
    setsockopt(stream, sockopt::TcpUserTimeout, &u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Whether this process or its machine caused a failed connection: it may open nothing more, or has no
/// memory for it (accept(2), socket(2), connect(2)).
pub(crate) fn is_own_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|code| shortages.contains(&Errno::from_raw(code)))
}
