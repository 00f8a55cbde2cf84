//! The worker group of this node: its store, log folders and streams, and the start of all its processes. The
//! agent's loop calls it with the actions of the state. It decides neither when to start nor when to stop.

mod causes;
mod error_files;
mod failure_info;
mod folders;
mod kills;
mod log_disk;
mod rank_table;
mod signals;
mod snapshot;
mod worker_probes;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rankrun_core::posix::Pid;

use rankrun_contract::rank::{Generation, JobId, LocalRank, NodeCount, RestartCount};
use rankrun_contract::report::ErrorFile;

use crate::agent::AgentSetup;
use crate::agent::events::{self, EventSink};
use crate::agent::external_worker::ExternalWorker;
use crate::agent::opening::OpenedResources;
use crate::agent::stack_watch::UnansweredStacks;
use crate::agent::watched_call::WatchedCall;
use crate::agent::workers::folders::{FolderRequest, GenerationFolders};
use crate::blocking::file_calls::FileCalls;
use crate::console::{Console, is_terminal};
use crate::error::{LaunchError, SpawnError};
use crate::hang::channels::ProgressChannels;
use crate::hang::file_timer::{FileTimerServer, TimerPlace, timer_place};
use crate::hang::trainer_server::SharedTrainerStatus;
use crate::hooks::{hook_folder, python_path};
use crate::logs::space::FullLogFolder;
use crate::logs::tree::{Attempt, LogTree};
use crate::logs::{ChildEnd, Drained, LogError, Logs};
use crate::process::attach_listener::AttachReport;
use crate::process::child::{Children, ReapedWorkers, WorkerExit};
use crate::process::oom::OomLedger;
use crate::process::spawn::{InheritedState, Stdio};
use crate::rendezvous::Rendezvous;
use crate::reporter::events::EventWorker;
use crate::reporter::torch_log::EventSubject;
use crate::stacks::DumpFile;
use rankrun_core::agent::message::{Input, JobOutcome};
use rankrun_core::agent::signal_scope::ProgramFile;
use rankrun_core::device::DeviceChoice;
use rankrun_core::device::reading::DeviceCounters;
use rankrun_core::device_assignment::device_lines;
use rankrun_core::hang::recorder_dumps::recorder_variables;
use rankrun_core::log_route::Routes;
use rankrun_core::notice::Notice;
use rankrun_core::placement::{self, Placement, WorkerId};
use rankrun_core::rendezvous::Round;
use rankrun_core::spec::{LaunchSpec, StdinPolicy};
use rankrun_core::worker_command::{
    GenerationContext, ProgressFiles, WorkerFiles, WorkerHook, worker_command,
};

/// The worker group and the resources that it needs.
pub(super) struct WorkerGroup {
    spec: LaunchSpec,
    environment: Vec<(OsString, OsString)>,
    job: JobId,
    inherited: InheritedState,
    /// The round of the last started generation.
    round: Option<Round>,
    /// The rank and device of each worker in it.
    placements: Vec<Placement>,
    /// The devices from the next generation on, if they change.
    pending_devices: Option<DeviceChoice>,
    children: Children,
    console: Console,
    logs: Logs,
    /// Shared with the thread that makes its folders.
    log_tree: Option<Arc<Mutex<LogTree>>>,
    /// Log folders of the last started generation.
    attempt: Option<Attempt>,
    /// Standard input of workers that may not read the launcher's.
    no_input: Option<File>,
    /// The external worker of this generation.
    external_worker: Option<ExternalWorker>,
    /// The last started generation.
    generation: Generation,
    started: SystemTime,
    /// Pids of the last started generation, including dead workers.
    pids: BTreeMap<LocalRank, Pid>,
    /// Their program, as its file showed it before the start.
    program: ProgramFile,
    /// The hook of its workers, and the files that they write their stacks into.
    hook: Option<PathBuf>,
    dumps: BTreeMap<LocalRank, Arc<DumpFile>>,
    /// The last stacks of workers that did not answer.
    unanswered: Option<UnansweredStacks>,
    /// The counters of the device of the worker that failed first.
    counters: Option<DeviceCounters>,
    /// The error files of its failed workers.
    error_files: BTreeMap<LocalRank, ErrorFile>,
    /// What the OOM killer has killed since their start.
    oom_ledger: OomLedger,
    /// Their log folder, if its disk was full when a worker failed.
    full_log_folder: Option<FullLogFolder>,
    events: Option<EventSink>,
    /// By which the workers of the last started generation show their progress, until a thread watches them.
    channels: Option<ProgressChannels>,
    /// What the Trainer of rank 0 has reported, if it runs here and reports.
    training: Option<SharedTrainerStatus>,
    /// From the first generation on, if the environment asks for it.
    file_timers: Option<FileTimerServer>,
}

