//! The agent: owner of the job's state and parent of all workers.
//!
//! One thread, one loop: wait for the guard, for dead children, or for the state's deadline; hand each event
//! to [`rankrun_core::agent::state::State`]; perform the actions that it returns. All processes are spawned here, on the process's
//! main thread. The guard passes signals in and gets the exit status; decisions are the state's, messages the
//! reporter's.
#![expect(clippy::disallowed_methods, reason = "the agent's shell reads the clocks for the pure state")]

mod announce;
mod control;
mod device_check;
mod device_readings;
mod drain;
mod end_files;
mod events;
mod external_worker;
mod failure_context;
mod final_report;
mod hang;
mod host;
mod inputs;
mod job_report;
mod opening;
mod parent_error_file;
mod progress;
mod recorder_dumps;
mod rendezvous_handle;
mod stack_watch;
mod starting;
mod surroundings;
mod suspend;
mod sweep;
mod watched_call;
mod workers;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime};

use rankrun_core::posix::Pid;

use rankrun_contract::rank::{Generation, JobId};
use rankrun_contract::report::ErrorReport;

use crate::agent::control::ControlSocket;
use crate::agent::device_check::DeviceCheckRun;
use crate::agent::device_readings::DeviceReadings;
use crate::agent::drain::PendingReport;
use crate::agent::final_report::FinalReport;
use crate::agent::hang::PendingHang;
use crate::agent::inputs::wait_for_inputs;
use crate::agent::job_report::{FailedStart, JobReportCall};
use crate::agent::opening::OpenedResources;
use crate::agent::parent_error_file::ParentFileCall;
use crate::agent::progress::ProgressProbe;
use crate::agent::rendezvous_handle::{PendingJoin, PendingShutdown, RendezvousHandle};
use crate::agent::stack_watch::StackWatch;
use crate::agent::watched_call::WatchedCall;
use crate::agent::workers::{PendingStart, RoundContext, WorkerGroup};
use crate::error::LaunchError;
use crate::hang::channels::ProgressChannels;
use crate::hang::file_timer::FileTimerServer;
use crate::hang::progress_watch::{EndedWatch, ProgressWatch};
use crate::logs::Drained;
use crate::process::link::{GuardLink, ToGuard};
use crate::process::signal::{HandledSignals, SignalInbox};
use crate::process::spawn::InheritedState;
use crate::process::watchdog::Watchdog;
use crate::reporter::user_log::UserLog;
use crate::reporter::{job_event_text, leftovers as leftovers_text, parent_file};
use rankrun_core::agent::message::{Action, Input};
use rankrun_core::agent::rules::JobRules;
use rankrun_core::agent::state::State;
use rankrun_core::exit_code::{ExitStatus, LAUNCHER_FAILED};
use rankrun_core::job_event::rank_table::EndedRank;
use rankrun_core::spec::LaunchSpec;
use rankrun_core::spec::stop::StopReason;

/// How long the last messages may take, beyond the wait for the report.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// What the agent is given after the fork.
#[derive(Debug)]
pub struct AgentSetup {
    /// The launch as the user requested it.
    pub spec: LaunchSpec,
    /// The launcher's own environment, which the workers inherit.
    pub environment: Vec<(OsString, OsString)>,
    /// The id that marks the job's processes.
    pub job: JobId,
    /// Process state that the launcher changed for itself and restores for the workers.
    pub inherited: InheritedState,
    /// The process that the user started.
    pub launcher_pid: Pid,
    /// A `PYTHON_EXEC` other than the Python beside the launcher.
    pub foreign_python: Option<OsString>,
    /// The guard's watchdog over this process.
    pub watchdog: Watchdog,
}

/// Runs the job and tells the guard how it ended.
pub fn run(setup: AgentSetup, link: &GuardLink, user_log: UserLog) {
    let parent_file = setup.spec.parent_error_file.clone();
    let failed_start = FailedStart::of(&setup);
    let status = run_job(setup, link, &user_log).unwrap_or_else(|error| {
        user_log.error(&error, error.hint().as_deref());
        if let Some(path) = parent_file {
            parent_error_file::write_error_report(&path, &error_report(&error), &user_log);
        }
        if let Some(start) = &failed_start {
            start.write_report(&error, &user_log);
        }
        ExitStatus::Code(LAUNCHER_FAILED)
    });
    // For a file this is a thread's work.
    user_log.console().flush(LAST_FLUSH_TIMEOUT);
    // Without a guard, no process waits for the status.
    let _ = link.send_to_guard(ToGuard::Finish(status));
}

