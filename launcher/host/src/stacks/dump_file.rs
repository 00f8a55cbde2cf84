//! The file in memory that a worker writes its Python stacks into. The worker inherits its descriptor, so no file system
//! is needed, and nothing is left behind.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rankrun_core::posix::Pid;
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, ftruncate, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

use super::collect::STACK_SIGNAL;

/// The file of one worker.
#[derive(Debug)]
pub(crate) struct DumpFile {
    file: File,
    inode: u64,
}

impl DumpFile {
    /// # Errors
    /// No descriptor is left, or the kernel has no such files.
    pub(crate) fn open() -> io::Result<Self> {
        let file = File::from(memfd_create("rankrun-stacks", MemfdFlags::CLOEXEC)?);
        // The worker appends, so that a file that was emptied begins at its start again.
        fcntl_setfl(&file, OFlags::APPEND)?;
        let inode = file.metadata()?.ino();
        Ok(Self { file, inode })
    }

    /// What the hook of the worker needs to know.
    pub(crate) fn variable(&self) -> String {
        format!("{}:{}:{STACK_SIGNAL}", self.file.as_raw_fd(), self.inode)
    }

    /// Lets processes inherit the file while `start` runs.
    pub(crate) fn inherited_by<T>(&self, start: impl FnOnce() -> T) -> T {
        // On failure the worker has no such descriptor, and its hook notices.
        let _ = fcntl_setfd(&self.file, FdFlags::empty());
        let started = start();
        let _ = fcntl_setfd(&self.file, FdFlags::CLOEXEC);
        started
    }

    /// Whether the process still has the file under the same descriptor.
    pub(super) fn is_open_in(&self, pid: Pid) -> bool {
        let path = format!("/proc/{pid}/fd/{}", self.file.as_raw_fd());
        fs::metadata(path).is_ok_and(|found| found.ino() == self.inode)
    }

    pub(super) fn clear(&self) -> io::Result<()> {
        Ok(ftruncate(&self.file, 0)?)
    }

    pub(super) fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Its bytes; of more than this number the first half and the last, with a line between that says so: the main thread
    /// stands last.
    pub(super) fn read(&self, most: usize) -> io::Result<Vec<u8>> {
        let len = self.len();
        if len <= most as u64 {
            return self.read_range(0, usize::try_from(len).unwrap_or(most));
        }
        let half = most / 2;
        let mut bytes = self.read_range(0, half)?;
        bytes.extend_from_slice(b"\n...\n");
        bytes.extend(self.read_range(len - half as u64, half)?);
        Ok(bytes)
    }

    fn read_range(&self, from: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], from + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

impl AsFd for DumpFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
