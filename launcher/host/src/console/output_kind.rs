//! What an output is, read once when the console is made: later its file system may not answer. Writes that are limited by
//! what the reader takes.
#![expect(clippy::disallowed_methods, reason = "limits how long it waits for a reader")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, statx};
use rustix::termios::isatty;

/// Delay before a write to a full terminal is tried again, in milliseconds.
const RETRY_MS: u8 = 1;

/// How an output takes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    Terminal,
    /// A pipe, or a device such as `/dev/null`.
    Pipe,
    Socket,
    /// A file of a disk or a file server. It is always ready, and a write may never return.
    File,
}

/// The kind of an output, and the same numbers for all descriptors of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutputFile {
    pub(super) kind: OutputKind,
    id: (u32, u32, u64),
}

impl OutputFile {
    /// Asks the kernel, and no file server (`AT_STATX_DONT_SYNC`).
    pub(super) fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let (mode, id) = match statx(fd, c"", flags, StatxFlags::TYPE | StatxFlags::INO) {
            Ok(found) => (found.stx_mode.into(), (found.stx_dev_major, found.stx_dev_minor, found.stx_ino)),
            // A container may forbid the call.
            Err(_) => {
                let found = fstat(fd)?;
                let device = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
                (found.st_mode, (device.0, device.1, found.st_ino))
            }
        };
        let kind = match FileType::from_raw_mode(mode) {
            FileType::CharacterDevice if isatty(fd) => OutputKind::Terminal,
            FileType::CharacterDevice | FileType::Fifo => OutputKind::Pipe,
            FileType::Socket => OutputKind::Socket,
            _ => OutputKind::File,
        };
        Ok(Self { kind, id })
    }
}

impl OutputKind {
    /// The kind of an open file; an unknown one is a [`Self::File`].
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> Self {
        OutputFile::of(fd).map_or(Self::File, |found| found.kind)
    }
}

/// Whether it is a terminal. A file server of a descriptor is not asked, as `isatty` would ask that of a FUSE file.
pub(crate) fn is_terminal(fd: BorrowedFd<'_>) -> bool {
    OutputKind::of(fd) == OutputKind::Terminal
}

/// Writes as long as the reader takes it within `at_most`, and returns how many bytes that was. Bytes without any
/// reader left count as written. A write to a [`OutputKind::File`] may take longer.
pub fn write_while_ready(fd: BorrowedFd<'_>, kind: OutputKind, bytes: &[u8], at_most: Duration) -> usize {
    let give_up = Instant::now() + at_most;
    let own = reopen_nonblocking(fd, kind);
    let fd = own.as_ref().map_or(fd, AsFd::as_fd);
    let mut written = 0;
    while written < bytes.len() {
        let remaining = give_up.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
        match poll(&mut fds, PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return bytes.len(),
        }
        // A pipe that is ready takes this much without waiting (pipe(7)).
        let piece = &bytes[written..bytes.len().min(written + libc::PIPE_BUF)];
        match nix::unistd::write(fd, piece) {
            Ok(count) => written += count,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if remaining.is_zero() => break,
            // The room was too small, or another process took it.
            Err(Errno::EAGAIN) => drop(poll(&mut [], PollTimeout::from(RETRY_MS))),
            Err(_) => return bytes.len(),
        }
    }
    written
}

/// The same terminal or pipe with a description of its own. A terminal that was stopped (Ctrl-S) is reported as ready
/// while it has room for one byte, and a longer write would wait. The description of `fd` belongs to other processes too.
pub(super) fn reopen_nonblocking(fd: BorrowedFd<'_>, kind: OutputKind) -> Option<OwnedFd> {
    // A file would lose its offset, and a socket cannot be opened.
    matches!(kind, OutputKind::Terminal | OutputKind::Pipe).then_some(())?;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// `false` for a pipe or terminal that no process reads any more.
pub(super) fn has_reader(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    let found = poll(&mut fds, PollTimeout::ZERO);
    found.is_ok() && !fds.iter().any(|fd| fd.revents().is_some_and(|events| events.intersects(gone)))
}