/// A completed rendezvous.
pub(super) struct RoundContext {
    pub(super) round: Round,
    /// How long the rendezvous took.
    pub(super) rendezvous_duration: Duration,
}

/// A generation whose log folders are being made.
pub(super) struct PendingStart {
    pub(super) context: GenerationContext,
    pub(super) call: WatchedCall<Result<GenerationFolders, LogError>>,
}

/// Not every worker could be started.
pub(super) struct StartFailed {
    /// The first worker that was not started.
    pub(super) failed_rank: LocalRank,
    pub(super) error: LaunchError,
}

impl WorkerGroup {
    /// Opens what cannot block; the rest comes with [`Self::install`].
    pub(super) fn open(setup: AgentSetup, console: Console) -> Result<Self, LaunchError> {
        let AgentSetup { spec, environment, job, inherited: original, .. } = setup;
        let no_input = match spec.stdin {
            StdinPolicy::All => None,
            StdinPolicy::Only(_) | StdinPolicy::None => Some(
                File::open("/dev/null")
                    .map_err(|source| LaunchError::Setup { what: "open `/dev/null`", source })?,
            ),
        };
        Ok(Self {
            events: None,
            round: None,
            placements: Vec::new(),
            pending_devices: None,
            logs: Logs::new(console.clone(), spec.cli_flavor),
            console,
            log_tree: None,
            attempt: None,
            spec,
            environment,
            job,
            inherited: original,
            children: Children::default(),
            no_input,
            external_worker: None,
            generation: Generation(0),
            started: SystemTime::UNIX_EPOCH,
            pids: BTreeMap::new(),
            program: ProgramFile::default(),
            hook: None,
            dumps: BTreeMap::new(),
            unanswered: None,
            counters: None,
            error_files: BTreeMap::new(),
            oom_ledger: OomLedger::default(),
            full_log_folder: None,
            channels: None,
            training: None,
            file_timers: None,
        })
    }

    /// Takes the resources that were opened on a thread of their own; returns the rendezvous.
    pub(super) fn install(&mut self, opened: OpenedResources) -> Rendezvous {
        let OpenedResources { rendezvous, log_tree, are_files_in_memory, full_name } = opened;
        if are_files_in_memory {
            self.logs.calls().set_in_memory();
        }
        self.log_tree = log_tree.map(|tree| Arc::new(Mutex::new(tree)));
        self.events = full_name.map(|name| EventSink::new(&self.spec, &self.console, name));
        rendezvous
    }

    pub(super) const fn has_started(&self) -> bool {
        self.round.is_some()
    }

    /// The environment of the launcher.
    pub(super) fn environment(&self) -> &[(OsString, OsString)] {
        &self.environment
    }

    /// The round of the last started generation.
    pub(super) const fn round(&self) -> Option<&Round> {
        self.round.as_ref()
    }

    pub(super) fn pid(&self, local_rank: LocalRank) -> Option<Pid> {
        self.pids.get(&local_rank).copied()
    }

    pub(super) const fn take_channels(&mut self) -> Option<ProgressChannels> {
        self.channels.take()
    }

    pub(super) const fn job(&self) -> &JobId {
        &self.job
    }

    pub(super) const fn spec(&self) -> &LaunchSpec {
        &self.spec
    }

    /// Where the hook of the workers is to be, if they have one.
    pub(super) fn hook_folder(&self) -> Option<PathBuf> {
        hook_folder(&self.spec, &self.environment)
    }

    /// The thread for calls on files.
    pub(super) const fn file_calls(&self) -> &FileCalls {
        self.logs.calls()
    }

    /// Sets the devices of the next generation; reports about this generation keep the old ones.
    pub(super) fn set_pending_devices(&mut self, devices: DeviceChoice) {
        self.pending_devices = Some(devices);
    }

    fn apply_pending_devices(&mut self) {
        let Some(devices) = self.pending_devices.take() else { return };
        self.spec.workers = devices.worker_count();
        self.spec.devices = devices;
    }

