//! Files that an interrupted `rankrun shim` has left, as after SIGKILL.
//!
//! Each new file is made beside its place (`.NAME.rankrun-new`), and each old one stays beside it
//! (`.NAME.rankrun-old`) until all are in place. A new file is a copy, and so is an old one if its place is taken. An
//! old one with an empty place may be the only copy: it is put back.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::disk::{NEW, OLD, exists, temporary_path};
use super::environment::choose_python;
use super::layout::Layout;
use rankrun_core::facts::Facts;

/// The files, which no running `rankrun shim` uses as long as this lives.
#[derive(Debug, Default)]
pub struct InterruptedFiles {
    /// The files, all owned by this user.
    pub files: Vec<InterruptedFile>,
    _lock: Option<File>,
}

/// One file that an interrupted shim left.
#[derive(Debug)]
pub struct InterruptedFile {
    /// The path of the file or folder.
    pub path: PathBuf,
    /// The time of its last modification.
    pub modified: SystemTime,
    /// The place that the file was made for, or taken from.
    place: PathBuf,
    is_old: bool,
}

/// The action on a leftover file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanupResult {
    /// The file has been removed for good.
    Removed,
    /// It is in its place again.
    PutBack,
}

impl InterruptedFile {
    /// Removes it, or puts it back into its place if that is empty.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn clean_up(&self) -> io::Result<CleanupResult> {
        if self.is_old && !exists(&self.place) {
            return fs::rename(&self.path, &self.place).map(|()| CleanupResult::PutBack);
        }
        let is_folder = fs::symlink_metadata(&self.path)?.is_dir();
        let removed = if is_folder { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
        removed.map(|()| CleanupResult::Removed)
    }
}

/// Looks in the environment that a `rankrun shim` without `--python` would change. No Python is started, so that a place
/// other than a venv's or conda's is not found.
#[must_use]
pub fn find_interrupted(argv0: &OsStr, facts: &Facts) -> InterruptedFiles {
    let python = choose_python(None, argv0, facts).ok();
    let Some(scripts) = python.as_deref().and_then(Path::parent) else { return InterruptedFiles::default() };
    let lock = File::open(scripts).ok();
    if let Some(Err(TryLockError::WouldBlock)) = lock.as_ref().map(File::try_lock) {
        return InterruptedFiles::default();
    }
    let libraries = scripts.parent().map(|prefix| prefix.join("lib"));
    let libraries = libraries.iter().flat_map(|lib| fs::read_dir(lib).into_iter().flatten().flatten());
    let is_python = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("python"));
    let libraries = libraries.filter(|entry| is_python(&entry.file_name()));
    let packages = libraries.map(|entry| entry.path().join("site-packages"));
    let layouts = packages.map(|packages| Layout::at(scripts, &packages));
    let mut places: Vec<PathBuf> = layouts.flat_map(Layout::places).collect();
    places.sort();
    places.dedup();
    InterruptedFiles {
        files: places.iter().flat_map(|place| interrupted_files_of(place)).collect(),
        _lock: lock,
    }
}

fn interrupted_files_of(place: &Path) -> impl Iterator<Item = InterruptedFile> {
    let me = rustix::process::geteuid().as_raw();
    [(NEW, false), (OLD, true)].into_iter().filter_map(move |(what, is_old)| {
        let path = temporary_path(place, what);
        let found = fs::symlink_metadata(&path).ok().filter(|found| found.uid() == me)?;
        Some(InterruptedFile { path, modified: found.modified().ok()?, place: place.to_owned(), is_old })
    })
}
