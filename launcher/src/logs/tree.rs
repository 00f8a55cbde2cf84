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
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount, RunId};
use uuid::Uuid;

use super::{LogError, LogNote};
use crate::spec::LogDir;

/// Of the longest name of a file (255 bytes) some are left for the random end.
const NAME_LIMIT: usize = 200;
/// The base in the temporary folder.
const TEMPORARY: &str = "torchelastic";
/// What [`random_end`] gives, as a shell pattern.
const ANY_END: &str = "????????";
/// Between the count of restarts and the number of the round.
const OF_ROUND: &str = ".round_";

/// The folders of one launch.
#[derive(Debug)]
pub struct LogTree {
    /// The base, when it is ours to remove.
    temporary: Option<PathBuf>,
    run: PathBuf,
    made: Option<Made>,
    /// Whether there are further folders, for rounds without a restart.
    has_rounds: bool,
}

/// The attempts so far, in numbers: after thousands of restarts they take no more memory than after one.
#[derive(Debug, Clone, Copy)]
struct Made {
    /// Of the last one; they count from 0.
    restarts: RestartCount,
    /// Of the one that had the most.
    workers: LocalWorldSize,
}

/// What came of the wish for a tree.
#[derive(Debug)]
pub enum TreeOutcome {
    /// There is one.
    Made(LogTree),
    /// The user switched it off.
    Off,
    /// There is no place for it, and the job can do without.
    Lost(LogNote),
}

