//! The folder by which the workers of one generation show their progress: for each one a FIFO for its heartbeats, and
//! the path of a socket on which its flight recorder answers.
//!
//! A FIFO of its own for each worker: what one writes counts for no other rank.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rankrun_contract::rank::{Generation, JobId, LocalRank, LocalWorldSize};
use rankrun_core::worker_command::ProgressFiles;

/// `sun_path` of sockaddr_un(7), less the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;
/// Enough to tell jobs apart that run at the same time.
const JOB_DIGITS: usize = 12;

/// The channels of one generation. The folder is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ProgressChannels {
    folder: PathBuf,
    /// By local rank. Opened for writing too, so that they are never at an end.
    pub(super) fifos: Vec<File>,
}

impl ProgressChannels {
    /// Makes the folder in the first place that allows it.
    pub(crate) fn open(
        environment: &[(OsString, OsString)],
        (job, generation): (&JobId, Generation),
        workers: LocalWorldSize,
    ) -> io::Result<Self> {
        let job: String = job.0.chars().filter(|letter| *letter != '-').take(JOB_DIGITS).collect();
        let name = format!("rankrun-{job}-{}", generation.0);
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for place in places(environment) {
            let folder = place.join(&name);
            if !has_short_name(&folder) {
                failure = io::Error::other(format!("`{}` is too long for a socket", folder.display()));
                continue;
            }
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    let mut channels = Self { folder, fifos: Vec::new() };
                    channels.make_fifos(workers)?;
                    return Ok(channels);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn make_fifos(&mut self, workers: LocalWorldSize) -> io::Result<()> {
        for local_rank in (0..workers.get()).map(LocalRank) {
            let path = self.heartbeat_path(local_rank);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
            self.fifos.push(open?);
        }
        Ok(())
    }

    pub(crate) fn files(&self, local_rank: LocalRank, has_recorder: bool) -> ProgressFiles {
        files_in(&self.folder, local_rank, has_recorder)
    }

    fn heartbeat_path(&self, local_rank: LocalRank) -> PathBuf {
        heartbeat_path(&self.folder, local_rank)
    }

    pub(super) fn recorder_path(&self, local_rank: LocalRank) -> PathBuf {
        recorder_path(&self.folder, local_rank)
    }
}

/// The files of a worker of the first generation as shell patterns, since each job has a folder of its own.
#[must_use]
pub fn file_patterns(
    environment: &[(OsString, OsString)],
    local_rank: LocalRank,
    has_recorder: bool,
) -> Option<ProgressFiles> {
    let mut folders =
        places(environment).filter(|place| place.is_dir()).map(|place| place.join("rankrun-*-0"));
    folders.find(|folder| has_short_name(folder)).map(|folder| files_in(&folder, local_rank, has_recorder))
}

fn files_in(folder: &Path, local_rank: LocalRank, has_recorder: bool) -> ProgressFiles {
    ProgressFiles {
        heartbeat: heartbeat_path(folder, local_rank),
        flight_recorder: has_recorder.then(|| recorder_path(folder, local_rank)),
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

fn places(environment: &[(OsString, OsString)]) -> impl Iterator<Item = PathBuf> {
    let named = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(|wanted| {
        let found = environment.iter().find(|(name, _)| name.as_bytes() == wanted.as_bytes());
        found.map(|(_, value)| PathBuf::from(value)).filter(|path| path.is_absolute())
    });
    named.chain([PathBuf::from("/tmp")]).collect::<Vec<_>>().into_iter()
}
