//! The file of `--report`. It is whole at every moment: its text is written beside it, then renamed.

use std::ffi::OsString;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::regular_file::{ensure_writable, write_in_place};

/// The report of the job cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the report `{path}`", path = .path.display())]
pub struct ReportFileError {
    path: PathBuf,
    source: io::Error,
}

impl ReportFileError {
    /// Of this file.
    pub(crate) fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }

    /// One thing to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "make room, or name a file on another disk with `--report`"
            }
            _ => "name a file with `--report` in a folder that exists and can be written",
        }
    }
}

/// Whether the folder of the file exists, and the file may be written there as far as its kind goes.
///
/// # Errors
/// The folder is missing, or there is a folder, a FIFO or a device.
pub(crate) fn check(path: &Path) -> Result<(), ReportFileError> {
    let refused = |source| ReportFileError::new(path, source);
    let folder = folder_of(path);
    let named = |why: &str| io::Error::other(format!("the folder `{}` {why}", folder.display()));
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(refused(named("is a file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(refused(named("does not exist")));
        }
        Err(error) => return Err(refused(error)),
    }
    found(path).and_then(|found| found.as_ref().map_or(Ok(()), ensure_writable)).map_err(refused)
}

/// What is there, links followed. Where the kernel does not follow a link of another user, its target is not replaced either.
fn found(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the file by one with this text. A link stays, and its target is replaced.
///
/// # Errors
/// As [`check`], or the kernel refuses it; the file is then as it was.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), ReportFileError> {
    let failed = |source| ReportFileError::new(path, source);
    let found = found(path).map_err(failed)?;
    if let Some(found) = &found {
        ensure_writable(found).map_err(failed)?;
    }
    // `/dev/stdout` and the like.
    let is_special = found.as_ref().is_some_and(|found| !found.is_file());
    let target = fs::canonicalize(path);
    // A link to a file that does not exist yet.
    let is_dangling = target.is_err() && path.is_symlink();
    if is_special || is_dangling {
        return write_in_place(path, text).map_err(failed);
    }
    let target = target.unwrap_or_else(|_| path.to_owned());
    match replace(&target, text) {
        // The folder does not permit another file, and this one may be written.
        Err(error) if is_refused(&error) && found.is_some() => write_in_place(&target, text).map_err(failed),
        result => result.map_err(failed),
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let beside = path_beside(path);
    let write = || {
        let mut options = OpenOptions::new();
        // A new file: no link of another user is followed.
        options.write(true).create_new(true).open(&beside)?.write_all(text.as_bytes())?;
        fs::rename(&beside, path)
    };
    // Of a launcher with this pid that was killed.
    let _ = fs::remove_file(&beside);
    let result = write();
    if result.is_err() {
        let _ = fs::remove_file(&beside);
    }
    result
}

/// `.report.json.1234` in the same folder.
fn path_beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::error_chain::format_chain;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rankrun-report-file-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn report_replaces_file_and_leaves_nothing_beside_it() {
        let folder = scratch("replace");
        let path = folder.join("report.json");
        for text in ["a longer first", "second"] {
            check(&path).unwrap();
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn report_link_stays_and_its_target_is_replaced() {
        let folder = scratch("link");
        for (target, link) in [("file", "link"), ("missing", "dangling")] {
            let link = folder.join(link);
            std::os::unix::fs::symlink(target, &link).unwrap();
            if target == "file" {
                fs::write(folder.join(target), "first").unwrap();
            }
            write(&link, "text").unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read_to_string(folder.join(target)).unwrap(), "text");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn folder_that_is_missing_and_other_kinds_of_files_are_refused() {
        let folder = scratch("refused");
        let fifo = folder.join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        let (missing, in_file) = (folder.join("missing/report.json"), folder.join("file/report.json"));
        for path in [&fifo, &missing, &in_file, &folder] {
            let error = check(path).unwrap_err();
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            assert!(write(path, "text").is_err(), "{error}");
            assert!(error.hint().contains("`--report`"), "{error}");
        }
        let error = format_chain(&check(&missing).unwrap_err());
        assert!(error.ends_with("/missing` does not exist"), "{error}");
        check(Path::new("report.json")).unwrap();
        check(Path::new("/dev/null")).unwrap();
        write(Path::new("/dev/null"), "text").unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
