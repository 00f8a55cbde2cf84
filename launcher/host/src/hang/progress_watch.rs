//! The thread that watches the progress of one generation: it reads heartbeats and progress pages, asks the flight
//! recorders of workers without a fresh heartbeat, and reports a verdict when it changes. It ends with the generation.
#![expect(clippy::disallowed_methods, reason = "evidence has its time")]

use std::io;
use std::mem::{Discriminant, discriminant};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rankrun_contract::progress_page::PAGE_BYTES;
use rankrun_contract::rank::{LocalRank, Rank};

use super::board::EvidenceBoard;
use super::channels::ProgressChannels;
use super::ras_client::{RAS_TIMEOUT, RasWorkers};
use super::recorder_client::ask_recorder;
use super::watched_worker::WatchedWorker;
use crate::stacks::STACKS_TIMEOUT;
use rankrun_core::hang::evidence::{RankEvidence, groups_of_page};
use rankrun_core::hang::heartbeat::HeartbeatError;
use rankrun_core::hang::verdict::{Limits, Verdict, judge};
use rankrun_core::posix::Pid;

/// Heartbeats are read no more often, so a flood of them costs little.
const READ_INTERVAL: Duration = Duration::from_millis(250);
const JUDGE_INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A recorder that takes longer for an answer is left out: a busy machine has some seconds.
const ANSWER_TIMES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// A limit has this many looks.
const LOOKS: u32 = 4;
/// A node that has published nothing for so many looks is not judged.
const SILENT_NODE_LOOKS: u32 = 4;
/// A thread that runs so much later than it asked for was frozen, and the workers probably with it.
const FROZEN_AFTER: Duration = Duration::from_secs(1);

/// A thread that ends reads the last heartbeats at once, unless it waits for an answer.
const LAST_READ: Duration = Duration::from_secs(1);

/// What the thread has found.
#[derive(Debug)]
pub(crate) enum ProgressReport {
    /// A verdict that differs from the one before.
    Judged(Verdict),
    /// The job makes progress again after a verdict.
    Cleared,
    /// With a limit of the user: the first step and the limit are over, and no worker has shown anything.
    NoEvidence,
    /// With a limit of the user: no worker has shown progress for that time, and none waits in a collective.
    NoProgressOutsideCollectives,
    /// The PyTorch of this rank has no handler for its flight recorder.
    NoRecorder { rank: Rank },
    /// The first bad heartbeat of a rank.
    BadHeartbeat { rank: Rank, error: HeartbeatError },
}

#[derive(Debug)]
enum WatchCommand {
    Finished(LocalRank),
    Suspended,
    Resumed(Duration),
}

/// The agent's end of the thread. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ProgressWatch {
    /// Removed with this.
    _channels: ProgressChannels,
    commands: Option<Sender<WatchCommand>>,
    wake: Arc<EventFd>,
    reports: Receiver<ProgressReport>,
    reported: Arc<EventFd>,
    ended: Option<EndedWatch>,
}

/// A thread that has been told to end.
#[derive(Debug)]
pub(crate) struct EndedWatch {
    /// The highest step of all heartbeats so far.
    step: Arc<Mutex<Option<u64>>>,
    /// At its end when the thread is.
    is_running: Receiver<()>,
}