fn run_job(setup: AgentSetup, link: &GuardLink, user_log: &UserLog) -> Result<ExitStatus, LaunchError> {
    let mut agent = Agent::open(setup, link, user_log)?;
    let abort = match agent.run_loop() {
        Ok(status) => {
            agent.control.close();
            agent.workers.close();
            return Ok(status);
        }
        Err(abort) => abort,
    };
    agent.end_leftovers();
    agent.drain_output();
    agent.write_end_files_now();
    agent.report_outcome();
    agent.control.close();
    if let AgentAbort::Blind(source) = abort {
        return Err(LaunchError::Setup { what: "wait for the workers", source });
    }
    agent.workers.close();
    Ok(ExitStatus::Code(LAUNCHER_FAILED))
}

fn error_report(error: &LaunchError) -> ErrorReport {
    parent_file::of_error("LaunchError", error, SystemTime::now())
}

/// The job ends at once, without a grace period.
#[derive(Debug)]
enum AgentAbort {
    GuardGone,
    /// The kernel refuses poll(2) or the signalfd.
    Blind(io::Error),
}

struct Agent<'a> {
    state: State,
    workers: WorkerGroup,
    /// The stores and the log folder, while they are being opened.
    opening: Option<WatchedCall<Result<OpenedResources, LaunchError>>>,
    /// The next round of a job of one node, while its store is emptied.
    pending_join: Option<PendingJoin>,
    /// The next generation, while its log folders are being made.
    pending_start: Option<PendingStart>,
    rendezvous: RendezvousHandle,
    user_log: &'a UserLog,
    link: &'a GuardLink,
    inbox: SignalInbox,
    handled_signals: HandledSignals,
    final_report: FinalReport,
    /// The health check of the devices, once a generation has failed.
    device_check: Option<DeviceCheckRun>,
    /// The error counters of the devices.
    device_readings: DeviceReadings,
    /// The check of the checkpoint folder, once a generation has failed.
    progress_probe: Option<ProgressProbe>,
    /// Watches the progress of the running generation.
    progress_watch: Option<ProgressWatch>,
    /// That of the generation that has ended.
    ended_watch: Option<EndedWatch>,
    /// Of workers whose thread could not be started: they have the names of these files.
    unwatched_channels: Option<ProgressChannels>,
    /// A verdict, while the stacks of the workers are taken.
    pending_hang: Option<PendingHang>,
    /// Answers to actions that were there at once.
    answers: VecDeque<Input>,
    control: ControlSocket,
    stack_watch: StackWatch,
    /// The generation before the input that is handled.
    input_generation: Generation,
    began: Instant,
    pending_report: Option<PendingReport>,
    /// The output of the workers, while it is written out.
    drained: Option<Drained>,
    /// The notice to the other nodes, while it is on its way.
    departure: Option<PendingShutdown>,
    /// The error file of the parent process, while it is written.
    parent_file: Option<ParentFileCall>,
    /// The report of the job, while it is written.
    job_report: Option<JobReportCall>,
}

