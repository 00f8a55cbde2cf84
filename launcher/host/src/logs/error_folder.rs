//! The folder of a job's error files, and the lock that tells `rankrun gc` whether the job is alive.
//!
//! The agent holds a lock (flock(2)) on the folder. The kernel drops it with the agent, however that ends. The lock
//! counts in every pid namespace that shares `/dev/shm`: a container may share it, and a pid means nothing there. A
//! folder gets its name when it is locked, so a job that is just starting has no folder of this name without a lock.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use rankrun_core::facts::Facts;

/// The name of such a folder, before `_` and eight random characters. torch's own folders have these characters right
/// behind `torchelastic_`.
pub(crate) const NAME_PREFIX: &str = "torchelastic_rankrun";

/// In memory: folders that are made at each start and removed at each end cost microseconds there, and up to a
/// third of a millisecond each on a disk that discards blocks.
const MEMORY: &str = "/dev/shm";

/// Locks the new folder `made` and gives it its name. Where either is refused the folder keeps the name that it has, and
/// `rankrun gc` does not know it.
pub(super) fn lock_folder(made: PathBuf, end: &str) -> (PathBuf, Option<File>) {
    let named = made.with_file_name(format!("{NAME_PREFIX}_{end}"));
    let locked = open(&made).ok().filter(|lock| lock.try_lock().is_ok());
    match locked {
        Some(lock) if renameat_with(CWD, &made, CWD, &named, RenameFlags::NOREPLACE).is_ok() => {
            (named, Some(lock))
        }
        Some(_) | None => (made, None),
    }
}

/// The folder of a dead job of our user.
#[derive(Debug)]
pub struct DeadFolder {
    /// The path of the job's error folder.
    pub path: PathBuf,
    /// When an entry of it was made or removed last.
    pub modified: SystemTime,
    /// Excludes other `rankrun gc` processes (flock(2)).
    _lock: File,
}

impl DeadFolder {
    /// Removes it with all that is in it. A link in it is removed, and not followed.
    ///
    /// # Errors
    /// The kernel's first refusal.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}

/// Where Python's `tempfile` looks for a folder, in this order; files that are few and small are in memory unless the
/// user named a place.
pub fn temporary_folders(facts: &Facts, is_small: bool) -> impl Iterator<Item = PathBuf> {
    let named = ["TMPDIR", "TEMP", "TMP"].into_iter().filter_map(|name| facts.filled_variable(name));
    let memory = is_small.then_some(MEMORY);
    let usual = memory.into_iter().chain(["/tmp", "/var/tmp", "/usr/tmp"]);
    named.map(PathBuf::from).chain(usual.map(PathBuf::from))
}

/// Every folder below which a launch in this environment may put its error files.
#[must_use]
pub fn parents_of_error_files(facts: &Facts) -> BTreeSet<PathBuf> {
    temporary_folders(facts, true).map(|folder| facts.absolute(&folder)).collect()
}

/// The folders of dead jobs directly below this one.
#[must_use]
pub fn find_dead(parent: &Path) -> Vec<DeadFolder> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| has_name(&entry.file_name()))
        .filter_map(|entry| lock_dead_folder(entry.path()))
        .collect()
}

fn has_name(name: &OsStr) -> bool {
    let end = name.to_str().and_then(|name| name.strip_prefix(NAME_PREFIX)?.strip_prefix('_'));
    let is_random =
        |end: &str| end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    end.is_some_and(is_random)
}

/// `None` if the folder is another user's, or locked, or cannot be locked.
fn lock_dead_folder(path: PathBuf) -> Option<DeadFolder> {
    let lock = open(&path).ok()?;
    let found = lock.metadata().ok()?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    lock.try_lock().ok()?;
    // Another `rankrun gc` may have removed it before the lock was ours.
    let there = fs::symlink_metadata(&path).ok()?;
    let is_the_same = (there.dev(), there.ino()) == (found.dev(), found.ino());
    is_the_same.then_some(DeadFolder { path, modified: found.modified().ok()?, _lock: lock })
}

fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(folder)
}

#[cfg(test)]
#[path = "error_folder_tests.rs"]
mod tests;
