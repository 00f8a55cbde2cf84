//! Tells the file systems in memory and on disks from those that wait for a server.

use std::path::Path;

use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs,
};

/// `ZFS_SUPER_MAGIC` of OpenZFS.
const ZFS_SUPER_MAGIC: FsType = FsType(0x2fc1_2fc1);

/// An overlay is not among them: what lies below it may be anything.
const LOCAL: [FsType; 6] =
    [BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, ZFS_SUPER_MAGIC];

/// True if reads of `path` need no server (statfs(2)). A write may still hang: the disk may be frozen for a snapshot, or
/// be a network's block device. False if there is no such file. The question itself may hang on another file system.
#[must_use]
pub(crate) fn is_on_local_disk(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| LOCAL.contains(&found.filesystem_type()))
}

/// True if no call on `path` hangs: the files are in memory. Otherwise as [`is_on_local_disk`].
#[must_use]
pub(crate) fn is_in_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_local_and_proc_is_not() {
        assert!(is_in_memory(Path::new("/dev/shm")) && is_on_local_disk(Path::new("/dev/shm")));
        assert!(!is_in_memory(Path::new("/proc/self")));
        assert!(!is_on_local_disk(Path::new("/proc/self")));
        assert!(!is_on_local_disk(Path::new("/no/such/file")));
    }
}
