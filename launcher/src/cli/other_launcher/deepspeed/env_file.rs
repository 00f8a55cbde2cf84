//! `.deepspeed_env` (2.5 of docs/dev/launchers-contract.md): variables for the workers, a line `NAME=VALUE` for each.
//!
//! The real tool gives them to other hosts alone. Here they count as if they were exported in front of the command.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::cli::error::CliError;
use rankrun_core::facts::Facts;

const DEFAULT_NAME: &str = ".deepspeed_env";
const MAX_SIZE: u64 = 1 << 20;

/// The variables of the files in the home folder and in the working folder; the later value of a name counts.
///
/// # Errors
/// A file cannot be read, or has another line.
pub(super) fn read_env_files(facts: &Facts) -> Result<Vec<(String, OsString)>, CliError> {
    let name = facts.variable("DS_ENV_FILE").unwrap_or_else(|| OsStr::new(DEFAULT_NAME));
    let home = facts.filled_variable("HOME").map(|home| Path::new(home).join(name));
    let mut variables: Vec<(String, OsString)> = Vec::new();
    for path in home.into_iter().chain([PathBuf::from(name)]).filter(|path| facts.is_file(path)) {
        let text = facts.world().read_file(&path, MAX_SIZE).map_err(|error| {
            let message = format!("the file `{}` cannot be read: {error}", path.display());
            CliError::refused(message, "make it readable, or name another one in `DS_ENV_FILE`")
        })?;
        for line in text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (name, value) = parse_variable(line).ok_or_else(|| {
                let line = String::from_utf8_lossy(line);
                let message = format!("the file `{}` has the line `{line}`", path.display());
                CliError::refused(message, "write a line `NAME=VALUE` for each variable")
            })?;
            variables.retain(|(known, _)| *known != name);
            variables.push((name, value));
        }
    }
    Ok(variables)
}

fn parse_variable(line: &[u8]) -> Option<(String, OsString)> {
    let at = line.iter().position(|byte| *byte == b'=')?;
    let name = std::str::from_utf8(line[..at].trim_ascii()).ok().filter(|name| !name.is_empty())?;
    Some((name.to_owned(), OsString::from_vec(line[at + 1..].trim_ascii().to_vec())))
}
