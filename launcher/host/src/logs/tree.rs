//! The log tree (contract 3.6). It exists even when nothing is logged, since torch's workers write their error
//! file into it; folders that stay empty are removed at the end.
//!
//! ```text
//! <base>/<run id>_XXXXXXXX/attempt_<restart count>/<local rank>/{stdout.log,stderr.log,error.json}
//! ```
//!
//! A generation that starts because other nodes have come or gone uses no restart, and the logs of the one before stay:
//! its folder is `attempt_<restart count>.round_<round>`.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount, RunId};
use uuid::Uuid;

use super::{LogError, LogNote, error_folder};
use rankrun_core::spec::LogDir;

/// Of the longest name of a file (255 bytes) some are left for the random end.
const NAME_LIMIT: usize = 200;
/// The base in the temporary folder.
const TEMPORARY: &str = "torchelastic";
/// The result of [`random_suffix`] as a shell pattern.
const RANDOM_SUFFIX_PATTERN: &str = "????????";
/// The file that a failing worker writes into its folder.
pub const ERROR_FILE: &str = "error.json";
/// Between the count of restarts and the number of the round.
const ROUND_INFIX: &str = ".round_";

/// The log folders of one launch.
#[derive(Debug)]
pub(crate) struct LogTree {
    /// The base, when it is ours to remove.
    temporary: Option<PathBuf>,
    /// Held as long as the agent lives, where the base is a folder of error files.
    _lock: Option<File>,
    run: PathBuf,
    attempts: Option<AttemptCounts>,
    /// Whether there are further folders, for rounds without a restart.
    has_rounds: bool,
}

/// The attempts so far, in numbers: after thousands of restarts they take no more memory than after one.
#[derive(Debug, Clone, Copy)]
struct AttemptCounts {
    /// Of the last one; they count from 0.
    restarts: RestartCount,
    /// Of the one that had the most.
    workers: LocalWorldSize,
}

/// The result of creating the log tree.
#[derive(Debug)]
pub(crate) enum TreeOutcome {
    /// The log tree has been created.
    Made(LogTree),
    /// The user switched the log tree off.
    Off,
    /// There is no place for the tree, and the job can run without it.
    Lost(LogNote),
}

/// The log folders of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    folder: PathBuf,
    workers: LocalWorldSize,
}

impl Attempt {
    /// The folders that a launch would make for its first generation, as a shell pattern: `*` stands for a run id
    /// that is not given, and each `?` for a random character.
    #[must_use]
    pub fn planned(dir: &LogDir, run_id: Option<&RunId>, workers: LocalWorldSize) -> Option<Self> {
        let base = match dir {
            LogDir::Temporary(parent) => name_with_suffix(parent, TEMPORARY, RANDOM_SUFFIX_PATTERN),
            LogDir::ErrorFiles(parent) => held_folder_pattern(parent),
            LogDir::At(base) => base.clone(),
            LogDir::Off => return None,
        };
        let name = run_id.map_or_else(|| "*".to_owned(), folder_name);
        let folder =
            name_with_suffix(&base, &name, RANDOM_SUFFIX_PATTERN).join(attempt_name(RestartCount(0)));
        Some(Self { folder, workers })
    }

    /// The path of the generation's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of one worker's folder.
    #[must_use]
    pub fn worker(&self, local_rank: LocalRank) -> PathBuf {
        self.folder.join(local_rank.to_string())
    }

    /// The error file of one worker (`TORCHELASTIC_ERROR_FILE`).
    #[must_use]
    pub fn error_file(&self, local_rank: LocalRank) -> PathBuf {
        let mut path = self.worker(local_rank);
        path.push(ERROR_FILE);
        path
    }

