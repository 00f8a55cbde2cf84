//! Tells the file systems of this machine's own disks and memory from those that wait for a server.

use std::path::Path;

use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs,
};

/// `ZFS_SUPER_MAGIC` of OpenZFS.
const ZFS_SUPER_MAGIC: FsType = FsType(0x2fc1_2fc1);

/// An overlay is not among them: what lies below it may be anything.
const LOCAL: [FsType; 6] =
    [BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, ZFS_SUPER_MAGIC];

/// True if calls on `path` need no server, so they do not hang (statfs(2)). False if there is no such file. The question
/// itself may hang on another file system.
#[must_use]
pub fn is_on_local_disk(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| LOCAL.contains(&found.filesystem_type()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_local_and_proc_is_not() {
        assert!(is_on_local_disk(Path::new("/dev/shm")));
        assert!(!is_on_local_disk(Path::new("/proc/self")));
        assert!(!is_on_local_disk(Path::new("/no/such/file")));
    }
}
