//! The folder by which the workers of one generation show their progress: for each one a FIFO for its heartbeats, and
//! its progress page or the path of a socket on which its flight recorder answers.
//!
//! A FIFO of its own for each worker: what one writes counts for no other rank.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rankrun_contract::progress_page::PAGE_BYTES;
use rankrun_contract::rank::{Generation, JobId, LocalRank, LocalWorldSize};
use rankrun_core::spec::LaunchSpec;
use rankrun_core::worker_command::ProgressFiles;

/// `sun_path` of sockaddr_un(7), less the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;
/// Its name in the temporary folder of the job.
const FOLDER: &str = "progress";
/// Enough to tell jobs apart that run at the same time.
const JOB_DIGITS: usize = 12;

/// What workers have beside heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChannelKinds {
    pub(crate) has_recorder: bool,
    pub(crate) has_page: bool,
}

impl ChannelKinds {
    pub(crate) fn of(spec: &LaunchSpec) -> Self {
        Self { has_recorder: spec.asks_flight_recorders(), has_page: spec.has_progress_pages() }
    }
}

/// The channels of one generation. The folder is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ProgressChannels {
    folder: PathBuf,
    /// By local rank. Opened for writing too, so that they are never at an end.
    pub(super) fifos: Vec<File>,
    /// By local rank; empty without pages.
    pub(super) pages: Vec<File>,
    kinds: ChannelKinds,
}

impl ProgressChannels {
    /// Makes the folder in the first place that allows it: `base`, which `rankrun gc` removes after a kill of the
    /// launcher, or one for temporary files.
    pub(crate) fn open(
        base: Option<&Path>,
        environment: &[(OsString, OsString)],
        (job, generation): (&JobId, Generation),
        workers: LocalWorldSize,
        kinds: ChannelKinds,
    ) -> io::Result<Self> {
        let job: String = job.0.chars().filter(|letter| *letter != '-').take(JOB_DIGITS).collect();
        let own = base.map(|base| base.join(format!("{FOLDER}-{}", generation.0)));
        let name = format!("rankrun-{job}-{}", generation.0);
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for folder in own.into_iter().chain(places(environment).map(|place| place.join(&name))) {
            if !has_short_name(&folder) {
                failure = io::Error::other(format!("`{}` is too long for a socket", folder.display()));
                continue;
            }
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    let mut channels = Self { folder, fifos: Vec::new(), pages: Vec::new(), kinds };
                    channels.make_files(workers)?;
                    return Ok(channels);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn make_files(&mut self, workers: LocalWorldSize) -> io::Result<()> {
        for local_rank in (0..workers.get()).map(LocalRank) {
            let path = self.heartbeat_path(local_rank);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
            self.fifos.push(open?);
            if self.kinds.has_page {
                self.pages.push(make_page(&page_path(&self.folder, local_rank))?);
            }
        }
        Ok(())
    }

    pub(crate) fn files(&self, local_rank: LocalRank) -> ProgressFiles {
        files_in(&self.folder, local_rank, self.kinds)
    }

    fn heartbeat_path(&self, local_rank: LocalRank) -> PathBuf {
        heartbeat_path(&self.folder, local_rank)
    }

    /// Where its flight recorder answers, if it is asked.
    pub(super) fn recorder_path(&self, local_rank: LocalRank) -> Option<PathBuf> {
        self.kinds.has_recorder.then(|| recorder_path(&self.folder, local_rank))
    }
}

/// The files of a worker of the first generation as shell patterns, since each job has a folder of its own.
#[must_use]
pub fn file_patterns(
    environment: &[(OsString, OsString)],
    local_rank: LocalRank,
    spec: &LaunchSpec,
    base: Option<&Path>,
) -> Option<ProgressFiles> {
    if !spec.watches_progress() {
        return None;
    }
    let own = base.map(|base| base.join(format!("{FOLDER}-0")));
    let temporary = places(environment).filter(|place| place.is_dir()).map(|place| place.join("rankrun-*-0"));
    let mut folders = own.into_iter().chain(temporary);
    let kinds = ChannelKinds::of(spec);
    folders.find(|folder| has_short_name(folder)).map(|folder| files_in(&folder, local_rank, kinds))
}

/// In full: a store into a mapping without a block on a full disk would end the worker.
fn make_page(path: &Path) -> io::Result<File> {
    let mut page = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    page.write_all(&[0; PAGE_BYTES])?;
    Ok(page)
}

fn files_in(folder: &Path, local_rank: LocalRank, kinds: ChannelKinds) -> ProgressFiles {
    ProgressFiles {
        heartbeat: heartbeat_path(folder, local_rank),
        flight_recorder: kinds.has_recorder.then(|| recorder_path(folder, local_rank)),
        page: kinds.has_page.then(|| page_path(folder, local_rank)),
    }
}

/// True if each socket in the folder has a path that the kernel accepts.
fn has_short_name(folder: &Path) -> bool {
    recorder_path(folder, LocalRank(u32::MAX)).as_os_str().len() <= MAX_SOCKET_PATH
}

impl Drop for ProgressChannels {
    fn drop(&mut self) {
        // The kernel removes what a folder in memory holds at the next boot.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn heartbeat_path(folder: &Path, local_rank: LocalRank) -> PathBuf {
    folder.join(format!("{local_rank}.heartbeat"))
}

fn recorder_path(folder: &Path, local_rank: LocalRank) -> PathBuf {
    folder.join(format!("{local_rank}.recorder"))
}

fn page_path(folder: &Path, local_rank: LocalRank) -> PathBuf {
    folder.join(format!("{local_rank}.page"))
}

fn places(environment: &[(OsString, OsString)]) -> impl Iterator<Item = PathBuf> {
    let named = environment.iter().find(|(name, _)| name == "TMPDIR");
    let named = named.map(|(_, value)| PathBuf::from(value)).filter(|path| path.is_absolute());
    named.into_iter().chain([PathBuf::from("/tmp")])
}
