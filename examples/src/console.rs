//! Lines on standard output.

use std::io::{self, Write};

/// Writes one line with one write, so that lines of several workers do not mix.
///
/// # Errors
/// Standard output cannot be written.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{text}\n").as_bytes())?;
    out.flush()
}
