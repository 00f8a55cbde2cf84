//! Makes the log folders and files of a generation, on a thread of its own where a file system may not answer. The launch
//! specification says which; the worker group gets them before it spawns.

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rankrun_contract::rank::{Generation, Rank, RestartCount};

use crate::blocking::CallStep;
use crate::hang::channels::{ChannelKinds, ProgressChannels};
use crate::hang::file_timer::{FileTimerServer, TimerPlace};
use crate::hooks::{HookError, install_hook};
use crate::logs::tree::{Attempt, LogTree};
use crate::logs::{LogError, LogFiles};
use crate::process::exec_files::read_exec_files;
use crate::process::program_file;
use crate::system::short_hostname;
use rankrun_core::agent::signal_scope::ProgramFile;
use rankrun_core::device::DeviceType;
use rankrun_core::hang::trainer_access::{SERVER_URL, has_server};
use rankrun_core::log_route::{Routes, StreamOwner, routes};
use rankrun_core::placement::Placement;
use rankrun_core::spec::{LaunchSpec, LogDir};

/// What the thread needs.
pub(super) struct FolderRequest {
    pub(super) tree: Option<Arc<Mutex<LogTree>>>,
    pub(super) restart_count: RestartCount,
    /// The number of the round.
    pub(super) round: u64,
    pub(super) placements: Vec<Placement>,
    pub(super) spec: LaunchSpec,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) generation: Generation,
    /// The folder of the workers' hook.
    pub(super) hook: Option<PathBuf>,
    /// The FIFO of the file timers, until it is made.
    pub(super) timer_place: Option<TimerPlace>,
}

/// The log folders of a generation, and its open log files.
pub(in crate::agent) struct GenerationFolders {
    pub(super) attempt: Option<Attempt>,
    /// The routes of each worker, by local rank.
    pub(super) routes: Vec<Routes>,
    pub(super) files: LogFiles,
    pub(super) program: ProgramFile,
    pub(super) channels: Option<ProgressChannels>,
    /// If it was started for this generation.
    pub(super) file_timers: Option<FileTimerServer>,
    /// The folder of the workers' hook, where it can be used.
    pub(super) hook: Option<PathBuf>,
}

/// The folder, if the hook in it can be used.
fn install(folder: &Path, step: &CallStep) -> Option<PathBuf> {
    step.set(format!("the file system of `{}`", folder.display()));
    let warn = |error: &HookError| tracing::info!("no hook in workers, so no Python stacks: {error}");
    install_hook(folder).inspect_err(warn).ok()?;
    Some(folder.to_owned())
}

fn start_file_timers(place: TimerPlace) -> Option<FileTimerServer> {
    let shown = place.pattern();
    let warn = |error: &io::Error| {
        tracing::warn!("PyTorch's file timers do not work: `{}`: {error}", shown.display())
    };
    FileTimerServer::start(place).inspect_err(warn).ok()
}

impl FolderRequest {
    pub(super) fn make(self, step: &CallStep) -> Result<GenerationFolders, LogError> {
        for program in self.spec.programs() {
            read_exec_files(program, step);
        }
        let program = if ProgramFile::is_needed(&self.spec) {
            program_file::look_at_program(self.spec.entrypoint.program())
        } else {
            ProgramFile::Other
        };
        if self.hook.is_none() && self.spec.has_hooks() {
            tracing::info!(
                "no hook in workers, so no Python stacks: neither `XDG_CACHE_HOME` nor `HOME` names a folder for it"
            );
        }
        let hook = self.hook.as_deref().and_then(|folder| install(folder, step));
        if let Some(folder) = self.spec.logs.dir.folder() {
            step.set(format!("the file system of the log folder `{}`", folder.display()));
        }
        let attempt = self.create_attempt()?;
        let routes = self.placements.iter().map(|placement| self.routes(placement, attempt.as_ref()));
        let routes: Vec<_> = routes.collect();
        let started = self.placements.iter().zip(&routes);
        let started =
            started.filter(|(placement, _)| self.spec.external_worker != Some(placement.local_rank));
        let started = started.map(|(_, routes)| routes);
        let files = LogFiles::open(started, attempt.as_ref(), &self.spec.logs.duplicates);
        let channels = self.open_channels();
        let file_timers = self.timer_place.and_then(start_file_timers);
        Ok(GenerationFolders { attempt, routes, files, program, channels, file_timers, hook })
    }

    fn open_channels(&self) -> Option<ProgressChannels> {
        if !self.spec.watches_progress() {
            return None;
        }
        let device = self.placements.first().map_or(DeviceType::Cpu, |placement| placement.device.kind);
        let (kinds, workers) = (ChannelKinds::of(&self.spec, device, &self.environment), self.spec.workers);
        let base = self.tree.as_ref().and_then(|tree| {
            let tree = tree.lock().unwrap_or_else(PoisonError::into_inner);
            tree.temporary().map(Path::to_path_buf)
        });
        let channels =
            ProgressChannels::open(base.as_deref(), &self.environment, self.generation, workers, kinds);
        let report = |error: &io::Error| match self.spec.hang.timeout {
            Some(_) => tracing::warn!("`--hang-timeout` does nothing: no place for heartbeats: {error}"),
            None => tracing::info!(%error, "workers have no place for heartbeats"),
        };
        let mut channels = channels.inspect_err(report).ok()?;
        self.start_trainer_server(&mut channels);
        Some(channels)
    }

    /// On the node of rank 0. Kubeflow's own server stays.
    fn start_trainer_server(&self, channels: &mut ProgressChannels) {
        let rank_0 = self.placements.iter().find(|placement| placement.rank == Rank(0));
        let Some(placement) = rank_0.filter(|_| self.spec.answers_trainer()) else { return };
        if has_server(&self.environment) {
            tracing::info!("`--progress trainer` does nothing: `{SERVER_URL}` names another server");
            return;
        }
        if let Err(error) = channels.start_trainer_server(placement.local_rank, &self.environment) {
            tracing::warn!("`--progress trainer` does nothing: no server for the Trainer: {error}");
        }
    }

    /// The folders of one generation. If a temporary tree has become unwritable, the job runs without it.
    fn create_attempt(&self) -> Result<Option<Attempt>, LogError> {
        let Some(tree) = &self.tree else { return Ok(None) };
        let mut tree = tree.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = tree.attempt_in(self.round, self.restart_count, self.spec.workers);
        match (attempt, &self.spec.logs.dir) {
            (Ok(attempt), _) => Ok(Some(attempt)),
            (Err(error), LogDir::Temporary(_) | LogDir::ErrorFiles(_)) => {
                let cause = error.source().map(ToString::to_string).unwrap_or_default();
                tracing::warn!("no error files from here on: {error}: {cause}");
                Ok(None)
            }
            (Err(error), LogDir::At(_) | LogDir::Off) => Err(error),
        }
    }

    fn routes(&self, placement: &Placement, attempt: Option<&Attempt>) -> Routes {
        let Placement { rank, local_rank, .. } = *placement;
        let owner = StreamOwner {
            cli_flavor: self.spec.cli_flavor,
            role: &self.spec.role,
            rank,
            local_rank,
            local_world: self.spec.workers,
            hostname: short_hostname,
        };
        let folder = attempt.map(|attempt| attempt.worker(local_rank));
        routes(&self.spec.logs, owner, folder.as_deref())
    }
}