/// The folders of one generation.
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
            LogDir::Temporary(parent) => unique(parent, TEMPORARY, ANY_END),
            LogDir::At(base) => base.clone(),
            LogDir::Off => return None,
        };
        let name = run_id.map_or_else(|| "*".to_owned(), folder_name);
        let folder = unique(&base, &name, ANY_END).join(attempt_name(RestartCount(0)));
        Some(Self { folder, workers })
    }

    /// The folder of the generation.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of one worker.
    #[must_use]
    pub fn worker(&self, local_rank: LocalRank) -> PathBuf {
        self.folder.join(local_rank.to_string())
    }

    /// Where one worker writes what it died of (`TORCHELASTIC_ERROR_FILE`).
    #[must_use]
    pub fn error_file(&self, local_rank: LocalRank) -> PathBuf {
        let mut path = self.worker(local_rank);
        path.push("error.json");
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
            // Not empty is no fault, and neither is gone, or never made.
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
    pub fn make(dir: &LogDir, run_id: &RunId) -> Result<TreeOutcome, LogError> {
        let name = folder_name(run_id);
        match dir {
            LogDir::Off => Ok(TreeOutcome::Off),
            LogDir::Temporary(parent) => Ok(match Self::make_temporary(parent, &name) {
                Ok(tree) => TreeOutcome::Made(tree),
                Err(source) => TreeOutcome::Lost(LogNote::NoTree { path: parent.clone(), source }),
            }),
            LogDir::At(base) => {
                let run = Self::make_at(base, &name);
                let run = run.map_err(|source| LogError::Folder { path: base.clone(), source })?;
                Ok(TreeOutcome::Made(Self { temporary: None, run, made: None, has_rounds: false }))
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

    fn make_temporary(parent: &Path, name: &str) -> io::Result<Self> {
        let base = make_unique(parent, TEMPORARY)?;
        let run = make_unique(&base, name)?;
        Ok(Self { temporary: Some(base), run, made: None, has_rounds: false })
    }

    /// Makes the folders of one generation, anew if they were there.
    ///
    /// # Errors
    /// The tree is no longer writable, or has no room.
    pub fn attempt(&mut self, restarts: RestartCount, workers: LocalWorldSize) -> Result<Attempt, LogError> {
        let attempt = self.attempt_of(restarts, workers);
        attempt.make()?;
        self.made = Some(self.made.map_or(Made { restarts, workers }, |before| Made {
            restarts: before.restarts.max(restarts),
            workers: before.workers.max(workers),
        }));
        Ok(attempt)
    }

    /// Makes the folders of a generation that lives in this round; what another one has left under the same count of
    /// restarts stays.
    ///
    /// # Errors
    /// As [`Self::attempt`].
    pub fn attempt_in(
        &mut self,
        round: u64,
        restarts: RestartCount,
        workers: LocalWorldSize,
    ) -> Result<Attempt, LogError> {
        if self.made.is_none_or(|made| made.restarts < restarts) {
            return self.attempt(restarts, workers);
        }
        let name = format!("{}{OF_ROUND}{round}", attempt_name(restarts));
        let attempt = Attempt { folder: self.run.join(name), workers };
        attempt.make()?;
        self.has_rounds = true;
        Ok(attempt)
    }

    /// All that were made; some may have had fewer workers.
    fn attempts(&self) -> impl Iterator<Item = Attempt> {
        let made = self.made.into_iter();
        made.flat_map(move |Made { restarts, workers }| {
            (0..=restarts.0).map(move |restarts| self.attempt_of(RestartCount(restarts), workers))
        })
    }

    /// The further ones; some may have had fewer workers.
    fn rounds(&self) -> Vec<Attempt> {
        let Some(Made { workers, .. }) = self.made.filter(|_| self.has_rounds) else { return Vec::new() };
        let found = std::fs::read_dir(&self.run).into_iter().flatten().flatten();
        let is_of_round = |name: &OsStr| name.to_str().is_some_and(|name| name.contains(OF_ROUND));
        let found = found.filter(|entry| is_of_round(&entry.file_name()));
        found.map(|entry| Attempt { folder: entry.path(), workers }).collect()
    }

    fn attempt_of(&self, restarts: RestartCount, workers: LocalWorldSize) -> Attempt {
        Attempt { folder: self.run.join(attempt_name(restarts)), workers }
    }

    /// The folder of this launch.
    #[must_use]
    pub fn run_folder(&self) -> &Path {
        &self.run
    }

    /// Removes what stayed empty; a folder with files stays, and whatever is above it.
    pub fn remove_empty(self) {
        self.attempts().for_each(|attempt| attempt.remove_empty());
        self.rounds().iter().for_each(Attempt::remove_empty);
        let folders = [Some(self.run), self.temporary];
        // The first that stays keeps the ones above it.
        let _ = folders.iter().flatten().try_for_each(std::fs::remove_dir);
    }
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

fn unique(parent: &Path, name: &str, end: &str) -> PathBuf {
    parent.join(format!("{name}_{end}"))
}

/// Makes `<parent>/<name>_XXXXXXXX`, for our user alone.
fn make_unique(parent: &Path, name: &str) -> io::Result<PathBuf> {
    loop {
        let path = unique(parent, name, &random_end());
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Eight random characters, of those that Python's `tempfile` uses.
fn random_end() -> String {
    const CHARACTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789_";
    let number = Uuid::new_v4().as_u128();
    (0..8).map(|place| char::from(CHARACTERS[((number >> (place * 8)) & 0xff) as usize % 37])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A folder that is gone at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            Self(make_unique(&std::env::temp_dir(), "rankrun-test").unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn made(dir: &LogDir, id: &str) -> LogTree {
        match LogTree::make(dir, &run_id(id)).unwrap() {
            TreeOutcome::Made(tree) => tree,
            other => panic!("{other:?}"),
        }
    }

    fn run_id(text: &str) -> RunId {
        RunId(text.to_owned())
    }

    fn two() -> LocalWorldSize {
        LocalWorldSize::new(2).unwrap()
    }

    #[test]
    fn the_tree_is_torchs() {
        let scratch = Scratch::new();
        let base = scratch.0.join("a/b");
        let mut tree = made(&LogDir::At(base.clone()), "x/y");
        let attempt = tree.attempt(RestartCount(0), two()).unwrap();
        let name = tree.run_folder().file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("x_y_") && name.len() == 12, "{name}");
        assert_eq!(tree.run_folder().parent(), Some(&*base));
        assert_eq!(tree.run_folder().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(attempt.error_file(LocalRank(1)), tree.run_folder().join("attempt_0/1/error.json"));
        assert!(attempt.worker(LocalRank(1)).is_dir());
    }

    #[test]
    fn an_attempt_is_made_anew() {
        let scratch = Scratch::new();
        let mut tree = made(&LogDir::At(scratch.0.clone()), "j");
        let first = tree.attempt(RestartCount(1), two()).unwrap();
        std::fs::write(first.error_file(LocalRank(0)), "{}").unwrap();
        let second = tree.attempt(RestartCount(1), two()).unwrap();
        assert_eq!(first, second);
        assert!(!second.error_file(LocalRank(0)).exists());
    }

    #[test]
    fn a_round_without_a_restart_leaves_the_logs_before_it() {
        let scratch = Scratch::new();
        let mut tree = made(&LogDir::At(scratch.0.clone()), "j");
        let name = |attempt: &Attempt| attempt.folder().file_name().unwrap().to_str().unwrap().to_owned();
        let made = [(0, 0), (2, 0), (3, 1), (4, 1)]
            .map(|(round, restarts)| tree.attempt_in(round, RestartCount(restarts), two()).unwrap());
        let names = ["attempt_0", "attempt_0.round_2", "attempt_1", "attempt_1.round_4"];
        assert_eq!(made.each_ref().map(name), names);
        let [first, second, ..] = &made;
        assert!(first.worker(LocalRank(1)).is_dir() && second.worker(LocalRank(1)).is_dir());
        std::fs::write(second.error_file(LocalRank(0)), "{}").unwrap();
        tree.remove_empty();
        assert!(second.error_file(LocalRank(0)).exists() && !second.worker(LocalRank(1)).exists());
        assert!(made.iter().all(|attempt| attempt == second || !attempt.folder().exists()));
    }

    #[test]
    fn empty_folders_are_removed_and_others_stay() {
        let scratch = Scratch::new();
        let dir = LogDir::Temporary(scratch.0.clone());
        let mut tree = made(&dir, "j");
        tree.attempt(RestartCount(0), two()).unwrap();
        let kept = tree.attempt(RestartCount(1), two()).unwrap();
        let run = tree.run_folder().to_owned();
        std::fs::write(kept.error_file(LocalRank(1)), "{}").unwrap();
        tree.remove_empty();
        assert!(kept.error_file(LocalRank(1)).exists());
        assert!(!kept.worker(LocalRank(0)).exists());
        assert!(!run.join("attempt_0").exists());

        let mut tree = made(&dir, "j");
        for (restarts, workers) in [(0, 2), (1, 1)] {
            tree.attempt(RestartCount(restarts), LocalWorldSize::new(workers).unwrap()).unwrap();
        }
        let base = tree.run_folder().parent().unwrap().to_owned();
        assert!(base.file_name().unwrap().to_str().unwrap().starts_with("torchelastic_"));
        tree.remove_empty();
        assert!(!base.exists());
    }

    #[test]
    fn a_folder_that_the_user_named_must_be_writable() {
        let scratch = Scratch::new();
        let file = scratch.0.join("file");
        std::fs::write(&file, "").unwrap();
        let error =
            LogTree::make(&LogDir::At(file.join("logs")), &run_id("j")).expect_err("a file is no folder");
        assert!(matches!(&error, LogError::Folder { path, .. } if *path == file.join("logs")), "{error:?}");
        assert!(error.to_string().contains("logs`"), "{error}");
    }

    #[test]
    fn without_a_temporary_folder_there_is_a_note() {
        let scratch = Scratch::new();
        let missing = scratch.0.join("missing");
        let outcome = LogTree::make(&LogDir::Temporary(missing), &run_id("j")).unwrap();
        assert!(matches!(outcome, TreeOutcome::Lost(LogNote::NoTree { .. })), "{outcome:?}");
    }

    #[test]
    fn a_long_run_id_is_cut_between_characters() {
        assert_eq!(folder_name(&run_id(&"\u{e9}".repeat(300))).len(), NAME_LIMIT);
        assert!(folder_name(&run_id(&format!("a{}", "\u{e9}".repeat(300)))).len() < NAME_LIMIT);
    }
}