    /// Lines for the user about the devices of the next generation.
    pub(super) fn pending_device_lines(&self) -> Vec<Notice> {
        let LaunchSpec { device_request, cli_flavor, .. } = &self.spec;
        let devices = self.pending_devices.as_ref();
        devices.map_or_else(Vec::new, |devices| device_lines(devices, device_request, *cli_flavor))
    }

    /// Assigns the ranks of the next generation, and starts to make its log folders and files.
    pub(super) fn prepare_start(
        &mut self,
        generation: Generation,
        restart_count: RestartCount,
        joined: RoundContext,
    ) -> Result<PendingStart, StartFailed> {
        let none_started = |error| StartFailed { failed_rank: LocalRank(0), error };
        self.apply_pending_devices();
        self.generation = generation;
        self.pids.clear();
        self.dumps.clear();
        self.error_files.clear();
        self.full_log_folder = None;
        self.attempt = None;
        let RoundContext { round, rendezvous_duration: took } = joined;
        if let Some(events) = &mut self.events {
            events.emit_joined(restart_count, &round, took);
        }
        self.placements = placement::assign_ranks(&self.spec.devices.workers, &round);
        self.round = Some(round.clone());
        let request = FolderRequest {
            tree: self.log_tree.clone(),
            restart_count,
            round: round.number,
            placements: self.placements.clone(),
            spec: self.spec.clone(),
            environment: self.environment.clone(),
            generation,
            hook: self.hook_folder(),
            timer_place: self.timer_place(),
        };
        let call = self.logs.calls().start(move |step| request.make(step)).map_err(|source| {
            none_started(LaunchError::Setup { what: "start a thread that makes the log folders", source })
        })?;
        let call = WatchedCall::new(call);
        let context = GenerationContext { generation, restart_count, round, job: self.job.clone() };
        Ok(PendingStart { context, call })
    }

    /// Starts all workers, local rank 0 first.
    pub(super) fn start(
        &mut self,
        context: &GenerationContext,
        folders: Result<GenerationFolders, LaunchError>,
        now: SystemTime,
    ) -> Result<(), StartFailed> {
        self.started = now;
        let started = folders
            .map_err(|error| StartFailed { failed_rank: LocalRank(0), error })
            .and_then(|folders| self.start_workers(context, folders));
        if let (Ok(()), Some(events)) = (&started, &self.events) {
            events.emit_started(&self.event_workers());
        }
        for note in self.logs.take_notes() {
            tracing::info!("{note}");
        }
        // Also after a failure: the output of running workers is read until they are stopped.
        let all = LocalRank(self.spec.workers.get());
        let heard = self.logs.pump().map_err(|error| StartFailed { failed_rank: all, error: error.into() });
        started.and(heard)
    }

    fn start_workers(
        &mut self,
        context: &GenerationContext,
        folders: GenerationFolders,
    ) -> Result<(), StartFailed> {
        let GenerationContext { generation, round, .. } = context;
        self.attempt = folders.attempt;
        self.training = folders.channels.as_ref().and_then(ProgressChannels::trainer_status);
        self.channels = folders.channels;
        self.file_timers = self.file_timers.take().or(folders.file_timers);
        self.program = folders.program;
        self.hook = folders.hook;
        self.logs.set_files(folders.files);
        tracing::debug!("{generation:?}: the store is {}:{}", round.master.addr, round.master.port);
        if let Some(attempt) = &self.attempt {
            tracing::debug!("error files and logs are in `{}`", attempt.folder().display());
        }
        let duplicated = self.logs.open_line_filters(self.attempt.as_ref(), &self.spec.logs.duplicates);
        duplicated.map_err(|error| StartFailed { failed_rank: LocalRank(0), error: error.into() })?;
        for (placement, routes) in self.placements.clone().into_iter().zip(folders.routes) {
            self.start_worker(context, &placement, routes)
                .map_err(|error| StartFailed { failed_rank: placement.local_rank, error })?;
            if placement.local_rank == LocalRank(0) {
                // Started here, as the first worker has no memory yet.
                self.oom_ledger = OomLedger::begin();
            }
        }
        Ok(())
    }