    /// Makes the folders, anew if they were there.
    fn make(&self) -> Result<(), LogError> {
        let made = match std::fs::create_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_dir_all(&self.folder).and_then(|()| std::fs::create_dir(&self.folder))
            }
            made => made,
        };
        made.map_err(|source| LogError::Folder { path: self.folder.clone(), source })?;
        for local_rank in (0..self.workers.get()).map(LocalRank) {
            let path = self.worker(local_rank);
            std::fs::create_dir(&path).map_err(|source| LogError::Folder { path, source })?;
        }
        Ok(())
    }

    fn remove_empty(&self) {
        for local_rank in (0..self.workers.get()).map(LocalRank) {
            // A folder with files stays; a missing one is not an error.
            let _ = std::fs::remove_dir(self.worker(local_rank));
        }
        let _ = std::fs::remove_dir(&self.folder);
    }
}

impl LogTree {
    /// Makes the folder of this launch.
    ///
    /// # Errors
    /// The folder that the user named cannot be made or written.
    pub(crate) fn make(dir: &LogDir, run_id: &RunId) -> Result<TreeOutcome, LogError> {
        let name = folder_name(run_id);
        match dir {
            LogDir::Off => Ok(TreeOutcome::Off),
            LogDir::Temporary(parent) | LogDir::ErrorFiles(parent) => {
                let is_held = matches!(dir, LogDir::ErrorFiles(_));
                Ok(match Self::make_temporary(parent, &name, is_held) {
                    Ok(tree) => TreeOutcome::Made(tree),
                    Err(source) => TreeOutcome::Lost(LogNote::NoTree { path: parent.clone(), source }),
                })
            }
            LogDir::At(base) => {
                let run = Self::make_at(base, &name);
                let run = run.map_err(|source| LogError::Folder { path: base.clone(), source })?;
                Ok(TreeOutcome::Made(Self {
                    temporary: None,
                    _lock: None,
                    run,
                    attempts: None,
                    has_rounds: false,
                }))
            }
        }
    }