impl EndedWatch {
    /// The highest step of all heartbeats, if there were any; `Err` if the thread has not read the last ones in time. It may
    /// wait for a flight recorder that does not answer.
    pub(crate) fn highest_step(&self) -> Result<Option<u64>, RecvTimeoutError> {
        match self.is_running.recv_timeout(LAST_READ) {
            Err(error @ RecvTimeoutError::Timeout) => Err(error),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                Ok(*self.step.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

impl ProgressWatch {
    /// Starts to watch the workers that have just been started; `base` is the rank of the first one.
    ///
    /// # Errors
    /// No descriptor or no thread is left. The channels must stay, since workers have their names.
    pub(crate) fn start(
        channels: ProgressChannels,
        base: Rank,
        limits: Limits,
        pids: Vec<Option<Pid>>,
        board: Option<Arc<EvidenceBoard>>,
    ) -> Result<Self, (io::Error, ProgressChannels)> {
        let new_event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new);
        let (wake, reported) = match (new_event(), new_event()) {
            (Ok(wake), Ok(reported)) => (wake, reported),
            (Err(error), _) | (_, Err(error)) => return Err((error.into(), channels)),
        };
        let ((commands, inbox), (outbox, reports)) = (channel(), channel());
        let ((running, is_running), step) = (channel(), Arc::default());
        let observer = Observer {
            ranks: Vec::new(),
            workers: WatchedWorker::of_channels(&channels),
            ras: channels.ras_port().map(|port| RasWorkers { port, base, pids }),
            limits,
            board,
            commands: inbox,
            wake: Arc::clone(&wake),
            reports: outbox,
            reported: Arc::clone(&reported),
            last_reported: None,
            reported_once: Vec::new(),
            highest_step: Arc::clone(&step),
            _is_running: running,
            is_suspended: false,
            judge_at: Instant::now(),
            hot_until: Instant::now(),
        };
        let ended = Some(EndedWatch { step, is_running });
        let thread = thread::Builder::new().name("progress-watch".to_owned());
        match thread.spawn(move || observer.with_ranks(base).run()) {
            Ok(_) => {
                Ok(Self { _channels: channels, commands: Some(commands), wake, reports, reported, ended })
            }
            Err(error) => Err((error, channels)),
        }
    }

    /// Readable when [`Self::take_reports`] has something.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.reported.as_fd()
    }

    pub(crate) fn take_reports(&self) -> Vec<ProgressReport> {
        let _ = self.reported.read();
        self.reports.try_iter().collect()
    }

    /// Ends the thread, which reads the last heartbeats before.
    pub(crate) fn end(mut self) -> Option<EndedWatch> {
        self.ended.take()
    }

    /// The worker has exited with 0.
    pub(crate) fn finish_worker(&self, local_rank: LocalRank) {
        self.send(WatchCommand::Finished(local_rank));
    }

    /// The job is suspended: nothing is judged until [`Self::resume`].
    pub(crate) fn suspend(&self) {
        self.send(WatchCommand::Suspended);
    }

    /// The job continues; the time of the suspension does not count.
    pub(crate) fn resume(&self, suspended_for: Duration) {
        self.send(WatchCommand::Resumed(suspended_for));
    }

    fn send(&self, command: WatchCommand) {
        // A thread that has panicked watches nothing any more.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
        let _ = self.wake.write(1);
    }
}

impl Drop for ProgressWatch {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.wake.write(1);
    }
}

#[derive(Debug)]
struct Observer {
    /// By local rank, as `workers`.
    ranks: Vec<RankEvidence>,
    workers: Vec<WatchedWorker>,
    ras: Option<RasWorkers>,
    limits: Limits,
    /// The other nodes, if they tell of their ranks.
    board: Option<Arc<EvidenceBoard>>,
    commands: Receiver<WatchCommand>,
    wake: Arc<EventFd>,
    reports: Sender<ProgressReport>,
    reported: Arc<EventFd>,
    /// The kind of the last verdict, and the rank that was blamed.
    last_reported: Option<(Discriminant<Verdict>, Option<Rank>)>,
    /// The reports that are made once.
    reported_once: Vec<Discriminant<ProgressReport>>,
    /// Of all ranks of this node.
    highest_step: Arc<Mutex<Option<u64>>>,
    /// Dropped at the end of the thread.
    _is_running: Sender<()>,
    is_suspended: bool,
    judge_at: Instant,
    /// Until then the job is judged often: the stacks of a hang are being taken.
    hot_until: Instant,
}

impl Observer {
    fn with_ranks(mut self, base: Rank) -> Self {
        let ranks = (0..).take(self.workers.len()).map(|local: u32| Rank(base.0.saturating_add(local)));
        self.ranks = ranks.map(|rank| RankEvidence::new(rank, self.judge_at)).collect();
        self
    }

    fn run(mut self) {
        while self.handle_commands() {
            let mut has_read = false;
            if !self.is_suspended {
                has_read = self.read_heartbeats();
                let now = Instant::now();
                if self.judge_at <= now {
                    self.read_pages(now);
                    self.ask_recorders(now);
                    self.discount_frozen_time(now, self.answer_time());
                    self.ask_nccl();
                    // A worker may have sent one meanwhile.
                    has_read |= self.read_heartbeats();
                    self.report_verdict();
                    self.judge_at = Instant::now() + self.interval();
                }
            }
            let (began, asked) = (Instant::now(), self.wait_time(has_read));
            self.wait(has_read, asked);
            if let Some(asked) = asked {
                self.discount_frozen_time(began, asked);
            }
        }
        self.read_heartbeats();
    }

    /// What began then should have lasted so long. If it lasted much longer, a freezer (cgroups, `docker pause`), a paused
    /// machine or a signal has stopped this thread: the clock has run, and the workers have not.
    fn discount_frozen_time(&mut self, began: Instant, expected: Duration) {
        let now = Instant::now();
        let lasted = now.saturating_duration_since(began);
        if lasted > expected + FROZEN_AFTER {
            tracing::debug!("the progress watch stood still: {lasted:.1?} instead of {expected:.1?}");
            let frozen = lasted.saturating_sub(expected);
            self.ranks.iter_mut().for_each(|evidence| evidence.add_suspended_time(frozen, now));
        }
    }

