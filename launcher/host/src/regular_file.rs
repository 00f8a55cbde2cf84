//! Opens regular files. Any other file at the path (FIFO, device, socket, folder) is refused, and no `open` waits for
//! it.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::sys::stat::{FileStat, fstat};
use rustix::fs::OFlags;

/// An `open` with these returns at once, and a terminal does not become ours by it.
const FLAGS: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

/// A path with another kind of file than a regular one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} is not a regular file")]
pub struct NotRegular {
    /// The kind of file at the path.
    pub kind: OtherKind,
}

/// The kind of file at a path without a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherKind {
    /// A named pipe, or a pipe under a name in `/proc` or `/dev`.
    Fifo,
    /// A character or block device file.
    Device,
    /// A Unix socket with a path.
    Socket,
    /// A folder (directory) and not a file.
    Folder,
}

impl fmt::Display for OtherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fifo => "a FIFO (a pipe)",
            Self::Device => "a device",
            Self::Socket => "a socket",
            Self::Folder => "a folder",
        })
    }
}

impl From<NotRegular> for io::Error {
    fn from(error: NotRegular) -> Self {
        Self::other(error)
    }
}

/// The reason why [`open`] refused the file, if it was not the kernel's.
#[must_use]
pub fn not_regular_cause(error: &io::Error) -> Option<NotRegular> {
    error.get_ref()?.downcast_ref().copied()
}

/// Whether it is a regular file.
///
/// # Errors
/// It is something else.
pub(crate) fn ensure_regular(metadata: &Metadata) -> Result<(), NotRegular> {
    let file_type = metadata.file_type();
    let kind = match file_type {
        _ if file_type.is_file() => return Ok(()),
        _ if file_type.is_dir() => OtherKind::Folder,
        _ if file_type.is_fifo() => OtherKind::Fifo,
        _ if file_type.is_socket() => OtherKind::Socket,
        _ => OtherKind::Device,
    };
    Err(NotRegular { kind })
}

/// Refuses a FIFO or a device, but for `/dev/null` and the launcher's own output.
pub(crate) fn ensure_writable(found: &Metadata) -> io::Result<()> {
    if is_null(found) || is_own_output(found) {
        return Ok(());
    }
    ensure_regular(found).map_err(io::Error::from)
}

/// Empties the file and writes the text, links followed.
pub(crate) fn write_in_place(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(FLAGS);
    options.open(path)?.write_all(text.as_bytes())
}

/// Whether the file is `/dev/null`.
fn is_null(found: &Metadata) -> bool {
    let is_it = |null: Metadata| found.file_type().is_char_device() && found.rdev() == null.rdev();
    fs::metadata("/dev/null").is_ok_and(is_it)
}

/// Whether it is our standard output or error, as `/dev/stdout` is.
fn is_own_output(found: &Metadata) -> bool {
    let is_it = |own: FileStat| (own.st_dev, own.st_ino) == (found.dev(), found.ino());
    fstat(io::stdout()).is_ok_and(is_it) || fstat(io::stderr()).is_ok_and(is_it)
}

/// Opens a regular file for reading.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true))
}

/// Opens a regular file, links followed. The kind of file is checked before, since opening a device may have an
/// effect, and again once it is open.
///
/// # Errors
/// The file is of another kind ([`not_regular_cause`]), or the kernel refuses it.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // A missing file may be made; of any other error the kernel's own words tell.
    if let Ok(metadata) = fs::metadata(path) {
        ensure_regular(&metadata)?;
    }
    let file = open_nonblocking(path, options)?;
    ensure_regular(&file.metadata()?)?;
    Ok(file)
}

/// Opens any kind of file: a FIFO without a reader is an error at once.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn open_nonblocking(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(FLAGS).open(path)?;
    // A worker may inherit it and read its flags.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_without_blocking() {
        let folder = std::env::temp_dir().join(format!("rankrun-regular-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (link, target) in
            [("to-fifo", at("fifo")), ("to-zero", "/dev/zero".into()), ("to-file", at("file"))]
        {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        for (path, kind) in [
            (at("fifo"), OtherKind::Fifo),
            (at("to-fifo"), OtherKind::Fifo),
            (at("socket"), OtherKind::Socket),
            ("/dev/zero".into(), OtherKind::Device),
            (at("to-zero"), OtherKind::Device),
            (folder.clone(), OtherKind::Folder),
        ] {
            let write = open(&path, OpenOptions::new().write(true).create(true).truncate(true));
            for result in [open_to_read(&path), write] {
                assert_eq!(
                    not_regular_cause(&result.unwrap_err()),
                    Some(NotRegular { kind }),
                    "{}",
                    path.display()
                );
            }
        }
        assert_eq!(open_to_read(&at("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
        open(&at("to-file"), OpenOptions::new().write(true).create(true))
            .unwrap()
            .write_all(b"text")
            .unwrap();
        let mut text = String::new();
        open_to_read(&at("to-file")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        fs::remove_dir_all(folder).unwrap();
    }
}
