//! The folder by which the workers of one generation show their progress: for each one a FIFO for its heartbeats, and
//! its progress page or the path of a socket on which its flight recorder answers. For rank 0 also the token of the server
//! that answers its Trainer.
//!
//! A FIFO of its own for each worker: what one writes counts for no other rank.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rankrun_contract::progress_page::PAGE_BYTES;
use rankrun_contract::rank::{Generation, LocalRank, LocalWorldSize, Rank};

use super::ras_client::RasPort;
use super::trainer_server::{SharedTrainerStatus, TrainerServer};
use crate::logs::tree::{held_folder_pattern, make_held_folder};
use rankrun_core::device::DeviceType;
use rankrun_core::hang::ras::{RAS_ADDR, RAS_ENABLE};
use rankrun_core::hang::trainer_access::{TrainerAccess, has_server};
use rankrun_core::placement::Placement;
use rankrun_core::spec::LaunchSpec;
use rankrun_core::worker_command::ProgressFiles;

/// `sun_path` of sockaddr_un(7), less the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;
/// Its name in the temporary folder of the job.
const FOLDER: &str = "progress";

/// What workers have beside heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a channel of its own")]
pub(crate) struct ChannelKinds {
    pub(crate) has_recorder: bool,
    pub(crate) has_page: bool,
    /// NCCL answers on a port of the node.
    pub(crate) has_ras: bool,
}

impl ChannelKinds {
    /// Of workers with devices of this kind, in this environment. A server of RAS that the user has set up stays.
    pub(crate) fn of(spec: &LaunchSpec, device: DeviceType, environment: &[(OsString, OsString)]) -> Self {
        let is_users = |(name, value): &(OsString, OsString)| {
            name == RAS_ADDR && !value.is_empty() || name == RAS_ENABLE && value == "0"
        };
        let has_ras = device == DeviceType::Cuda && spec.has_hooks() && !environment.iter().any(is_users);
        Self { has_recorder: spec.asks_flight_recorders(), has_page: spec.has_progress_pages(), has_ras }
    }
}

/// The channels of one generation. The folder is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ProgressChannels {
    folder: PathBuf,
    /// By local rank. Opened for writing too, so that they are never at an end.
    pub(super) fifos: Vec<Arc<File>>,
    /// By local rank; empty without pages.
    pub(super) pages: Vec<Arc<File>>,
    kinds: ChannelKinds,
    ras: Option<RasPort>,
    trainer: Option<Box<TrainerChannel>>,
    /// Tells `rankrun gc` that the job is alive, where the folder is not below another one of the job.
    _lock: Option<File>,
}

/// The server for the Trainer of rank 0.
#[derive(Debug)]
struct TrainerChannel {
    local_rank: LocalRank,
    access: TrainerAccess,
    server: TrainerServer,
}

impl ProgressChannels {
    /// Makes the folder in the first place that allows it: in `base`, or as a folder of its own for temporary files.
    /// `rankrun gc` removes either after a kill of the launcher.
    pub(crate) fn open(
        base: Option<&Path>,
        environment: &[(OsString, OsString)],
        generation: Generation,
        workers: LocalWorldSize,
        kinds: ChannelKinds,
    ) -> io::Result<Self> {
        let (folder, lock) = make_folder(base, environment, generation)?;
        let (fifos, pages) = (Vec::new(), Vec::new());
        let report = |error: &io::Error| tracing::info!(%error, "NCCL is not asked for its counts");
        let ras = kinds.has_ras.then(|| RasPort::reserve().inspect_err(report).ok()).flatten();
        let mut channels = Self { folder, fifos, pages, kinds, ras, trainer: None, _lock: lock };
        channels.make_files(workers)?;
        Ok(channels)
    }

    fn make_files(&mut self, workers: LocalWorldSize) -> io::Result<()> {
        for local_rank in (0..workers.get()).map(LocalRank) {
            let path = self.heartbeat_path(local_rank);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
            self.fifos.push(Arc::new(open?));
            if self.kinds.has_page {
                self.pages.push(Arc::new(make_page(&page_path(&self.folder, local_rank))?));
            }
        }
        Ok(())
    }

    /// Answers the Trainer of this worker from now on.
    ///
    /// # Errors
    /// No port, no file or no thread.
    pub(crate) fn start_trainer_server(
        &mut self,
        local_rank: LocalRank,
        environment: &[(OsString, OsString)],
    ) -> io::Result<()> {
        let fifo = self.fifos.get(local_rank.index()).cloned();
        let fifo = fifo.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let listener = TrainerServer::listen()?;
        let access = TrainerAccess::new(listener.local_addr()?.port(), &self.folder, environment);
        let server = TrainerServer::start(listener, &access.token, fifo)?;
        self.trainer = Some(Box::new(TrainerChannel { local_rank, access, server }));
        Ok(())
    }

    /// What the Trainer has reported last, if there is a server for it.
    pub(crate) fn trainer_status(&self) -> Option<SharedTrainerStatus> {
        self.trainer.as_ref().map(|trainer| trainer.server.status())
    }

