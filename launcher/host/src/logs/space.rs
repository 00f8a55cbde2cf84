//! Whether the file system of a folder has room left (statvfs(3)). The failure report asks it; no log is refused by it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use rustix::fs::StatVfs;

/// The resource that a full file system lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskShortage {
    /// No space is left for data.
    Space {
        /// The free space for this user, in bytes.
        free: u64,
        /// The size of the file system, in bytes.
        total: u64,
    },
    /// No inode is left for another file.
    Inodes {
        /// How many files it can hold.
        total: u64,
    },
}

/// A log folder on a file system that takes nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FullLogFolder {
    /// The folder as the user knows it.
    pub folder: PathBuf,
    /// The resource that has run out.
    pub shortage: DiskShortage,
}

/// The hint for every error about a full log disk.
pub(crate) const FREE_SPACE_HINT: &str = "free space there, or choose another folder with `--log-dir`";

/// With less than this a file system counts as full, in bytes: room for one more line does not help.
const MIN_FREE: u64 = 4096;

impl DiskShortage {
    /// The resource that the file system of this folder lacks; `None` if it has room, or does not answer.
    #[must_use]
    pub(crate) fn at(folder: &Path) -> Option<Self> {
        let found = rustix::fs::statvfs(folder).ok()?;
        Self::of(&found, rustix::process::geteuid().is_root())
    }

    /// The superuser may use the blocks that are reserved.
    fn of(found: &StatVfs, is_root: bool) -> Option<Self> {
        let blocks = if is_root { found.f_bfree } else { found.f_bavail };
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        if found.f_blocks > 0 && bytes(blocks) < MIN_FREE {
            return Some(Self::Space { free: bytes(blocks), total: bytes(found.f_blocks) });
        }
        let inodes = if is_root { found.f_ffree } else { found.f_favail };
        (found.f_files > 0 && inodes == 0).then_some(Self::Inodes { total: found.f_files })
    }
}

impl fmt::Display for DiskShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Space { free, total } => write!(f, "{} free of {}", ByteSize(free), ByteSize(total)),
            Self::Inodes { total } => write!(f, "0 inodes free of {total}"),
        }
    }
}

impl fmt::Display for FullLogFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (folder, shortage) = (self.folder.display(), &self.shortage);
        match shortage {
            DiskShortage::Space { .. } => {
                write!(f, "the log folder `{folder}` has no space left ({shortage})")
            }
            DiskShortage::Inodes { .. } => {
                write!(f, "the log folder `{folder}` has no room for another file ({shortage})")
            }
        }
    }
}

/// The reason why a file could not be written: the system's words, their meaning, and the hint.
pub(super) fn write_error_reason(error: &io::Error, file: &Path) -> String {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            format!("{error}; the limit on file sizes (`ulimit -f`) is reached")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let shortage = file.parent().and_then(DiskShortage::at);
            let numbers = shortage.map(|shortage| format!(", {shortage}")).unwrap_or_default();
            format!("{error}{numbers}; {FREE_SPACE_HINT}")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::StatVfsMountFlags;

    /// A file system with these numbers of blocks of 1 KiB and of inodes: total, free, and available to every user.
    fn found([blocks, bfree, bavail]: [u64; 3], [files, ffree, favail]: [u64; 3]) -> StatVfs {
        StatVfs {
            f_bsize: 4096,
            f_frsize: 1024,
            f_blocks: blocks,
            f_bfree: bfree,
            f_bavail: bavail,
            f_files: files,
            f_ffree: ffree,
            f_favail: favail,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: 255,
        }
    }

    #[test]
    fn disk_shortage_is_missing_space_or_inodes_for_user() {
        let (inodes, full) = ([100, 50, 50], Some(DiskShortage::Space { free: 0, total: 1 << 20 }));
        assert_eq!(DiskShortage::of(&found([1024, 0, 0], inodes), true), full);
        let reserved = found([1024, 51, 0], inodes);
        assert_eq!(DiskShortage::of(&reserved, true), None, "the superuser has the reserved blocks");
        assert_eq!(DiskShortage::of(&reserved, false), full);
        let rest = DiskShortage::Space { free: 3072, total: 1 << 20 };
        assert_eq!(DiskShortage::of(&found([1024, 3, 3], inodes), true), Some(rest));
        assert_eq!(DiskShortage::of(&found([1024, 4, 4], inodes), true), None);
        let no_inodes = found([1024, 500, 500], [100, 0, 0]);
        assert_eq!(DiskShortage::of(&no_inodes, true), Some(DiskShortage::Inodes { total: 100 }));
        assert_eq!(DiskShortage::of(&found([1024, 500, 500], [0, 0, 0]), true), None, "btrfs has none");
        assert_eq!(DiskShortage::of(&found([0, 0, 0], [0, 0, 0]), true), None, "`/proc` has neither");
    }

    #[test]
    fn full_log_folder_message_names_space_or_inodes() {
        let full = |shortage| FullLogFolder { folder: "/logs".into(), shortage }.to_string();
        assert_eq!(
            full(DiskShortage::Space { free: 0, total: 1 << 20 }),
            "the log folder `/logs` has no space left (0 B free of 1.0 MiB)"
        );
        assert_eq!(
            full(DiskShortage::Inodes { total: 8 }),
            "the log folder `/logs` has no room for another file (0 inodes free of 8)"
        );
    }
}
