//! Socket options that turn a silent partition into an error.

use std::net::TcpStream;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

/// After this much silence the kernel asks whether the other end still is there.
const IDLE: Duration = Duration::from_secs(10);
/// Pause between two questions.
const INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered questions after which the connection fails.
const QUESTIONS: u32 = 4;

/// Sends small messages at once and notices a peer that is gone without a word: after half a minute of
/// silence, and after `unacknowledged` if it leaves what we sent unanswered.
///
/// The kernel also ends a connection whose peer is alive but does not read for `unacknowledged`, so it must
/// be longer than a peer may be busy.
pub(crate) fn watch(stream: &TcpStream, unacknowledged: Duration) -> nix::Result<()> {
    setsockopt(stream, sockopt::TcpNoDelay, &true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &seconds(IDLE))?;
    setsockopt(stream, sockopt::TcpKeepInterval, &seconds(INTERVAL))?;
    setsockopt(stream, sockopt::TcpKeepCount, &QUESTIONS)?;
    let milliseconds = u32::try_from(unacknowledged.as_millis()).unwrap_or(u32::MAX / 2);
    setsockopt(stream, sockopt::TcpUserTimeout, &milliseconds)
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
