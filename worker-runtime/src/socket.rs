//! Socket options that turn a silent partition into an error, and errors that are of this process alone.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};

/// After this much silence the kernel asks whether the other end still is there.
const IDLE: Duration = Duration::from_secs(10);
/// Pause between two questions.
const INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered questions after which the connection fails.
const QUESTIONS: u32 = 4;

/// Sends small messages at once, and notices after half a minute of silence that the machine of the other end
/// is gone, provided that nothing of ours is under way to it: that makes the kernel repeat it first, for about
/// a quarter of an hour, or for `unacknowledged` if it is given.
///
/// A peer that is alive and does not read for `unacknowledged` is given up likewise, so only one that always
/// reads at once may have it. It also takes the place of the count of questions, for which it must not be
/// longer than these take.
pub(crate) fn watch(stream: &TcpStream, unacknowledged: Option<Duration>) -> nix::Result<()> {
    setsockopt(stream, sockopt::TcpNoDelay, &true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &seconds(IDLE))?;
    setsockopt(stream, sockopt::TcpKeepInterval, &seconds(INTERVAL))?;
    setsockopt(stream, sockopt::TcpKeepCount, &QUESTIONS)?;
    let Some(time) = unacknowledged else { return Ok(()) };
    setsockopt(stream, sockopt::TcpUserTimeout, &u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Whether this process is what an attempt to connect failed of, not the other end: it may open nothing more, or the machine has no
/// memory for it (accept(2), socket(2), connect(2)).
pub(crate) fn is_own_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|code| shortages.contains(&Errno::from_raw(code)))
}