    /// False at the end of the generation.
    fn handle_commands(&mut self) -> bool {
        let _ = self.wake.read();
        loop {
            match self.commands.try_recv() {
                Ok(WatchCommand::Finished(local_rank)) => {
                    if let Some(evidence) = self.ranks.get_mut(local_rank.index()) {
                        evidence.is_finished = true;
                    }
                }
                Ok(WatchCommand::Suspended) => {
                    self.is_suspended = true;
                    self.publish_evidence();
                }
                Ok(WatchCommand::Resumed(lasted)) => {
                    self.is_suspended = false;
                    let now = Instant::now();
                    self.ranks.iter_mut().for_each(|evidence| evidence.add_suspended_time(lasted, now));
                    self.publish_evidence();
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn read_heartbeats(&mut self) -> bool {
        let mut has_read = false;
        for (worker, evidence) in self.workers.iter_mut().zip(&mut self.ranks) {
            let (heartbeat, error) = worker.read_heartbeat();
            if let Some(heartbeat) = heartbeat {
                let mut highest = self.highest_step.lock().unwrap_or_else(PoisonError::into_inner);
                *highest = highest.max(Some(heartbeat.step));
                evidence.record_heartbeat(heartbeat, Instant::now());
                has_read = true;
            }
            if let Some(error) = error {
                has_read = true;
                if !std::mem::replace(&mut worker.has_bad_heartbeat, true) {
                    let _ = self.reports.send(ProgressReport::BadHeartbeat { rank: evidence.rank, error });
                    let _ = self.reported.write(1);
                }
            }
        }
        has_read
    }

    fn read_pages(&mut self, now: Instant) {
        for (worker, evidence) in self.workers.iter().zip(&mut self.ranks) {
            let Some(page) = worker.page.as_ref().filter(|_| !evidence.is_finished) else { continue };
            let mut bytes = [0; PAGE_BYTES];
            let length = page.read_at(&mut bytes, 0).unwrap_or_default();
            let groups = groups_of_page(&bytes[..length]);
            // Before the first group the page says nothing; after it, that the groups have ended.
            if !groups.is_empty() || evidence.groups.is_some() {
                evidence.record_groups(groups, now);
            }
        }
    }

    /// Together, so that workers that do not answer hide no others. A worker with a fresh heartbeat is not asked.
    fn ask_recorders(&mut self, now: Instant) {
        let (fresh, patience) = (self.limits.usual() / LOOKS, self.answer_time());
        let asked = self.workers.iter_mut().zip(&mut self.ranks).filter_map(|(worker, evidence)| {
            // The groups of a worker have one source: its page, or its recorder.
            let is_asked =
                worker.page.is_none() && !evidence.is_finished && !evidence.has_heartbeat_since(now, fresh);
            let socket = worker.recorder.as_ref().filter(|_| is_asked)?;
            Some((socket, &mut worker.recorder_state, evidence))
        });
        let without = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (socket, state, evidence) in asked {
                let rank = evidence.rank;
                let lacks = |has_recorder| state.record(has_recorder);
                let ask = move || (rank, ask_recorder(socket, evidence, now, patience).is_some_and(lacks));
                let thread = thread::Builder::new().name("flight-recorder".to_owned());
                // Without a thread it is asked the next time.
                threads.extend(thread.spawn_scoped(scope, ask));
            }
            let answers = threads.into_iter().filter_map(|thread| thread.join().ok());
            answers.filter(|(_, lacks_recorder)| *lacks_recorder).map(|(rank, _)| rank).min()
        });
        if let Some(rank) = without {
            self.report_once(ProgressReport::NoRecorder { rank });
        }
    }

    fn ask_nccl(&mut self) {
        let Some(ras) = &self.ras else { return };
        let (now, fresh) = (Instant::now(), self.limits.usual() / LOOKS);
        let ranks = self.workers.iter().zip(&mut self.ranks).filter(|(worker, evidence)| {
            let has_source = worker.page.is_some() || worker.recorder.is_some() && evidence.has_groups();
            !has_source && !evidence.is_finished && !evidence.has_heartbeat_since(now, fresh)
        });
        ras.record_groups(ranks.map(|(_, evidence)| evidence), now);
        self.discount_frozen_time(now, RAS_TIMEOUT);
    }

    fn publish_evidence(&self) {
        if let Some(board) = &self.board {
            let now = Instant::now();
            board.publish(&self.ranks, self.is_suspended, self.wants_others(now), now);
        }
    }

    /// Each node would read all others. Without a limit of the user that is worth it only once the ranks here have made no
    /// progress for a while.
    fn wants_others(&self, now: Instant) -> bool {
        let is_slow = |it: &RankEvidence| {
            it.is_finished || now.saturating_duration_since(it.last_progress) >= self.limits.usual() / 2
        };
        self.limits.hang_timeout.is_some() || self.ranks.iter().all(is_slow)
    }

    /// The verdict on the ranks of all nodes that tell of theirs, or of this node alone.
    fn judge_all(&self, now: Instant) -> Verdict {
        let Some(board) = &self.board else { return judge(&self.ranks, now, &self.limits) };
        // Very many nodes that watch nothing need not tell it.
        if self.limits.hang_timeout.is_some() || self.ranks.iter().any(RankEvidence::has_evidence) {
            self.publish_evidence();
        }
        let others = board.others(now, self.usual_interval() * SILENT_NODE_LOOKS + self.answer_time());
        if others.is_suspended {
            return Verdict::Progress;
        }
        let limits = Limits { has_other_nodes: !others.are_all, ..self.limits };
        judge(&[self.ranks.as_slice(), &others.ranks].concat(), now, &limits)
    }

    /// A hang, a desync or a straggler is reported once, until the job makes progress again or the blamed rank has
    /// ended.
    fn report_verdict(&mut self) {
        let now = Instant::now();
        let verdict = self.judge_all(now);
        match verdict {
            Verdict::Progress => {
                if self.last_reported.take().is_some() {
                    self.report(ProgressReport::Cleared);
                }
            }
            Verdict::NotEnoughEvidence => self.report_no_evidence(now),
            Verdict::Hang(_) | Verdict::Desync(_) | Verdict::Straggler(_) => {
                let is_hung = !matches!(verdict, Verdict::Straggler(_));
                let reported = (discriminant(&verdict), verdict.blamed_rank().filter(|_| is_hung));
                if self.last_reported.replace(reported) != Some(reported) {
                    self.hot_until = now + STACKS_TIMEOUT;
                    self.report(ProgressReport::Judged(verdict));
                }
            }
        }
    }

    /// Once each, since a limit that nothing is compared with protects no job.
    fn report_no_evidence(&mut self, now: Instant) {
        let Some(limit) = self.limits.hang_timeout else { return };
        let late = self.limits.first_step.saturating_add(limit);
        let is_late = |it: &RankEvidence| now.saturating_duration_since(it.started) >= late;
        let running = || self.ranks.iter().filter(|it| !it.is_finished);
        if running().next().is_none() || !running().all(|it| is_late(it) && !it.is_unanswered) {
            return;
        }
        let report = match running().any(RankEvidence::has_evidence) {
            false => ProgressReport::NoEvidence,
            true => ProgressReport::NoProgressOutsideCollectives,
        };
        self.report_once(report);
    }

    fn report_once(&mut self, report: ProgressReport) {
        if !self.reported_once.contains(&discriminant(&report)) {
            self.reported_once.push(discriminant(&report));
            self.report(report);
        }
    }

    fn report(&self, report: ProgressReport) {
        let _ = self.reports.send(report);
        let _ = self.reported.write(1);
    }

    fn interval(&self) -> Duration {
        if Instant::now() < self.hot_until {
            return JUDGE_INTERVALS.0;
        }
        self.usual_interval()
    }

    fn answer_time(&self) -> Duration {
        self.limits.usual().clamp(ANSWER_TIMES.0, ANSWER_TIMES.1)
    }

    fn usual_interval(&self) -> Duration {
        (self.limits.usual() / LOOKS).clamp(JUDGE_INTERVALS.0, JUDGE_INTERVALS.1)
    }

    /// Until the next look, or a short while after a heartbeat; without an end while the job is suspended.
    fn wait_time(&self, has_read: bool) -> Option<Duration> {
        let until_judge = self.judge_at.saturating_duration_since(Instant::now());
        let until_judge = (!self.is_suspended).then_some(until_judge);
        until_judge.into_iter().chain(has_read.then_some(READ_INTERVAL)).min()
    }

    /// Until a command, a heartbeat, or the end of this time. After a heartbeat the next one waits for a while.
    fn wait(&self, has_read: bool, time: Option<Duration>) {
        let timeout = time.map_or(PollTimeout::NONE, |time| {
            PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let reads_fifos = !has_read && !self.is_suspended;
        let fifos = self.workers.iter().filter(|_| reads_fifos).map(|worker| worker.fifo.as_fd());
        let fds = [self.wake.as_fd()].into_iter().chain(fifos);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if poll(&mut fds, timeout).is_err() {
            // A signal, or no memory: the loop must not spin.
            thread::sleep(JUDGE_INTERVALS.0);
        }
    }
}

#[cfg(test)]
#[path = "progress_watch_tests.rs"]
mod tests;
