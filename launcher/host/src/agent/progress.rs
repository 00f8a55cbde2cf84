//! Checks a job's progress at the end of a generation: whether any file of the checkpoint folder has changed since the last
//! check, or without a folder which step the heartbeats have reached. A thread of its own does it, as a network file system
//! may be slow and signals are answered meanwhile.
//!
//! File times are only compared for equality: a file from the future, or a clock that was set back, hides
//! nothing. The result is one hash; core's `recurrence` decides what it means.

use std::fs::{self, DirEntry, Metadata, ReadDir};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rankrun_contract::rank::{Generation, LocalRank};

use crate::agent::Agent;
use crate::blocking::{BlockingCall, CallProgress, CallStep};
use crate::hang::progress_watch::EndedWatch;
use rankrun_core::agent::message::Input;
use rankrun_core::agent::recurrence::{CheckpointFingerprint, ProgressMark, RaisedException};
use rankrun_core::placement::WorkerId;

/// A checkpoint is a file of the folder, or a folder of files.
const MAX_DEPTH: usize = 4;
const MAX_FILES: usize = 1_000_000;

impl Agent<'_> {
    /// Starts a check; returns the answer at once if the check cannot run.
    pub(super) fn probe_progress(
        &mut self,
        generation: Generation,
        raised_by: Option<LocalRank>,
    ) -> Option<Input> {
        let folder = self.workers.spec().restart.progress.as_ref()?.folder.clone();
        let worker = raised_by.map(|local_rank| WorkerId { generation, local_rank });
        let exception = worker.and_then(|worker| self.workers.raised_exception(worker));
        let ended_watch = self.ended_watch.take();
        if self.progress_probe.is_some() {
            // The thread before hangs: a second thread would hang beside it.
            return Some(Input::ProgressProbed { generation, mark: None, exception });
        }
        self.progress_probe = match folder {
            Some(folder) => {
                ProgressProbe::start(generation, exception.clone(), move || probe_folder(&folder))
            }
            None => ProgressProbe::start(generation, exception.clone(), move || {
                let step = ended_watch.as_ref().map_or(Ok(None), EndedWatch::highest_step);
                step.ok().map(ProgressMark::Step)
            }),
        };
        self.progress_probe.is_none().then_some(Input::ProgressProbed { generation, mark: None, exception })
    }
}

/// One check, from the question to the answer.
pub(super) struct ProgressProbe {
    generation: Generation,
    exception: Option<RaisedException>,
    call: BlockingCall<Option<ProgressMark>>,
}

impl ProgressProbe {
    /// Starts to look; `None` if no descriptor or no thread is left.
    fn start(
        generation: Generation,
        exception: Option<RaisedException>,
        look: impl FnOnce() -> Option<ProgressMark> + Send + 'static,
    ) -> Option<Self> {
        let warn = |error: &io::Error| tracing::warn!(%error, "cannot look for the job's progress");
        let call = BlockingCall::start("progress", move |_: &CallStep| look()).inspect_err(warn).ok()?;
        Some(Self { generation, exception, call })
    }

    /// Becomes readable when [`Self::advance`] has an answer.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// The answer, if it is there.
    pub(super) fn advance(&mut self) -> Option<Input> {
        let mark = match self.call.progress() {
            CallProgress::Running => return None,
            CallProgress::Returned(mark) => mark,
            CallProgress::Lost => None,
        };
        Some(Input::ProgressProbed { generation: self.generation, mark, exception: self.exception.take() })
    }
}

/// `None` if the folder cannot be read.
fn probe_folder(folder: &Path) -> Option<ProgressMark> {
    fingerprint_folder(folder)
        .inspect_err(
            |error| tracing::warn!(%error, folder = %folder.display(), "the job's progress cannot be seen"),
        )
        .map(ProgressMark::Files)
        .ok()
}

/// Hashes all files of the folder and its subfolders; links are not followed. A missing folder has no files.
///
/// # Errors
/// The folder, or the file system under it, cannot be read. A subfolder of another user is skipped.
fn fingerprint_folder(folder: &Path) -> io::Result<CheckpointFingerprint> {
    let mut fingerprint = 0_u64;
    let mut left = MAX_FILES;
    let mut folders: Vec<(ReadDir, usize)> = ignore_error(ErrorKind::NotFound, fs::read_dir(folder))?
        .into_iter()
        .map(|root| (root, MAX_DEPTH))
        .collect();
    while let Some((entries, depth)) = folders.pop() {
        for entry in entries {
            if left == 0 {
                return Ok(CheckpointFingerprint(fingerprint));
            }
            left -= 1;
            let entry = entry?;
            let Some(metadata) = ignore_error(ErrorKind::NotFound, entry.metadata())? else { continue };
            if metadata.is_file() {
                // Addition is independent of the listing order.
                fingerprint = fingerprint.wrapping_add(entry_hash(&entry, &metadata));
            } else if metadata.is_dir() && depth > 1 {
                let inner = ignore_error(ErrorKind::NotFound, fs::read_dir(entry.path()));
                let inner =
                    inner.map_or_else(|error| ignore_error(ErrorKind::PermissionDenied, Err(error)), Ok)?;
                folders.extend(inner.map(|inner| (inner, depth - 1)));
            }
        }
    }
    Ok(CheckpointFingerprint(fingerprint))
}

/// Maps this error to `None`.
fn ignore_error<T>(reason: ErrorKind, result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == reason => Ok(None),
        result => result.map(Some),
    }
}

fn entry_hash(entry: &DirEntry, metadata: &Metadata) -> u64 {
    let mut hasher = DefaultHasher::new();
    let written = (metadata.mtime(), metadata.mtime_nsec());
    (entry.path(), metadata.ino(), metadata.size(), written).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    #[test]
    fn every_file_change_changes_the_fingerprint() {
        let folder = std::env::temp_dir().join(format!("rankrun-progress-{}", std::process::id()));
        fs::create_dir_all(folder.join("step-2")).unwrap();
        let nothing = fingerprint_folder(&folder).unwrap();
        assert_eq!(fingerprint_folder(&folder.join("missing")).unwrap(), nothing, "a folder is not a file");
        let write = |name: &str, seconds| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::create(folder.join(name)).unwrap().set_modified(at).unwrap();
        };
        let mut before = nothing;
        let mut must_differ = |what: &str| {
            let now = fingerprint_folder(&folder).unwrap();
            assert_ne!(now, before, "{what}");
            assert_eq!(fingerprint_folder(&folder).unwrap(), now, "{what}");
            before = now;
        };
        write("of-the-future", 9_000_000_000);
        must_differ("a file that was not there");
        write("step-1", 1_000);
        must_differ("one that is older than another one");
        write("step-2/model", 2_000);
        must_differ("one in a folder");
        write("step-1", 999);
        must_differ("one that became older");
        fs::write(folder.join("step-1"), "longer").unwrap();
        File::options()
            .write(true)
            .open(folder.join("step-1"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        must_differ("one that was written again");
        fs::remove_file(folder.join("of-the-future")).unwrap();
        must_differ("one that is gone");
        symlink("/proc/self/stat", folder.join("link")).unwrap();
        assert_eq!(fingerprint_folder(&folder).unwrap(), before, "what a link leads to");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn unreadable_folder_is_an_error() {
        assert!(fingerprint_folder(Path::new("/proc/self/stat")).is_err());
    }
}
