//! The launcher's own error file. A parent, such as a scheduler or another launcher, names it in
//! `TORCHELASTIC_ERROR_FILE` and reads the cause of the failure there.

use std::error::Error;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rankrun_core::posix::{Pid, Signal};

use rankrun_contract::report::{self, ErrorReport};

use crate::regular_file;
use rankrun_core::error_chain::format_chain;

/// The most bytes of a previous file that are shown.
const OLD_CONTENTS: u64 = 64 * 1024;

/// The launcher's own error file could not be written; the job ends as it would have.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{path}`, the error file that the launcher's parent asked for: {source}", path = .path.display())]
pub(crate) struct ParentFileError {
    path: PathBuf,
    source: io::Error,
}

/// The launcher's own failure in an error file: the error, and its causes as the call stack.
#[must_use]
pub(crate) fn of_error(kind: &str, error: &dyn Error, at: SystemTime) -> ErrorReport {
    let message = format!("{kind}: {}", format_chain(error));
    let mut callstack = format!("{kind}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        callstack.push_str(&format!("\n  caused by: {error}"));
        cause = error.source();
    }
    with_time(message, callstack, at)
}

/// The report of a stop by a signal, in torch's words.
#[must_use]
pub(crate) fn of_signal(signal: Signal, launcher: Pid, at: SystemTime) -> ErrorReport {
    let message = format!("SignalException: Process {launcher} got signal: {}", signal as i32);
    with_time(message.clone(), message, at)
}

/// Any other end of the launcher.
#[must_use]
pub(crate) fn of_text(text: &str, at: SystemTime) -> ErrorReport {
    with_time(format!("LaunchError: {text}"), text.to_owned(), at)
}

fn with_time(message: String, callstack: String, at: SystemTime) -> ErrorReport {
    let unix_seconds = at.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
    ErrorReport { message, callstack: Some(callstack), unix_seconds, lost_rank: None }
}

/// Writes the launcher's failure to the parent's error file.
///
/// # Errors
/// The file cannot be written; the caller warns, since the parent then gets no cause.
pub(crate) fn record(path: &Path, report: &ErrorReport) -> Result<(), ParentFileError> {
    replace(path, &report::render(report)).map(drop)
}

/// Writes the text in place of whatever was there, and gives the start of that.
///
/// # Errors
/// As [`record`]. A FIFO or a device is refused, but for `/dev/null` and the launcher's own output.
pub(crate) fn replace(path: &Path, text: &str) -> Result<Option<String>, ParentFileError> {
    let unwritten = |source| ParentFileError { path: path.to_owned(), source };
    let found = fs::metadata(path).ok();
    let is_plain = found.as_ref().is_some_and(Metadata::is_file);
    if let Some(found) = &found {
        regular_file::ensure_writable(found).map_err(unwritten)?;
    }
    let old = is_plain.then(|| start_of(path)).flatten();
    // The launcher must not remove a link such as `/dev/stdout`: it writes to the target.
    if is_plain && !path.is_symlink() {
        // As torch does; where the folder does not permit it, the file is emptied instead.
        let _ = fs::remove_file(path);
    }
    regular_file::write_in_place(path, text).map_err(unwritten)?;
    Ok(old)
}

fn start_of(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    regular_file::open_to_read(path).ok()?.take(OLD_CONTENTS).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rankrun-parent-file-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn parent_file_replace_returns_old_contents() {
        let folder = scratch("old");
        let path = folder.join("error.json");
        assert_eq!(replace(&path, "first").unwrap(), None);
        assert_eq!(replace(&path, "second").unwrap().as_deref(), Some("first"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn parent_file_symlink_is_kept_and_target_written() {
        let folder = scratch("link");
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "a longer first").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(replace(&link, "second").unwrap().as_deref(), Some("a longer first"));
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn unwritable_parent_file_is_an_error_without_blocking() {
        let folder = scratch("fifo");
        let fifo = folder.join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let missing = folder.join("missing/error.json");
        for path in [fifo, missing, folder.clone()] {
            let error = replace(&path, "text").unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn parent_file_report_has_error_causes() {
        let error = crate::error::LaunchError::Setup {
            what: "read signals",
            source: io::Error::from_raw_os_error(libc::EMFILE),
        };
        let report = of_error("LaunchError", &error, UNIX_EPOCH);
        assert_eq!(report.message, "LaunchError: cannot read signals: Too many open files (os error 24)");
        assert_eq!(
            report.callstack.as_deref(),
            Some("LaunchError: cannot read signals\n  caused by: Too many open files (os error 24)")
        );
        assert_eq!(report.unix_seconds, Some(0));
    }

    #[test]
    fn parent_file_signal_message_matches_torchrun() {
        let report = of_signal(Signal::SIGTERM, Pid::from_raw(7), UNIX_EPOCH);
        assert_eq!(report.message, "SignalException: Process 7 got signal: 15");
    }
}
