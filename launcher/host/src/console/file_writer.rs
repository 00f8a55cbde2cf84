//! Messages to a file, without captured output of workers. A write to a file may never return: its disk is frozen, or
//! its file server does not answer. So a thread writes them, from a message on until no more are there.

use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{DirectOutput, Output, OutputKind, OutputOwner};

impl Output {
    /// Has a thread write the backlog, unless one does. It inherits the signal mask.
    pub(super) fn start_file_writer(self: &Arc<Self>, direct: &mut DirectOutput) {
        if direct.backlog.is_empty() || std::mem::replace(&mut direct.has_writer, true) {
            return;
        }
        let output = Arc::clone(self);
        let write = move || while output.write_file_backlog() {};
        if std::thread::Builder::new().name("rankrun-messages".to_owned()).spawn(write).is_err() {
            // The limit on threads is reached: the message is worth more than the risk.
            direct.has_writer = false;
            direct.write_while_ready(self, Duration::ZERO);
        }
    }

    /// Writes what is there; false if there was nothing.
    fn write_file_backlog(&self) -> bool {
        let turn = self.write_turn.lock();
        let bytes = match &mut *self.lock() {
            OutputOwner::Direct(direct) => {
                let bytes = std::mem::take(&mut direct.backlog);
                direct.has_writer = !bytes.is_empty();
                bytes
            }
            OutputOwner::Pumped(_) => Vec::new(),
        };
        self.file_written.notify_all();
        super::write_while_ready(self.fd.as_fd(), OutputKind::File, &bytes, Duration::ZERO);
        drop(turn);
        !bytes.is_empty()
    }

    /// Waits until the file has all messages; false if it has not within the limit.
    pub(super) fn await_file_writer(&self, at_most: Duration) -> bool {
        let is_writing =
            |owner: &mut OutputOwner| matches!(owner, OutputOwner::Direct(direct) if direct.has_writer);
        let waited = self.file_written.wait_timeout_while(self.lock(), at_most, is_writing);
        let (owner, limit) = waited.unwrap_or_else(PoisonError::into_inner);
        !limit.timed_out() && matches!(*owner, OutputOwner::Direct(_))
    }
}
