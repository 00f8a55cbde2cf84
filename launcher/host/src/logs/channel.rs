//! The channel between a worker's stream and the launcher: a pipe, or a pseudo-terminal in place of the launcher's
//! terminal.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rankrun_contract::rank::LocalRank;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, OptionalActions, OutputModes, Winsize};

/// The most that a channel holds.
pub(super) const CAPACITY: i32 = 256 * 1024;
/// The bytes that a pseudo-terminal's buffer surely holds.
const TERMINAL_CAPACITY: usize = 4096;
/// A worker's terminal is not made narrower than this.
const MIN_COLUMNS: u16 = 40;

#[derive(Debug)]
pub(super) struct Channel {
    /// Reads without waiting; closes on exec.
    pub(super) reader: OwnedFd,
    pub(super) kind: ChannelKind,
    /// A read that gives this much or more may have found a full channel, and the worker in the middle of a write.
    pub(super) full_threshold: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChannelKind {
    Pipe,
    Terminal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeSize {
    /// [`CAPACITY`]: a flood needs fewer turns of worker and pump.
    Large,
    /// The kernel's default size of a pipe.
    Usual,
}

impl PipeSize {
    /// All pipes of a user share 64 MiB (pipe(7)); a job of many workers takes no more than a quarter of it for this.
    pub(super) const fn of(local_rank: LocalRank) -> Self {
        if local_rank.0 < 32 { Self::Large } else { Self::Usual }
    }
}

/// A pipe, and the worker's end of it, which closes on exec.
pub(super) fn pipe(size: PipeSize) -> Result<(Channel, OwnedFd), Errno> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    if size == PipeSize::Large {
        // A smaller one will do.
        let _ = fcntl(&reader, FcntlArg::F_SETPIPE_SZ(CAPACITY));
    }
    let capacity = fcntl(&reader, FcntlArg::F_GETPIPE_SZ)?.unsigned_abs() as usize;
    // A write takes pages of its own where it does not fit behind the one before: half empty pages are a full pipe.
    Ok((Channel { reader, kind: ChannelKind::Pipe, full_threshold: capacity / 2 }, writer))
}

/// A pseudo-terminal that changes no byte, and the worker's end of it. It does not become a controlling terminal: job
/// control stays with the launcher's own terminal.
pub(super) fn pseudo_terminal(size: Option<Winsize>) -> Result<(Channel, OwnedFd), rustix::io::Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let reader = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&reader)?;
    // By descriptor, since a container may have no `/dev/pts`, or another one.
    let writer = rustix::pty::ioctl_tiocgptpeer(&reader, flags)?;
    let mut modes = rustix::termios::tcgetattr(&writer)?;
    modes.output_modes.remove(OutputModes::OPOST);
    modes.local_modes.remove(LocalModes::ECHO);
    rustix::termios::tcsetattr(&writer, OptionalActions::Now, &modes)?;
    if let Some(size) = size {
        rustix::termios::tcsetwinsize(&reader, size)?;
    }
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((Channel { reader, kind: ChannelKind::Terminal, full_threshold: TERMINAL_CAPACITY / 2 }, writer))
}

/// The size that is left beside the label of rewritten lines, so that a progress bar fits; one column more stays free,
/// since a terminal goes to the next row in different ways.
pub(super) fn size_beside_label(mut size: Winsize, label: Option<&str>) -> Winsize {
    let taken = label.map_or(0, |label| label.chars().count() + 1);
    let columns = u16::try_from(usize::from(size.ws_col).saturating_sub(taken)).unwrap_or_default();
    if columns >= MIN_COLUMNS {
        size.ws_col = columns;
    }
    size
}

impl Channel {
    /// The launcher's terminal has this size now, so its pseudo-terminals get it too.
    pub(super) fn resize(&self, size: Winsize) {
        if self.kind == ChannelKind::Terminal {
            // A size is a courtesy.
            let _ = rustix::termios::tcsetwinsize(&self.reader, size);
        }
    }
}