impl<'a> Agent<'a> {
    fn open(setup: AgentSetup, link: &'a GuardLink, user_log: &'a UserLog) -> Result<Self, LaunchError> {
        let inbox = SignalInbox::open(&setup.inherited.handled)
            .map_err(|source| LaunchError::Setup { what: "read signals", source })?;
        let state = State::new(JobRules::of(&setup.spec))
            .with_seed(rankrun_core::agent::policy::jitter_seed(&setup.job));
        let handled = setup.inherited.handled.clone();
        let final_report = FinalReport::new(&setup.spec, setup.foreign_python.clone(), setup.launcher_pid);
        let rendezvous = RendezvousHandle::new(&setup.spec, setup.watchdog.clone());
        let workers = WorkerGroup::open(setup, user_log.console().clone())?;
        let opening = opening::start_opening((workers.spec(), workers.hook_folder()), workers.file_calls())
            .map_err(|source| LaunchError::Setup { what: "start a thread", source })?;
        Ok(Self {
            state,
            workers,
            opening: Some(opening),
            pending_join: None,
            pending_start: None,
            rendezvous,
            user_log,
            link,
            inbox,
            handled_signals: handled,
            final_report,
            device_check: None,
            device_readings: DeviceReadings::default(),
            progress_probe: None,
            progress_watch: None,
            ended_watch: None,
            unwatched_channels: None,
            pending_hang: None,
            answers: VecDeque::new(),
            control: ControlSocket::default(),
            stack_watch: StackWatch::default(),
            input_generation: Generation(0),
            began: Instant::now(),
            pending_report: None,
            drained: None,
            departure: None,
            parent_file: None,
            job_report: None,
        })
    }

    /// The loop, until the state has nothing more to do.
    fn run_loop(&mut self) -> Result<ExitStatus, AgentAbort> {
        let mut inputs = VecDeque::new();
        self.collect_inputs(&mut inputs)?;
        loop {
            // Nothing has happened before an answer that was there at once.
            while let Some(input) =
                self.answers.pop_front().or_else(|| self.state.next_input(Instant::now(), &mut inputs))
            {
                let actions = self.handle_input(input);
                self.tell_guard_of_workers(true);
                for action in actions {
                    match action {
                        Action::Exit { status } => {
                            self.publish_end(status);
                            return Ok(status);
                        }
                        action => inputs.extend(self.perform_action(action)),
                    }
                }
                self.input_generation = self.state.generation();
                self.tell_guard_of_workers(false);
            }
            self.advance_stacks();
            let mut readers = self.signal_fds();
            readers.extend(self.workers.external_worker_fds());
            readers.extend(self.device_check.iter().flat_map(DeviceCheckRun::as_fds));
            readers.extend(self.device_readings.as_fds());
            readers.extend(self.rendezvous.as_fd());
            readers.extend(self.progress_probe.iter().map(ProgressProbe::as_fd));
            readers.extend(self.progress_watch.iter().map(ProgressWatch::as_fd));
            readers.extend(self.workers.file_timers().map(FileTimerServer::as_fd));
            readers.extend(self.pending_hang.iter().map(PendingHang::as_fd));
            readers.extend(self.call_fds());
            readers.extend(self.stack_watch.as_fd());
            readers.extend(self.drained.iter().map(Drained::as_fd));
            readers.extend(self.departure.iter().map(PendingShutdown::as_fd));
            let check_deadline = self.device_check.as_ref().and_then(DeviceCheckRun::deadline);
            // The thread that talks to the store may block while the lease runs out.
            let lease_deadline = self.state.lease_deadline(self.rendezvous.lease_deadlines());
            let stacks_due = self.stack_watch.deadline();
            let readings_deadline = self.device_readings.deadline();
            let deadlines =
                [self.state.deadline(), check_deadline, readings_deadline, lease_deadline, stacks_due];
            let deadlines = deadlines.into_iter().flatten().chain(self.call_deadlines());
            wait_for_inputs(&readers, deadlines.min())?;
            self.collect_inputs(&mut inputs)?;
        }
    }

    /// Asks the state; `-vv` shows each input and action (`docs/dev/tracing.md`).
    fn handle_input(&mut self, input: Input) -> Vec<Action> {
        tracing::debug!("input {input:?}");
        if input == Input::RestartRequested {
            self.answer_restart_request();
        }
        let actions = self.state.handle(Instant::now(), input);
        actions.iter().for_each(|action| tracing::debug!("action {action:?}"));
        actions
    }

