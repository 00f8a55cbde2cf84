//! `accelerate`: to be written.

use std::ffi::OsString;

use super::OtherCommand;
use crate::cli::error::CliError;
use rankrun_core::facts::Facts;

pub(super) fn translate(
    _is_launch: bool,
    words: &[OsString],
    facts: &Facts,
) -> Result<OtherCommand, CliError> {
    let _ = (words, facts);
    Err(CliError::refused("not written yet", "wait"))
}
