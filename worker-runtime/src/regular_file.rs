//! Opens regular files. A FIFO, a device, a socket or a folder at the path is refused without blocking.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a regular file and follows links. The path is checked before, since opening a device may have
/// effects, and again after it is open.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // A missing file may be created; `open` reports any other error.
    if let Ok(metadata) = fs::metadata(path) {
        check(&metadata)?;
    }
    let file = options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Whether the path is `/dev/null` or a link to it.
pub(crate) fn is_null(path: &Path) -> bool {
    let device = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        found.file_type().is_char_device().then(|| found.rdev())
    };
    device(path).is_some_and(|found| Some(found) == device(Path::new("/dev/null")))
}

fn check(metadata: &Metadata) -> io::Result<()> {
    let file_type = metadata.file_type();
    let kind = match file_type {
        _ if file_type.is_file() => return Ok(()),
        _ if file_type.is_dir() => "a folder",
        _ if file_type.is_fifo() => "a FIFO (a pipe)",
        _ if file_type.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!("{kind} is not a regular file")))
}
