//! The words behind `rankrun gc`.

use std::ffi::OsString;

use super::Command;
use super::error::{CliError, UsageError};
use crate::gc::{GcMode, GcRequest, OutputFormat};
use crate::spec::CliFlavor;

/// The word that asks for it, only in the first place and only under our own name.
pub(super) const WORD: &str = "gc";

/// Whether the words ask for it.
pub(super) fn asks(words: &[OsString]) -> bool {
    words.first().is_some_and(|word| word == WORD)
}

/// Reads what stands behind [`WORD`].
pub(super) fn interpret(words: &[OsString]) -> Result<Command, CliError> {
    if words.iter().any(|word| word == "-h" || word == "--help") {
        return Ok(Command::Print(include_str!("help_gc.txt").to_owned()));
    }
    let mut request = GcRequest { mode: GcMode::End, format: OutputFormat::Text };
    for word in words {
        match word.to_str() {
            Some("--dry-run" | "--dry_run") => request.mode = GcMode::List,
            // In any order, a dry run touches nothing.
            Some("--force") if request.mode == GcMode::End => request.mode = GcMode::EndAll,
            Some("--force") => {}
            Some("--json") => request.format = OutputFormat::Json,
            _ => {
                let word = word.to_string_lossy().into_owned();
                let error = UsageError::UnknownTo { command: WORD, word };
                return Err(CliError::Usage { cli_flavor: CliFlavor::Rankrun, error });
            }
        }
    }
    Ok(Command::Gc(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Result<Command, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        interpret(&words).map_err(|error| error.render())
    }

    #[test]
    fn gc_options_are_accepted_in_any_order() {
        let gc = |deed, form| Ok(Command::Gc(GcRequest { mode: deed, format: form }));
        assert_eq!(told(""), gc(GcMode::End, OutputFormat::Text));
        assert_eq!(told("--dry-run"), gc(GcMode::List, OutputFormat::Text));
        assert_eq!(told("--json --dry_run"), gc(GcMode::List, OutputFormat::Json));
        assert_eq!(told("--force --json"), gc(GcMode::EndAll, OutputFormat::Json));
        for dry in ["--force --dry-run", "--dry-run --force"] {
            assert_eq!(told(dry), gc(GcMode::List, OutputFormat::Text));
        }
        assert!(
            matches!(told("--json -h"), Ok(Command::Print(text)) if text.starts_with("usage: rankrun gc"))
        );
    }

    #[test]
    fn unknown_gc_argument_is_refused() {
        for line in ["--dry", "--dry-run=yes", "4711", "--json=1"] {
            let word = format!("`rankrun gc` does not know `{line}`");
            assert!(told(line).unwrap_err().contains(&word), "{line}");
        }
    }
}
