//! The hook that Python runs first in each worker: `flight_recorder.py` and `sitecustomize.py` as one file, embedded
//! here. It lies in a folder of the user's
//! cache, one folder for each content, which stands first in `PYTHONPATH` of the workers.
//!
//! The file decides what runs in every worker, so the folder must be this user's alone, and the file what is embedded.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rankrun_core::spec::LaunchSpec;
use rankrun_core::worker_command::PYTHON_PATH;

use crate::regular_file::ensure_regular;

/// The name by which Python finds it.
const FILE_NAME: &str = "sitecustomize.py";
const SOURCE: &str = concat!(include_str!("flight_recorder.py"), "\n\n", include_str!("sitecustomize.py"));
/// The same content has the same folder, whichever launcher wrote it.
const CONTENT_HASH: u64 = fnv1a(SOURCE.as_bytes());

const fn fnv1a(bytes: &[u8]) -> u64 {
    let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// Why there is no hook.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("cannot {what} `{}`: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("`{}` is not this user's alone (owner {uid}, mode {mode:o}): it must be {wanted:o}", path.display())]
    Foreign { path: PathBuf, uid: u32, mode: u32, wanted: u32 },
    #[error("`{}` is a symbolic link", path.display())]
    Link { path: PathBuf },
    #[error("`{}` can be changed by other users (owner {uid}, mode {mode:o})", path.display())]
    Shared { path: PathBuf, uid: u32, mode: u32 },
    #[error("`{}` is not the file of this launcher: remove it", path.display())]
    OtherContent { path: PathBuf },
}

/// The folder of the hook by these variables, for workers that have one; `None` also without a home.
#[must_use]
pub fn hook_folder(spec: &LaunchSpec, environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let found = environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let cache = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let folder = spec.has_hooks().then(cache).flatten()?;
    let folder = folder.join("rankrun").join(format!("hooks-{CONTENT_HASH:016x}"));
    // A colon separates the folders of `PYTHONPATH`.
    (!folder.as_os_str().as_encoded_bytes().contains(&b':')).then_some(folder)
}

/// `PYTHONPATH` with this folder before the user's.
#[must_use]
pub fn python_path(folder: &Path, environment: &[(OsString, OsString)]) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    let users = environment.iter().find(|(name, value)| name == PYTHON_PATH && !value.is_empty());
    if let Some((_, users)) = users {
        path.push(":");
        path.push(users);
    }
    path
}

/// Checks the hook in the folder; writes it where there is none.
pub(crate) fn install_hook(folder: &Path) -> Result<(), HookError> {
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |source| HookError::Io { what, path, source }
    };
    let file = folder.join(FILE_NAME);
    if fs::symlink_metadata(folder).is_err() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io("make", folder))?;
    }
    // The owner of a folder above could put another in the place of ours.
    for (above, may_be_roots) in folder.ancestors().skip(1).zip([false, true]) {
        check_shared(above, &fs::metadata(above).map_err(io("examine", above))?, may_be_roots)?;
    }
    check_owner(folder, &fs::symlink_metadata(folder).map_err(io("examine", folder))?, 0o700)?;
    match read_own(&file) {
        Ok((content, metadata)) => {
            check_owner(&file, &metadata, 0o600)?;
            if content == SOURCE.as_bytes() {
                return Ok(());
            }
            // A full disk or a crash has cut it.
            if SOURCE.as_bytes().starts_with(&content) {
                return write_hook(folder, &file).map_err(io("write", &file));
            }
            Err(HookError::OtherContent { path: file })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write_hook(folder, &file).map_err(io("write", &file))
        }
        Err(error) => Err(io("read", &file)(error)),
    }
}

fn check_owner(path: &Path, metadata: &Metadata, wanted: u32) -> Result<(), HookError> {
    if metadata.is_symlink() {
        return Err(HookError::Link { path: path.to_owned() });
    }
    // A folder below one with the set-group-ID bit has it too.
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if uid == rustix::process::geteuid().as_raw() && mode == wanted {
        return Ok(());
    }
    Err(HookError::Foreign { path: path.to_owned(), uid, mode, wanted })
}

/// A folder above, in which no other user may rename what is this user's.
fn check_shared(path: &Path, metadata: &Metadata, may_be_roots: bool) -> Result<(), HookError> {
    const STICKY: u32 = 0o1000;
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let is_owned = uid == rustix::process::geteuid().as_raw() || may_be_roots && uid == 0;
    if is_owned && (mode & 0o022 == 0 || mode & STICKY != 0) {
        return Ok(());
    }
    Err(HookError::Shared { path: path.to_owned(), uid, mode })
}

/// The file without following a link, and no more of it than it can have.
fn read_own(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    ensure_regular(&metadata)?;
    let mut content = Vec::new();
    file.take(SOURCE.len() as u64 + 1).read_to_end(&mut content)?;
    Ok((content, metadata))
}

/// By a new name first: another launcher may read the folder now.
fn write_hook(folder: &Path, file: &Path) -> io::Result<()> {
    let new = folder.join(format!(".{FILE_NAME}-{}", std::process::id()));
    let mut written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    written.set_permissions(Permissions::from_mode(0o600))?;
    written.write_all(SOURCE.as_bytes())?;
    // A launcher of another node may have had the same pid, and the same file.
    fs::rename(&new, file).or_else(|error| if file.exists() { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests;
