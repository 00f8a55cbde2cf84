//! Starts the thread that watches the progress of a generation, and hands its verdicts to the state. Before a hang is
//! handed on, the stacks of the workers are taken: the stop that may follow ends them.
#![expect(clippy::disallowed_methods, reason = "a verdict has its time")]

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Instant, SystemTime};

use rankrun_contract::rank::{LocalRank, NodeCount};

use crate::agent::Agent;
use crate::agent::stack_watch::{MAX_SHOWN_LINES, SHOWN_CALLS, UnansweredStacks};
use crate::blocking::{BlockingCall, CallProgress};
use crate::hang::progress_watch::{ProgressReport, ProgressWatch};
use crate::process::descendants::descendants_of;
use crate::process::own_pid;
use crate::process::raw_signal::SignalTarget;
use crate::reporter::stacks::render_briefly;
use crate::stacks::{STACKS_TIMEOUT, StackMethod, take_stacks};
use rankrun_core::agent::message::{Input, JudgedHang};
use rankrun_core::hang::verdict::{DEFAULT_FIRST_STEP, Limits, Verdict};
use rankrun_core::stacks::WorkerStacks;

/// What the user learns where `--hang-timeout` has nothing to compare with the clock.
const NO_EVIDENCE: &str = "`--hang-timeout` finds nothing to watch: no worker has sent a heartbeat or shown a collective; \
                           write a line to the FIFO in `RANKRUN_HEARTBEAT` after each step; `--start-timeout` finds workers that \
                           never join";

/// The control plane of PyTorch is started by the hook.
const NO_HOOK: &str = "; without the hook no worker's flight recorder is asked";

/// PyTorch 2.4 to 2.7 without CUDA answers for no recorder.
const NO_RECORDER: &str = "its PyTorch answers for no flight recorder, so `--hang-timeout` does not know its collectives; \
                           PyTorch 2.8 or later, or heartbeats, would tell";

/// Ranks that compute between two collectives look the same as ranks that hang there.
const NO_WAIT: &str = "no rank has shown progress for the time of `--hang-timeout`, and none waits in a collective, so they may \
                       work: `rankrun stacks` shows where they stand; heartbeats would tell";

/// A hang, and the call that takes the stacks of the workers.
#[derive(Debug)]
pub(super) struct PendingHang {
    judged: Box<JudgedHang>,
    call: BlockingCall<Vec<WorkerStacks>>,
}

impl PendingHang {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}