    fn make_at(base: &Path, name: &str) -> io::Result<PathBuf> {
        match make_unique(base, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(base)?;
                make_unique(base, name)
            }
            made => made,
        }
    }

    /// The base, if it ends with the job.
    pub(crate) fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    fn make_temporary(parent: &Path, name: &str, is_held: bool) -> io::Result<Self> {
        let (base, lock) =
            if is_held { make_held_folder(parent)? } else { (make_unique(parent, TEMPORARY)?, None) };
        let run = make_unique(&base, name)?;
        Ok(Self { temporary: Some(base), _lock: lock, run, attempts: None, has_rounds: false })
    }

    /// Makes the folders of one generation, anew if they were there.
    ///
    /// # Errors
    /// The tree is no longer writable, or has no room.
    pub(crate) fn attempt(
        &mut self,
        restarts: RestartCount,
        workers: LocalWorldSize,
    ) -> Result<Attempt, LogError> {
        let attempt = self.attempt_of(restarts, workers);
        self.make_attempt(&attempt)?;
        self.attempts = Some(self.attempts.map_or(AttemptCounts { restarts, workers }, |before| {
            AttemptCounts { restarts: before.restarts.max(restarts), workers: before.workers.max(workers) }
        }));
        Ok(attempt)
    }

    /// Makes the folders of a generation that lives in this round; what another one has left under the same count of
    /// restarts stays.
    ///
    /// # Errors
    /// As [`Self::attempt`].
    pub(crate) fn attempt_in(
        &mut self,
        round: u64,
        restarts: RestartCount,
        workers: LocalWorldSize,
    ) -> Result<Attempt, LogError> {
        if self.attempts.is_none_or(|attempts| attempts.restarts < restarts) {
            return self.attempt(restarts, workers);
        }
        let name = format!("{}{ROUND_INFIX}{round}", attempt_name(restarts));
        let attempt = Attempt { folder: self.run.join(name), workers };
        self.make_attempt(&attempt)?;
        self.has_rounds = true;
        Ok(attempt)
    }

    /// Makes the folders of a generation. As under torchrun, a tree that was removed meanwhile is made again; not in
    /// the temporary folder, where another user could have made it.
    fn make_attempt(&self, attempt: &Attempt) -> Result<(), LogError> {
        if self.temporary.is_none() {
            let made = std::fs::create_dir_all(&self.run);
            made.map_err(|source| LogError::Folder { path: self.run.clone(), source })?;
        }
        attempt.make()
    }

    /// All that were made; some may have had fewer workers.
    fn attempts(&self) -> impl Iterator<Item = Attempt> {
        let made = self.attempts.into_iter();
        made.flat_map(move |AttemptCounts { restarts, workers }| {
            (0..=restarts.0).map(move |restarts| self.attempt_of(RestartCount(restarts), workers))
        })
    }

    /// The further ones; some may have had fewer workers.
    fn rounds(&self) -> Vec<Attempt> {
        let Some(AttemptCounts { workers, .. }) = self.attempts.filter(|_| self.has_rounds) else {
            return Vec::new();
        };
        let found = std::fs::read_dir(&self.run).into_iter().flatten().flatten();
        let is_of_round = |name: &OsStr| name.to_str().is_some_and(|name| name.contains(ROUND_INFIX));
        let found = found.filter(|entry| is_of_round(&entry.file_name()));
        found.map(|entry| Attempt { folder: entry.path(), workers }).collect()
    }

    fn attempt_of(&self, restarts: RestartCount, workers: LocalWorldSize) -> Attempt {
        Attempt { folder: self.run.join(attempt_name(restarts)), workers }
    }

    /// The path of this launch's folder.
    #[must_use]
    pub(crate) fn run_folder(&self) -> &Path {
        &self.run
    }

    /// The error files that workers of any generation have left, up to this number. Links that a worker made are not
    /// followed.
    #[must_use]
    pub(crate) fn error_files(&self, at_most: usize) -> Vec<PathBuf> {
        let workers = folders_in(&self.run).flat_map(|attempt| folders_in(&attempt));
        let files = workers.map(|worker| worker.join(ERROR_FILE));
        files.filter(|file| file.symlink_metadata().is_ok()).take(at_most).collect()
    }

    /// Removes empty folders; a folder with files stays, and all folders above it.
    pub(crate) fn remove_empty(&self) {
        self.attempts().for_each(|attempt| attempt.remove_empty());
        self.rounds().iter().for_each(Attempt::remove_empty);
        let folders = [Some(&self.run), self.temporary.as_ref()];
        // The first that stays keeps the ones above it.
        let _ = folders.iter().flatten().try_for_each(std::fs::remove_dir);
    }
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// The run id as a folder's name: torch fails on a `/` in it (contract 8.22).
fn folder_name(run_id: &RunId) -> String {
    let mut name = run_id.0.replace(['/', '\0'], "_");
    name.truncate(name.floor_char_boundary(NAME_LIMIT));
    name
}

fn attempt_name(restarts: RestartCount) -> String {
    format!("attempt_{restarts}")
}

fn name_with_suffix(parent: &Path, name: &str, end: &str) -> PathBuf {
    parent.join(format!("{name}_{end}"))
}

/// Makes a folder that `rankrun gc` removes if the launcher is killed, and the lock that keeps it until then.
pub(crate) fn make_held_folder(parent: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let made = make_unique(parent, TEMPORARY)?;
    Ok(error_folder::lock_folder(made, &random_suffix()))
}

/// Its path as a shell pattern.
pub(crate) fn held_folder_pattern(parent: &Path) -> PathBuf {
    name_with_suffix(parent, error_folder::NAME_PREFIX, RANDOM_SUFFIX_PATTERN)
}

/// Makes `<parent>/<name>_XXXXXXXX`, for our user alone.
fn make_unique(parent: &Path, name: &str) -> io::Result<PathBuf> {
    loop {
        let path = name_with_suffix(parent, name, &random_suffix());
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Eight random characters, as Python's `tempfile` uses them.
fn random_suffix() -> String {
    const CHARACTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789_";
    let number = Uuid::new_v4().as_u128();
    (0..8).map(|place| char::from(CHARACTERS[((number >> (place * 8)) & 0xff) as usize % 37])).collect()
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
