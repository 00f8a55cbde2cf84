//! `poll` with a deadline.

use std::io;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout};

use crate::clock;

/// Waits for events until the deadline; returns how many descriptors have some.
pub(crate) fn poll(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<i32> {
    loop {
        let remaining = clock::until(deadline);
        // Rounded up: a timeout of zero milliseconds would spin through the last one.
        let milliseconds = remaining.as_nanos().div_ceil(1_000_000);
        let timeout = i32::try_from(milliseconds).unwrap_or(i32::MAX);
        match nix::poll::poll(fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
            Ok(0) if !remaining.is_zero() => {}
            Ok(ready) => return Ok(ready),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
