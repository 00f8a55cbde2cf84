//! The terminal during `--watch`: keys are read at once, and its settings are restored on every exit.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use rankrun_host::console::{OutputKind, write_while_ready};

use super::frame::{ENTER, LEAVE, Size};

/// The longest wait for a terminal that has stopped showing output.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The terminal as we use it; dropping it puts everything back.
pub(super) struct Terminal {
    input: io::Stdin,
    output: OwnedFd,
    /// The modes that were found, while they are not in force; none where we are not typed to.
    modes: Option<Termios>,
    /// Whether our snapshot is on it.
    is_taken: bool,
}

impl Terminal {
    /// The terminal as it is; [`Self::take`] makes it ours.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { input: io::stdin(), output: nonblocking_output()?, modes: None, is_taken: false })
    }

    /// Takes it over.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn take(&mut self) -> io::Result<()> {
        if let Ok(found) = tcgetattr(&self.input) {
            let mut modes = found.clone();
            // Ctrl-C and Ctrl-Z stay signals: they reach a probe that hangs as well.
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&self.input, OptionalActions::Now, &modes)?;
            self.modes = Some(found);
        }
        self.is_taken = true;
        self.write(ENTER);
        Ok(())
    }

    /// Whether the shell has given the terminal to this process group.
    pub(super) fn is_in_foreground(&self) -> bool {
        tcgetpgrp(&self.output).map_or(true, |group| group == getpgrp())
    }

    pub(super) fn leave(&mut self) {
        if std::mem::take(&mut self.is_taken) {
            self.write(LEAVE);
        }
        if let Some(modes) = self.modes.take() {
            // Where that fails the terminal is gone.
            let _ = tcsetattr(&self.input, OptionalActions::Now, &modes);
        }
    }

    /// The source of key presses, if there is a terminal to type on.
    pub(super) fn keys(&self) -> Option<BorrowedFd<'_>> {
        self.modes.as_ref().map(|_| self.input.as_fd())
    }

    pub(super) fn size(&self) -> Size {
        tcgetwinsize(&self.output).map_or(Size::of(0, 0), |size| Size::of(size.ws_col, size.ws_row))
    }

    /// Writes; a stuck terminal's remaining bytes are dropped, and the next snapshot overwrites it.
    pub(super) fn write(&self, bytes: &[u8]) {
        write_while_ready(self.output.as_fd(), OutputKind::Terminal, bytes, WRITE_TIMEOUT);
    }
}

/// Standard output without waiting. A terminal that is ready for one byte still blocks the write of a page, and then
/// no signal is handled. The flag must not be set for other writers of the same terminal, so it is opened anew.
fn nonblocking_output() -> io::Result<OwnedFd> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    match File::options().write(true).custom_flags(flags).open("/proc/self/fd/1") {
        Ok(file) => Ok(file.into()),
        Err(_) => io::stdout().as_fd().try_clone_to_owned(),
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}