    pub(crate) fn files(&self, local_rank: LocalRank) -> ProgressFiles {
        let trainer = self.trainer.as_ref().filter(|trainer| trainer.local_rank == local_rank);
        let trainer = trainer.map(|trainer| trainer.access.clone());
        let ras_port = self.ras_port().map(|port| port.to_string());
        ProgressFiles { ras_port, trainer, ..files_in(&self.folder, local_rank, self.kinds) }
    }

    /// Where NCCL in the workers answers, if it is asked.
    pub(super) fn ras_port(&self) -> Option<u16> {
        self.ras.as_ref().map(RasPort::number)
    }

    fn heartbeat_path(&self, local_rank: LocalRank) -> PathBuf {
        heartbeat_path(&self.folder, local_rank)
    }

    /// Where its flight recorder answers, if it is asked.
    pub(super) fn recorder_path(&self, local_rank: LocalRank) -> Option<PathBuf> {
        self.kinds.has_recorder.then(|| recorder_path(&self.folder, local_rank))
    }
}

/// The folder, and the lock on one that is not in `base`.
fn make_folder(
    base: Option<&Path>,
    environment: &[(OsString, OsString)],
    generation: Generation,
) -> io::Result<(PathBuf, Option<File>)> {
    let check_name = |folder: &Path| {
        let too_long = || io::Error::other(format!("`{}` is too long for a socket", folder.display()));
        has_short_name(folder).then_some(()).ok_or_else(too_long)
    };
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    if let Some(base) = base {
        let folder = base.join(format!("{FOLDER}-{}", generation.0));
        let made = check_name(&folder).and_then(|()| DirBuilder::new().mode(0o700).create(&folder));
        match made {
            Ok(()) => return Ok((folder, None)),
            Err(error) => failure = error,
        }
    }
    for place in places(environment) {
        match check_name(&held_folder_pattern(&place)).and_then(|()| make_held_folder(&place)) {
            Ok(made) => return Ok(made),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The files of a worker of the first generation as shell patterns, since each job has a folder of its own.
#[must_use]
pub fn file_patterns(
    environment: &[(OsString, OsString)],
    placement: &Placement,
    spec: &LaunchSpec,
    base: Option<&Path>,
) -> Option<ProgressFiles> {
    if !spec.watches_progress() {
        return None;
    }
    let own = base.map(|base| base.join(format!("{FOLDER}-0")));
    let temporary =
        places(environment).filter(|place| place.is_dir()).map(|place| held_folder_pattern(&place));
    let folder = own.into_iter().chain(temporary).find(|folder| has_short_name(folder))?;
    let is_reported = placement.rank == Rank(0) && spec.answers_trainer() && !has_server(environment);
    let trainer = is_reported.then(|| TrainerAccess::new("PORT", &folder, environment));
    let kinds = ChannelKinds::of(spec, placement.device.kind, environment);
    let ras_port = kinds.has_ras.then(|| "PORT".to_owned());
    Some(ProgressFiles { ras_port, trainer, ..files_in(&folder, placement.local_rank, kinds) })
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
        ras_port: None,
        trainer: None,
    }
}

/// True if each socket in the folder has a path that the kernel accepts.
fn has_short_name(folder: &Path) -> bool {
    recorder_path(folder, LocalRank(u32::MAX)).as_os_str().len() <= MAX_SOCKET_PATH
}

impl Drop for ProgressChannels {
    fn drop(&mut self) {
        // The removal needs a descriptor, and there may be no other.
        self.trainer = None;
        self.ras = None;
        self.fifos.clear();
        self.pages.clear();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::error_folder::find_dead;

    fn open(base: Option<&Path>, place: &Path) -> ProgressChannels {
        let environment = [("TMPDIR".into(), place.into())];
        let workers = LocalWorldSize::new(1).unwrap();
        ProgressChannels::open(base, &environment, Generation(3), workers, ChannelKinds::default()).unwrap()
    }

    fn scratch(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("rankrun-channels-{}-{name}", std::process::id()));
        fs::create_dir(&place).unwrap();
        place
    }

    /// The kernel drops the lock with the launcher.
    #[test]
    fn folder_outside_of_base_is_left_to_gc_after_kill_of_launcher() {
        let place = scratch("killed");
        let mut channels = open(None, &place);
        assert_eq!(channels.folder.parent(), Some(place.as_path()));
        assert_eq!(find_dead(&place).len(), 0, "the job is alive");
        drop(channels._lock.take());
        let dead: Vec<PathBuf> = find_dead(&place).into_iter().map(|folder| folder.path).collect();
        assert_eq!(dead, [channels.folder.clone()]);
        drop(channels);
        fs::remove_dir(place).unwrap();
    }

    #[test]
    fn base_with_long_name_is_passed_over() {
        let place = scratch("long");
        let base = place.join("x".repeat(MAX_SOCKET_PATH));
        fs::create_dir(&base).unwrap();
        assert_eq!(open(Some(&base), &place).folder.parent(), Some(place.as_path()));
        assert_eq!(open(Some(&place), &place).folder, place.join("progress-3"));
        fs::remove_dir_all(place).unwrap();
    }
}
