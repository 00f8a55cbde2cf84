//! One captured stream of one worker: its channel, and the consumers of its bytes other than the console: the log file,
//! the filtered copy and the last lines. The pump reads it.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use rankrun_contract::rank::Generation;

use super::channel::Channel;
use super::filter::LinePicker;
use super::space::write_error_reason;
use super::tail::Tail;
use rankrun_core::spec::output_stream::OutputStream;

#[derive(Debug)]
pub(super) struct StreamSource {
    pub(super) channel: Channel,
    pub(super) generation: Generation,
    pub(super) stream: OutputStream,
    pub(super) prefix: String,
    /// The prefix of rewritten lines on the console, if they are followed.
    pub(super) label: Option<String>,
    pub(super) can_prompt: bool,
    pub(super) file: Option<LogFile>,
    pub(super) picker: Option<LinePicker>,
    pub(super) tail: Arc<Mutex<Tail>>,
}

#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// So many bytes; more may come.
    Some(usize),
    Empty,
    /// The other end has no holder.
    End,
}

impl StreamSource {
    pub(super) fn read(&self, buffer: &mut [u8]) -> ReadResult {
        match nix::unistd::read(&self.channel.reader, buffer) {
            Ok(count) if count > 0 => ReadResult::Some(count),
            Err(Errno::EAGAIN | Errno::EINTR) => ReadResult::Empty,
            // A pseudo-terminal without an open worker's end returns EIO.
            Ok(_) | Err(_) => ReadResult::End,
        }
    }

    /// Gives `bytes` to all consumers but the console.
    pub(super) fn store(&mut self, bytes: &[u8], now: Instant) {
        if let Some(LogFile { file, path }) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            let why = write_error_reason(&error, path);
            tracing::warn!("cannot write the log file `{}`, it ends here: {why}", path.display());
            self.file = None;
        }
        if let Some(picker) = &mut self.picker {
            picker.feed(bytes);
        }
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).feed_at(self.stream, bytes, now);
    }

    pub(super) fn end(self) {
        if let Some(picker) = self.picker {
            picker.end();
        }
    }
}