    fn start_worker(
        &mut self,
        context: &GenerationContext,
        placement: &Placement,
        routes: Routes,
    ) -> Result<(), LaunchError> {
        let attempt = self.attempt.as_ref();
        let Placement { rank, local_rank, device, .. } = placement;
        let (rank, local_rank) = (*rank, *local_rank);
        let error_file = attempt.map(|attempt| attempt.error_file(local_rank));
        let is_external = self.spec.external_worker == Some(local_rank);
        let dump = if is_external { None } else { self.open_dump(local_rank) };
        let hook = self.hook.as_deref().zip(dump.as_ref()).map(|(folder, dump)| WorkerHook {
            python_path: python_path(folder, &self.environment),
            stacks: dump.variable(),
        });
        let progress = self.progress_files(local_rank);
        let folder = attempt.map(Attempt::folder);
        let recorder = recorder_variables(&self.spec, device.kind, folder, &self.environment);
        let files = WorkerFiles {
            error_file: error_file.as_deref(),
            hook: hook.as_ref(),
            progress: progress.as_ref(),
            recorder: &recorder,
            timer_file: self.file_timers.as_ref().map(FileTimerServer::path),
        };
        let command = worker_command(&self.spec, context, placement, &self.environment, files)
            .map_err(|source| LaunchError::Command { rank, source })?;
        let worker = WorkerId { generation: context.generation, local_rank };
        if is_external {
            let script = self.script_path(local_rank);
            self.external_worker = Some(ExternalWorker::prepare(worker, &self.job, &command, &script)?);
            return Ok(());
        }

        let reads_terminal =
            self.spec.stdin == StdinPolicy::Only(local_rank) && is_terminal(std::io::stdin().as_fd());
        let routes = Routes { can_prompt: reads_terminal, ..routes };
        let streams = self.logs.open(worker, &routes)?;
        let stdio = Stdio {
            stdin: stdin_of(local_rank, self.spec.stdin, self.no_input.as_ref()),
            stdout: child_end_fd(&streams.stdout),
            stderr: child_end_fd(&streams.stderr),
        };

        let mut spawn = || self.children.spawn(worker, &command, stdio, &self.inherited);
        let spawned = match &dump {
            Some(dump) => dump.inherited_by(spawn),
            None => spawn(),
        };
        let pid = spawned.map_err(|source| {
            let program = PathBuf::from(OsStr::from_bytes(command.path.as_bytes()));
            let source = SpawnError::new(source, &program);
            LaunchError::Spawn { rank, program, source }
        })?;
        self.pids.insert(local_rank, pid);
        self.dumps.extend(dump.map(|dump| (local_rank, dump)));
        tracing::info!("rank {rank} on {device} is pid {pid}");
        tracing::debug!("rank {rank} runs {:?}", command.argv);
        Ok(())
    }

    /// Keeps the stacks for the failure report, beside those of a hang that ended the same generation: a worker that has
    /// stopped since then has no other ones.
    pub(super) fn set_unanswered(&mut self, mut stacks: UnansweredStacks) {
        if let Some(hang) = self.unanswered.take()
            && (hang.generation, hang.deadline) == (stacks.generation, None)
        {
            let has = |rank: u32| stacks.workers.iter().any(|worker| worker.rank == rank);
            let stopped: Vec<_> = hang.workers.into_iter().filter(|worker| !has(worker.rank)).collect();
            stacks.workers.extend(stopped);
            stacks.workers.sort_by_key(|worker| worker.rank);
        }
        self.unanswered = Some(stacks);
    }

    /// Keeps the counters of a device for the failure report.
    pub(super) fn set_counters(&mut self, counters: DeviceCounters) {
        self.counters = Some(counters);
    }

    /// The device of a worker of the last started generation.
    pub(super) fn device_uuid(&self, local_rank: LocalRank) -> Option<String> {
        let device = &self.placements.get(local_rank.index())?.device;
        device.identity.as_ref()?.accelerator.uuid.clone()
    }

    /// The file for the stacks of a worker with a hook.
    fn open_dump(&self, local_rank: LocalRank) -> Option<Arc<DumpFile>> {
        self.hook.as_ref()?;
        let warn =
            |error: &io::Error| tracing::info!("local rank {local_rank} has no Python stacks: {error}");
        DumpFile::open().inspect_err(warn).ok().map(Arc::new)
    }

    /// Where the FIFO of PyTorch's file timers is to be made.
    fn timer_place(&self) -> Option<TimerPlace> {
        if self.file_timers.is_some() {
            return None;
        }
        timer_place(&self.environment)
    }

    pub(super) const fn file_timers(&self) -> Option<&FileTimerServer> {
        self.file_timers.as_ref()
    }

    fn progress_files(&self, local_rank: LocalRank) -> Option<ProgressFiles> {
        Some(self.channels.as_ref()?.files(local_rank))
    }

