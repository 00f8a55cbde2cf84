//! What stands between a worker's stream and us: a pipe, or a pseudo-terminal in place of our terminal.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, OptionalActions, OutputModes, Winsize};

/// The two ends; both close on exec.
#[derive(Debug)]
pub(super) struct Channel {
    /// Ours: reads without waiting.
    pub(super) reader: OwnedFd,
    /// The worker's.
    pub(super) writer: OwnedFd,
}

/// A pipe.
pub(super) fn pipe() -> Result<Channel, Errno> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(Channel { reader, writer })
}

/// A pseudo-terminal that changes no byte. It becomes nobody's controlling terminal: ours has the job control.
pub(super) fn pseudo_terminal(size: Option<Winsize>) -> Result<Channel, rustix::io::Errno> {
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
        resize(&reader, size)?;
    }
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok(Channel { reader, writer })
}

/// Gives a pseudo-terminal the size of the terminal that it stands for.
pub(super) fn resize(reader: &OwnedFd, size: Winsize) -> Result<(), rustix::io::Errno> {
    rustix::termios::tcsetwinsize(reader, size)
}
