//! The look at a job's progress: how new the newest file of a folder is. A thread of its own reads the folder, since
//! a file system of the network may take its time and signals are answered meanwhile.

use std::fs::{self, DirEntry};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use rankrun_contract::rank::Generation;

use crate::agent::message::Input;

/// A checkpoint is a file of the folder, or a folder of files.
const DEEPEST: usize = 4;
/// More files are not looked at.
const MOST_FILES: usize = 1_000_000;
/// Seconds and nanoseconds since the epoch.
const ANSWER: usize = 12;

/// One look, from the question to the answer.
pub(super) struct ProgressLook {
    generation: Generation,
    answer: UnixStream,
}

impl ProgressLook {
    /// Begins to read the folder.
    ///
    /// # Errors
    /// The answer at once, where no descriptor or no thread is left.
    pub(super) fn start(generation: Generation, folder: PathBuf) -> Result<Self, Input> {
        Self::ask(generation, folder).map_err(|error| {
            tracing::warn!(%error, "nobody can look at the job's progress");
            Input::ProgressSeen { generation, newest: None }
        })
    }

    fn ask(generation: Generation, folder: PathBuf) -> io::Result<Self> {
        let (answer, mut asked) = UnixStream::pair()?;
        answer.set_nonblocking(true)?;
        let look = move || {
            let newest = newest(&folder).and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            if let Some(newest) = newest {
                let mut bytes = [0; ANSWER];
                bytes[..8].copy_from_slice(&newest.as_secs().to_ne_bytes());
                bytes[8..].copy_from_slice(&newest.subsec_nanos().to_ne_bytes());
                // Where the job has ended meanwhile nobody asks any more.
                let _ = asked.write_all(&bytes);
            }
        };
        thread::Builder::new().name("progress".to_owned()).spawn(look)?;
        Ok(Self { generation, answer })
    }

    /// Becomes readable when [`Self::advance`] has something to tell.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }

    /// The answer, if it is there: a few bytes that were written at once, or the end.
    pub(super) fn advance(&mut self) -> Option<Input> {
        let mut bytes = [0; ANSWER];
        let newest = match self.answer.read(&mut bytes) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return None;
            }
            Ok(ANSWER) => {
                let (seconds, nanos) = bytes.split_at(8);
                let seconds = u64::from_ne_bytes(seconds.try_into().unwrap_or_default());
                let nanos = u32::from_ne_bytes(nanos.try_into().unwrap_or_default());
                let since = Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos.into()));
                since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since))
            }
            Ok(_) | Err(_) => None,
        };
        Some(Input::ProgressSeen { generation: self.generation, newest })
    }
}

/// When the newest file of the folder and of those in it was written; links are not followed.
fn newest(folder: &Path) -> Option<SystemTime> {
    let mut newest = None;
    let mut left = MOST_FILES;
    let mut folders = vec![(folder.to_owned(), DEEPEST)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if left == 0 {
                return newest;
            }
            left -= 1;
            match kind(&entry) {
                Some(Kind::Folder) if depth > 1 => folders.push((entry.path(), depth - 1)),
                Some(Kind::File(written)) => newest = newest.max(Some(written)),
                Some(Kind::Folder) | None => {}
            }
        }
    }
    newest
}

enum Kind {
    Folder,
    File(SystemTime),
}

fn kind(entry: &DirEntry) -> Option<Kind> {
    let metadata = entry.metadata().ok()?;
    if metadata.is_dir() {
        Some(Kind::Folder)
    } else if metadata.is_file() {
        metadata.modified().ok().map(Kind::File)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_newest_file_counts_wherever_it_lies() {
        let folder = std::env::temp_dir().join(format!("rankrun-progress-{}", std::process::id()));
        fs::create_dir_all(folder.join("step-2")).unwrap();
        assert_eq!(newest(&folder), None, "a folder is no file");
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let write = |name: &str, seconds| {
            File::create(folder.join(name)).unwrap().set_modified(at(seconds)).unwrap();
        };
        write("step-1", 1_000);
        write("step-2/model", 2_000);
        std::os::unix::fs::symlink("/proc/self/stat", folder.join("link")).unwrap();
        assert_eq!(newest(&folder), Some(at(2_000)));
        assert_eq!(newest(&folder.join("missing")), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
