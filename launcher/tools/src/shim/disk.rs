//! Reads and changes the environment's files: all changes are made, or none.
//!
//! Each new file is first written completely beside its place, where most errors occur. Then each takes its place by
//! one rename. The previous file is kept beside it until the last rename has succeeded.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::error::ShimError;
use super::layout::{File, LONGEST_SCRIPT, Layout};
use super::plan::{Content, GuardPackage, PathChange};
use super::script::SCRIPTS;
use super::state::{FoundFiles, FoundScript, PathEntry, ShimTarget};

/// Behind the name of a file that is to take its place.
pub(super) const NEW: &str = "new";
/// The suffix of a replaced file.
pub(super) const OLD: &str = "old";

/// Reads every path that the shim may have made.
///
/// # Errors
/// A file exists and cannot be read.
pub(super) fn read_files(
    layout: &Layout,
    is_program: impl Fn(&Path) -> bool,
) -> Result<FoundFiles, ShimError> {
    let target =
        |path: PathBuf| if is_program(&path) { ShimTarget::Works(path) } else { ShimTarget::Gone(path) };
    let found = |script| {
        Ok(FoundScript {
            script,
            file: read(&layout.script(script))?,
            saved_original: read(&layout.saved_original(script))?,
            link: fs::read_link(layout.link(script)).ok().map(target),
        })
    };
    Ok(FoundFiles {
        scripts: SCRIPTS.iter().map(found).collect::<Result<_, ShimError>>()?,
        guard: read(&layout.guard)?,
        hook: read(&layout.hook())?,
        record: read(&layout.record())?,
    })
}

fn read(path: &Path) -> Result<PathEntry, ShimError> {
    let fail = |source| ShimError::Read { path: path.to_owned(), source };
    if !exists(path) {
        return Ok(PathEntry::Missing);
    }
    let Ok(found) = fs::metadata(path) else { return Ok(PathEntry::Other) };
    if !found.is_file() || found.len() > LONGEST_SCRIPT as u64 {
        return Ok(PathEntry::Other);
    }
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(LONGEST_SCRIPT as u64).read_to_end(&mut bytes));
    read.map_err(fail)?;
    Ok(PathEntry::File(File { bytes, mode: found.permissions().mode() & 0o7777 }))
}

pub(super) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Keeps another shim away from the environment as long as the answer lives; where a folder cannot be locked,
/// nothing does.
#[must_use]
pub(super) fn lock(folder: &Path) -> Option<fs::File> {
    let folder = fs::File::open(folder).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

/// Makes all the changes, or none.
///
/// # Errors
/// The kernel's first refusal; then everything is unchanged, unless the error says otherwise.
pub(super) fn apply(changes: &[PathChange]) -> Result<(), ShimError> {
    let result = stage_and_commit(changes);
    for change in changes {
        // The remaining files beside the places are not needed any more.
        remove(&temporary_path(&change.path, NEW));
        if result.is_ok() {
            remove(&temporary_path(&change.path, OLD));
        }
    }
    result
}

fn stage_and_commit(changes: &[PathChange]) -> Result<(), ShimError> {
    let failed =
        |change: &PathChange, source, lost| ShimError::Change { path: change.path.clone(), source, lost };
    for change in changes {
        stage(change).map_err(|source| failed(change, source, None))?;
    }
    for (done, change) in changes.iter().enumerate() {
        if let Err(source) = commit(change) {
            let old = temporary_path(&change.path, OLD);
            let mut lost = exists(&old).then(|| (change.path.clone(), old));
            for change in changes[..done].iter().rev() {
                lost = undo(change).err().or(lost);
            }
            return Err(failed(change, source, lost));
        }
    }
    Ok(())
}

fn stage(change: &PathChange) -> io::Result<()> {
    let new = temporary_path(&change.path, NEW);
    remove(&new);
    match &change.to {
        Content::Nothing => Ok(()),
        Content::File(file) => write(&new, &file.bytes, file.mode),
        // Not every file system supports hard links.
        Content::SameAs(path) => fs::hard_link(path, &new).or_else(|_| fs::copy(path, &new).map(|_| ())),
        Content::Package(package) => stage_package(&new, package),
    }
}

fn stage_package(new: &Path, package: &GuardPackage) -> io::Result<()> {
    fs::create_dir(new)?;
    fs::set_permissions(new, Permissions::from_mode(0o755))?;
    write(&new.join("__init__.py"), &package.hook, 0o644)?;
    write(&new.join("record.json"), &serde_json::to_vec_pretty(&package.record)?, 0o644)?;
    package.record.scripts.keys().try_for_each(|name| symlink(&package.rankrun, new.join(name)))
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))
}

fn commit(change: &PathChange) -> io::Result<()> {
    let (path, new, old) =
        (&change.path, temporary_path(&change.path, NEW), temporary_path(&change.path, OLD));
    remove(&old);
    if exists(path) {
        // A second name for the old file leaves no moment without one.
        let replaced = change.to != Content::Nothing && fs::hard_link(path, &old).is_ok();
        if !replaced {
            fs::rename(path, &old)?;
        }
    }
    if change.to == Content::Nothing {
        return Ok(());
    }
    fs::rename(&new, path).inspect_err(|_| {
        let _ = put_back(path, &old);
    })
}

/// Restores the previous file; else returns the lost path, and its place now.
fn undo(change: &PathChange) -> Result<(), (PathBuf, PathBuf)> {
    let (path, old) = (&change.path, temporary_path(&change.path, OLD));
    put_back(path, &old).map_err(|_| (path.clone(), old))
}

fn put_back(path: &Path, old: &Path) -> io::Result<()> {
    if !exists(old) {
        remove(path);
        return Ok(());
    }
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        remove(path);
    }
    fs::rename(old, path)?;
    // Two names of one file: the rename has done nothing.
    remove(old);
    Ok(())
}

/// A hidden name in the same folder, which is the same file system.
pub(super) fn temporary_path(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.rankrun-{what}"))
}

fn remove(path: &Path) {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    // A failure only leaves litter: the renames that matter return their errors.
    let _ = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

#[cfg(test)]
mod tests;