impl Agent<'_> {
    /// The workers have been started. Without a thread they are not watched.
    pub(super) fn start_progress_watch(&mut self) {
        let Some(channels) = self.workers.take_channels() else { return };
        let Some(round) = self.workers.round() else { return };
        let times = self.workers.spec().hang;
        let limits = Limits {
            hang_timeout: times.timeout,
            first_step: times.first_step.unwrap_or(DEFAULT_FIRST_STEP),
            has_other_nodes: round.nodes > NodeCount::ONE,
        };
        let board = self.rendezvous.evidence_board();
        let pids = (0..self.workers.spec().workers.get()).map(|at| self.workers.pid(LocalRank(at))).collect();
        match ProgressWatch::start(channels, round.base_rank, limits, pids, board) {
            Ok(watch) => self.progress_watch = Some(watch),
            Err((error, channels)) => {
                tracing::warn!(%error, "the workers' progress is not watched");
                self.unwatched_channels = Some(channels);
            }
        }
    }

    /// What the thread has found since the last call.
    pub(super) fn progress_inputs(&mut self) -> Vec<Input> {
        let reports = self.progress_watch.as_ref().map(ProgressWatch::take_reports).unwrap_or_default();
        let mut inputs: Vec<Input> =
            reports.into_iter().filter_map(|report| self.progress_input(report)).collect();
        inputs.extend(self.advance_pending_hang());
        self.signal_expired_timers();
        inputs
    }

    fn progress_input(&mut self, report: ProgressReport) -> Option<Input> {
        match report {
            ProgressReport::BadHeartbeat { rank, error } => {
                self.announce("bad_heartbeat", &format!("a heartbeat of rank {rank} is ignored: {error}"));
                None
            }
            ProgressReport::NoRecorder { rank } => {
                self.announce("no_recorder", &format!("rank {rank}: {NO_RECORDER}"));
                None
            }
            ProgressReport::NoEvidence => {
                let hook = if self.workers.hook_folder().is_some() { "" } else { NO_HOOK };
                self.announce("no_evidence", &format!("{NO_EVIDENCE}{hook}"));
                None
            }
            ProgressReport::NoProgressOutsideCollectives => {
                self.announce("no_progress", NO_WAIT);
                None
            }
            ProgressReport::Cleared => {
                self.pending_hang = None;
                None
            }
            ProgressReport::Judged(verdict) => {
                self.pending_hang = None;
                let judged = self.judged_hang(verdict)?;
                let has_stacks =
                    !matches!(judged.verdict, Verdict::Straggler(_)) && self.start_hang_stacks(&judged);
                (!has_stacks).then_some(Input::HangJudged(judged))
            }
        }
    }

    /// A timer that expires is a failure of its worker, which ends by the signal.
    fn signal_expired_timers(&self) {
        let Some(timers) = self.workers.file_timers() else { return };
        let expired = timers.take_expired();
        if expired.is_empty() {
            return;
        }
        // Opened before the look at the descendants: a pid that is one of them then has been one all the time.
        let targets: Vec<_> = expired.iter().map(|(pid, _)| SignalTarget::open(*pid)).collect();
        let descendants = descendants_of(own_pid()).unwrap_or_default();
        for ((pid, signal), target) in expired.into_iter().zip(targets) {
            if !descendants.contains(&pid) {
                timers.report_foreign(pid);
                continue;
            }
            self.announce("timer_expired", &format!("a timer of pid {pid} has expired: {signal}"));
            if let Err(error) = target.send(signal as i32) {
                tracing::warn!("pid {pid} does not get {signal}: {error}");
            }
        }
    }

    fn judged_hang(&self, verdict: Verdict) -> Option<Box<JudgedHang>> {
        let base = self.workers.round()?.base_rank;
        let local_rank = LocalRank(verdict.blamed_rank()?.0.checked_sub(base.0)?);
        let pid = self.workers.pid(local_rank)?;
        let generation = self.state.generation();
        Some(Box::new(JudgedHang { generation, at: SystemTime::now(), verdict, local_rank, pid }))
    }

    /// False if no stacks can be taken.
    fn start_hang_stacks(&mut self, judged: &JudgedHang) -> bool {
        let mut targets = self.stack_targets();
        targets.retain(|target| target.is_live);
        if targets.is_empty() {
            return false;
        }
        let now = Instant::now();
        // A verdict may be a warning, which stops no worker.
        let call = BlockingCall::start("stacks", move |_| {
            take_stacks(targets, StackMethod::Signal, now, now + STACKS_TIMEOUT)
        });
        let call = call.inspect_err(|error| tracing::info!("no stacks are taken: {error}")).ok();
        self.pending_hang = call.map(|call| PendingHang { judged: Box::new(judged.clone()), call });
        self.pending_hang.is_some()
    }

    /// The hang, once the stacks are taken.
    fn advance_pending_hang(&mut self) -> Option<Input> {
        let workers = match self.pending_hang.as_ref()?.call.progress() {
            CallProgress::Running => return None,
            CallProgress::Returned(workers) => workers,
            CallProgress::Lost => Vec::new(),
        };
        let mut judged = self.pending_hang.take()?.judged;
        judged.verdict = judged.verdict.with_places(&workers);
        let shown = render_briefly(&workers, SHOWN_CALLS, MAX_SHOWN_LINES).join("\n");
        self.announce("stacks", &format!("no progress; the workers:\n{shown}"));
        let generation = judged.generation;
        self.workers.set_unanswered(UnansweredStacks { generation, deadline: None, workers });
        Some(Input::HangJudged(judged))
    }
}
