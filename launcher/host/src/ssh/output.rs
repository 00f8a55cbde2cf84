//! One output of the local launcher, shared by all hosts. It is written as far as its reader takes it, so that a slow reader
//! does not keep the launcher from its signals; hosts wait meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::console::{OutputKind, write_while_ready};

/// While so many bytes wait, the hosts are not read, in bytes.
const MAX_PENDING: usize = 1 << 20;

/// Standard output or standard error.
#[derive(Debug)]
pub(super) struct SharedOutput {
    fd: OwnedFd,
    kind: OutputKind,
    pending: Vec<u8>,
}

impl SharedOutput {
    pub(super) fn new(fd: OwnedFd) -> Self {
        let kind = OutputKind::of(fd.as_fd());
        Self { fd, kind, pending: Vec::new() }
    }

    /// The bytes that wait for the reader; more may be appended.
    pub(super) const fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) const fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING
    }

    /// Writes what the reader takes now. Without a reader the bytes are dropped.
    pub(super) fn write_ready(&mut self) {
        if !self.pending.is_empty() {
            let written = write_while_ready(self.fd.as_fd(), self.kind, &self.pending, Duration::ZERO);
            self.pending.drain(..written);
        }
    }
}

impl AsFd for SharedOutput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
