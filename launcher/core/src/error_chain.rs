//! The text of an error with its causes.

use std::error::Error;

/// The error and its causes, as one line.
#[must_use]
pub fn format_chain(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