    /// The path of the external worker's script.
    fn script_path(&self, local_rank: LocalRank) -> PathBuf {
        let temporary = || {
            let named = self.environment.iter().find(|(name, value)| name == "TMPDIR" && !value.is_empty());
            named.map_or_else(|| PathBuf::from("/tmp"), |(_, folder)| PathBuf::from(folder))
        };
        match &self.attempt {
            Some(attempt) => attempt.folder().join(format!("rank{local_rank}.sh")),
            None => temporary().join(format!("rankrun-{}-rank{local_rank}.sh", self.job)),
        }
    }

    /// What the external worker has reported.
    pub(super) fn external_worker_inputs(&mut self, at: SystemTime) -> Vec<Input> {
        let Some(external_worker) = &mut self.external_worker else { return Vec::new() };
        let (worker, reported) = (external_worker.worker_id(), external_worker.receive());
        let WorkerId { generation, local_rank } = worker;
        let input = |reported| match reported {
            AttachReport::Started(pid) => {
                self.pids.insert(local_rank, pid);
                Input::ExternalWorkerStarted { generation, local_rank, pid }
            }
            AttachReport::Ended { pid, exit } => {
                let (peak, is_killed) = (None, false);
                let exit = WorkerExit { worker, pid, exit, peak, is_killed };
                Input::Exited { generation, end: self.external_worker_end(&exit, at) }
            }
        };
        reported.into_iter().map(input).collect()
    }

    /// The external worker, while its generation lives.
    pub(super) const fn external_worker(&mut self) -> Option<&mut ExternalWorker> {
        self.external_worker.as_mut()
    }

    /// What becomes readable when the external worker reports.
    pub(super) fn external_worker_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.external_worker.iter().flat_map(ExternalWorker::as_fds)
    }

    /// The job and its workers, for messages about them.
    pub(super) fn event_subject(&self) -> EventSubject<'_> {
        let round = self.round.as_ref().filter(|round| round.nodes > NodeCount::ONE);
        EventSubject { spec: &self.spec, pids: &self.pids, round }
    }

    /// Sends the last events; `died_of` is set if the launcher itself failed or was told to stop.
    pub(super) fn emit_end_events(&mut self, outcome: &JobOutcome, died_of: Option<String>) {
        let workers = self.event_workers();
        if let Some(events) = &mut self.events {
            events.emit_ended(&events::end_events(outcome, died_of, &workers, &self.error_files));
        }
    }

    fn event_workers(&self) -> Vec<EventWorker> {
        let Some(role_world_size) = self.round.as_ref().map(|round| round.role_world_size) else {
            return Vec::new();
        };
        self.placements
            .iter()
            .filter_map(|worker| Some((worker, *self.pids.get(&worker.local_rank)?)))
            .map(|(worker, pid)| {
                let Placement { rank, role_rank, local_rank, .. } = *worker;
                EventWorker { rank, role_rank, local_rank, role_world_size, pid }
            })
            .collect()
    }

    /// Ends the streams of a reaped generation, even if another process holds them open.
    pub(super) fn end_streams(&mut self, generation: Generation) {
        self.external_worker = None;
        drop(self.logs.generation_ended(generation));
    }

    /// Writes out all remaining output of the workers; no worker is left.
    pub(super) fn drain(&mut self) -> Result<Drained, LogError> {
        self.logs.finish()
    }

    pub(super) fn resize_console(&self) {
        self.logs.resize();
    }

    /// Removes log folders that stayed empty.
    pub(super) fn close(mut self) {
        self.external_worker = None;
        if let (Some(tree), Some(folder)) = (self.log_tree, self.spec.logs.dir.folder()) {
            let remove = move || tree.lock().unwrap_or_else(PoisonError::into_inner).remove_empty();
            let _ = self.logs.calls().run(folder, remove);
        }
    }

    pub(super) fn reap(&mut self) -> ReapedWorkers {
        self.children.reap()
    }
}

fn child_end_fd(end: &ChildEnd) -> Option<BorrowedFd<'_>> {
    match end {
        ChildEnd::Inherit => None,
        ChildEnd::Fd(fd) => Some(fd.as_fd()),
    }
}

/// The worker's standard input: the launcher's (`None`) or an empty one.
fn stdin_of(local_rank: LocalRank, policy: StdinPolicy, no_input: Option<&File>) -> Option<BorrowedFd<'_>> {
    match policy {
        StdinPolicy::Only(reader) if reader == local_rank => None,
        _ => no_input.map(AsFd::as_fd),
    }
}
