//! Lines on standard output.

use std::io::{self, ErrorKind, Write};

/// A line could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub struct OutputError(#[from] io::Error);

/// Writes one line with one write, so that lines of several workers do not mix.
///
/// A pipe whose reader has gone, as in `… | head -1`, takes all lines and drops them: the other workers still wait for this one.
///
/// # Errors
/// Standard output cannot be written for any other reason.
pub fn line(text: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