    fn perform_action(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Start { generation, restart_count, round } => {
                let rendezvous_duration = self.rendezvous.duration();
                let joined = RoundContext { round: *round, rendezvous_duration };
                return self.prepare_start(generation, restart_count, joined);
            }
            Action::Join { .. }
            | Action::TellFailure { .. }
            | Action::FindLostNode
            | Action::TellSuccess
            | Action::TellStop { .. } => self.send_to_rendezvous(&action),
            Action::ForwardSignal { generation, local_ranks, signal } => {
                self.workers.forward_signal(generation, &local_ranks, signal);
            }
            Action::Signal { generation, local_ranks, signal } => {
                let alone = self.workers.signal(generation, &local_ranks, signal);
                self.answers.extend(alone);
                return self.cancel_start(generation);
            }
            Action::SignalGroups { generation, local_ranks, signal } => {
                let left = self.workers.signal_groups_left(generation, &local_ranks, signal);
                self.answers.push_back(left);
            }
            Action::ReleaseExternalWorker { reason, failed } => {
                if let Some(external_worker) = self.workers.external_worker() {
                    external_worker.release(&job_event_text::external_worker_released(reason, failed));
                }
            }
            Action::KillLeftovers { generation } => self.end_generation(generation),
            Action::ProbeDState { .. } | Action::ProbeJoined { .. } | Action::CollectRanks { .. } => {
                return self.probe_workers(action);
            }
            Action::ProbeDevices { generation } => {
                let (spec, timeout) = (self.workers.spec(), self.workers.spec().device_request.probe_timeout);
                let check = spec.device_check();
                self.device_check = check.map(|check| DeviceCheckRun::start(generation, check, timeout));
            }
            Action::ProbeProgress { generation, raised_by } => {
                return self.probe_progress(generation, raised_by);
            }
            Action::ReassignDevices { .. } => {
                return self.device_check.as_mut()?.reassign(&mut self.workers, None);
            }
            Action::Emit(event) => self.announce_event(&event),
            Action::Suspend { has_processes } => self.suspend_job(has_processes),
            Action::Resume { has_processes, suspended_for } => self.resume_job(has_processes, suspended_for),
            Action::KillSuspended => self.kill_suspended_job(),
            Action::Finish(_)
            | Action::SweepLeftovers { .. }
            | Action::DrainOutput
            | Action::Notify(_)
            | Action::WriteParentFile
            | Action::ReportOutcome
            | Action::Exit { .. } => return self.perform_shutdown_action(action),
        }
        None
    }

    fn drop_progress_channels(&mut self) {
        self.progress_watch = None;
        self.unwatched_channels = None;
    }

    /// No worker of the generation is left.
    fn end_generation(&mut self, generation: Generation) {
        // Asked for again where a worker leaves processes behind.
        if let Some(watch) = self.progress_watch.take() {
            self.ended_watch = watch.end();
        }
        self.drop_progress_channels();
        self.pending_hang = None;
        self.workers.end_streams(generation);
        self.device_readings.cut_off();
        let killed = self.kill_leftovers();
        self.answers.push_back(killed);
    }

    fn perform_shutdown_action(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Finish(outcome) => {
                // Before the temporary folder, in which its channels lie.
                self.drop_progress_channels();
                return self.announce_outcome(outcome);
            }
            Action::DrainOutput => return self.drain_output(),
            Action::Notify(notice) => {
                self.announce(notice.name(), leftovers_text::shutdown_notice(notice));
            }
            Action::WriteParentFile => return self.write_end_files(),
            Action::ReportOutcome => self.report_outcome(),
            Action::SweepLeftovers { step } => {
                return Some(Input::LeftoversSwept { result: self.sweep_leftovers(step) });
            }
            _ => {}
        }
        None
    }

    fn probe_workers(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::ProbeDState { generation, local_ranks } => {
                let uninterruptible = self.workers.uninterruptible_workers(&local_ranks);
                Some(Input::DStateProbed { generation, at: SystemTime::now(), uninterruptible })
            }
            Action::ProbeJoined { generation, local_ranks } => {
                let pids = self.rendezvous.client_pids();
                let missing = self.workers.workers_not_joined(&local_ranks, pids);
                Some(Input::JoinedProbed { generation, at: SystemTime::now(), missing })
            }
            Action::CollectRanks { generation, ended, reason } => {
                self.collect_ranks((generation, reason), &ended)
            }
            _ => None,
        }
    }

    fn collect_ranks(&self, stop: (Generation, StopReason), ended: &[EndedRank]) -> Option<Input> {
        let table = self.workers.rank_table(stop, ended, self.rendezvous.client_pids())?;
        Some(Input::RanksCollected { generation: stop.0, table })
    }
}
