//! The output of a running job, as it comes, with waits for what is in it.
#![expect(clippy::disallowed_methods, reason = "a wait reads the clock, and a reader needs its thread")]

use std::fmt;
use std::io::{ErrorKind, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// Which of the job's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output; on a terminal both.
    Out,
    /// Standard error.
    Err,
}

/// All that came so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Text {
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
    pub(crate) open: usize,
}

impl Text {
    /// The lines of both streams, stdout's first; the last one of each may be unfinished.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = lines_of(&self.out);
        lines.extend(lines_of(&self.err));
        lines
    }
}

/// The lines, without line ends (`\r\n` on a terminal).
pub(crate) fn lines_of(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in [("stdout", &self.out), ("stderr", &self.err)] {
            writeln!(f, "---- {name} ({} bytes)", bytes.len())?;
            // The beginning of a flood does not help.
            let shown = &bytes[bytes.len().saturating_sub(8_000)..];
            writeln!(f, "{}", String::from_utf8_lossy(shown))?;
        }
        Ok(())
    }
}

/// The value of `key=value` in a line of blank-separated words.
#[must_use]
pub fn field<'line>(line: &'line str, key: &str) -> Option<&'line str> {
    line.split_whitespace().find_map(|token| token.strip_prefix(key)?.strip_prefix('='))
}

/// Shared by the reader threads and the waiting test.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    text: Mutex<Text>,
    changed: Condvar,
}

impl Transcript {
    fn lock(&self) -> MutexGuard<'_, Text> {
        // A reader cannot leave half a state behind: it only appends.
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a stream to its end on a thread of its own.
    pub(crate) fn follow(self: &Arc<Self>, stream: Stream, mut source: impl Read + Send + 'static) {
        self.lock().open += 1;
        let transcript = Arc::clone(self);
        thread::spawn(move || {
            let mut chunk = [0; 16_384];
            loop {
                match source.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(count) => transcript.append(stream, &chunk[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // A terminal with its other side closed answers EIO.
                    Err(_) => break,
                }
            }
            transcript.lock().open -= 1;
            transcript.changed.notify_all();
        });
    }

    fn append(&self, stream: Stream, bytes: &[u8]) {
        let mut text = self.lock();
        match stream {
            Stream::Out => text.out.extend_from_slice(bytes),
            Stream::Err => text.err.extend_from_slice(bytes),
        }
        drop(text);
        self.changed.notify_all();
    }

    /// Waits until `look` finds something, the output has ended, or the time is over.
    pub(crate) fn find<T>(&self, until: Instant, mut search: impl FnMut(&Text) -> Option<T>) -> Option<T> {
        let mut text = self.lock();
        loop {
            if let Some(found) = search(&text) {
                return Some(found);
            }
            let remaining = until.saturating_duration_since(Instant::now());
            if text.open == 0 || remaining.is_zero() {
                return None;
            }
            text = self.changed.wait_timeout(text, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until every writer has closed its end, and gives all that came.
    pub(crate) fn ended_by(&self, until: Instant) -> Text {
        self.find(until, |text| (text.open == 0).then_some(()));
        self.lock().clone()
    }

    /// All that came so far.
    pub(crate) fn snapshot(&self) -> Text {
        self.lock().clone()
    }
}
