//! The thread that watches the progress of one generation: it reads heartbeats and progress pages, asks the flight
//! recorders of workers without a fresh heartbeat, and reports a verdict when it changes. It ends with the generation.
#![expect(clippy::disallowed_methods, reason = "evidence has its time")]

use std::fs::File;
use std::io::{self, Read};
use std::mem::{Discriminant, discriminant};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rankrun_contract::progress_page::PAGE_BYTES;
use rankrun_contract::rank::{LocalRank, Rank};

use super::channels::ProgressChannels;
use super::recorder_client::fetch_groups;
use rankrun_core::hang::evidence::{RankEvidence, groups_of_page};
use rankrun_core::hang::heartbeat::{Heartbeat, HeartbeatError, MAX_HEARTBEAT};
use rankrun_core::hang::verdict::{Limits, Verdict, judge};

/// Heartbeats are read no more often, so a flood of them costs little.
const READ_INTERVAL: Duration = Duration::from_millis(250);
const JUDGE_INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A limit has this many looks.
const LOOKS: u32 = 4;
const READ_SIZE: usize = 64 << 10;
/// The lines of one read that are parsed, from the last one back.
const MAX_LINES: usize = 16;

/// What the thread has found.
#[derive(Debug)]
pub(crate) enum ProgressReport {
    /// A verdict that differs from the one before.
    Judged(Verdict),
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
}

impl ProgressWatch {
    /// Starts to watch the workers that have just been started; `base` is the rank of the first one.
    pub(crate) fn start(mut channels: ProgressChannels, base: Rank, limits: Limits) -> io::Result<Self> {
        let new_event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let (wake, reported) = (Arc::new(new_event()?), Arc::new(new_event()?));
        let ((commands, inbox), (outbox, reports)) = (channel(), channel());
        let started = Instant::now();
        let mut pages = std::mem::take(&mut channels.pages).into_iter();
        let workers =
            std::mem::take(&mut channels.fifos).into_iter().zip(0..).map(|(fifo, local)| WatchedWorker {
                fifo,
                partial: Vec::new(),
                has_bad_heartbeat: false,
                recorder: channels.recorder_path(LocalRank(local)),
                page: pages.next(),
            });
        let workers: Vec<WatchedWorker> = workers.collect();
        let ranks = (0..).take(workers.len()).map(|local: u32| Rank(base.0.saturating_add(local)));
        let observer = Observer {
            ranks: ranks.map(|rank| RankEvidence::new(rank, started)).collect(),
            workers,
            limits,
            commands: inbox,
            wake: Arc::clone(&wake),
            reports: outbox,
            reported: Arc::clone(&reported),
            last_reported: None,
            is_suspended: false,
            judge_at: started,
        };
        thread::Builder::new().name("progress-watch".to_owned()).spawn(move || observer.run())?;
        Ok(Self { _channels: channels, commands: Some(commands), wake, reports, reported })
    }

    /// Readable when [`Self::take_reports`] has something.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.reported.as_fd()
    }

    pub(crate) fn take_reports(&self) -> Vec<ProgressReport> {
        let _ = self.reported.read();
        self.reports.try_iter().collect()
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
struct WatchedWorker {
    fifo: File,
    /// The start of a line whose end has not come.
    partial: Vec<u8>,
    has_bad_heartbeat: bool,
    recorder: Option<PathBuf>,
    page: Option<File>,
}

#[derive(Debug)]
struct Observer {
    /// By local rank, as `workers`.
    ranks: Vec<RankEvidence>,
    workers: Vec<WatchedWorker>,
    limits: Limits,
    commands: Receiver<WatchCommand>,
    wake: Arc<EventFd>,
    reports: Sender<ProgressReport>,
    reported: Arc<EventFd>,
    /// The kind of the last verdict, and the rank that was blamed.
    last_reported: Option<(Discriminant<Verdict>, Option<Rank>)>,
    is_suspended: bool,
    judge_at: Instant,
}

impl Observer {
    fn run(mut self) {
        while self.handle_commands() {
            let mut has_read = false;
            if !self.is_suspended {
                has_read = self.read_heartbeats();
                let now = Instant::now();
                if self.judge_at <= now {
                    self.read_pages(now);
                    self.ask_recorders(now);
                    self.report_verdict();
                    self.judge_at = Instant::now() + self.interval();
                }
            }
            self.wait(has_read);
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
                Ok(WatchCommand::Suspended) => self.is_suspended = true,
                Ok(WatchCommand::Resumed(lasted)) => {
                    self.is_suspended = false;
                    self.ranks.iter_mut().for_each(|evidence| evidence.add_suspended_time(lasted));
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
            if !groups.is_empty() {
                evidence.record_groups(groups, now);
            }
        }
    }

    /// Together, so that workers that do not answer hide no others. A worker with a fresh heartbeat is not asked.
    fn ask_recorders(&mut self, now: Instant) {
        let fresh = self.limits.usual() / LOOKS;
        let asked = self.workers.iter().zip(&mut self.ranks).filter_map(|(worker, evidence)| {
            let heartbeat = evidence.last_heartbeat.as_ref();
            let is_fresh = heartbeat.is_some_and(|last| now.saturating_duration_since(last.at) < fresh);
            let socket = worker.recorder.as_ref().filter(|_| !evidence.is_finished && !is_fresh)?;
            Some((socket, evidence))
        });
        thread::scope(|scope| {
            for (socket, evidence) in asked {
                let ask = move || match fetch_groups(socket) {
                    // Without any collective it is as if there were no recorder.
                    Ok(groups) if groups.is_empty() => {}
                    Ok(groups) => evidence.record_groups(groups, now),
                    Err(error) => tracing::debug!("rank {}: no flight recorder: {error}", evidence.rank),
                };
                let thread = thread::Builder::new().name("flight-recorder".to_owned());
                // Without a thread it is asked the next time.
                let _ = thread.spawn_scoped(scope, ask);
            }
        });
    }

    /// A hang, a desync or a straggler is reported once, until the job makes progress again or the blamed rank has
    /// ended.
    fn report_verdict(&mut self) {
        let verdict = judge(&self.ranks, Instant::now(), &self.limits);
        match verdict {
            Verdict::Progress => self.last_reported = None,
            Verdict::NotEnoughEvidence => {}
            Verdict::Hang(_) | Verdict::Desync(_) | Verdict::Straggler(_) => {
                let is_hung = !matches!(verdict, Verdict::Straggler(_));
                let reported = (discriminant(&verdict), verdict.blamed_rank().filter(|_| is_hung));
                if self.last_reported.replace(reported) != Some(reported) {
                    let _ = self.reports.send(ProgressReport::Judged(verdict));
                    let _ = self.reported.write(1);
                }
            }
        }
    }

    fn interval(&self) -> Duration {
        (self.limits.usual() / LOOKS).clamp(JUDGE_INTERVALS.0, JUDGE_INTERVALS.1)
    }

    /// Until a command, a heartbeat, or the next look. After a heartbeat the next one waits for a while.
    fn wait(&self, has_read: bool) {
        let until_judge = self.judge_at.saturating_duration_since(Instant::now());
        let until_judge = (!self.is_suspended).then_some(until_judge);
        let timeout = until_judge.into_iter().chain(has_read.then_some(READ_INTERVAL)).min();
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
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

impl WatchedWorker {
    /// The last heartbeat that has come, and the error of a bad one.
    fn read_heartbeat(&mut self) -> (Option<Heartbeat>, Option<HeartbeatError>) {
        let mut chunk = vec![0; READ_SIZE];
        let Ok(length) = self.fifo.read(&mut chunk) else { return (None, None) };
        self.partial.extend_from_slice(&chunk[..length]);
        let Some(end) = memchr::memrchr(b'\n', &self.partial) else {
            self.partial.truncate(MAX_HEARTBEAT + 1);
            return (None, None);
        };
        let rest = self.partial.split_off(end + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        self.partial.truncate(MAX_HEARTBEAT + 1);
        let mut error = None;
        for line in lines[..end].rsplit(|byte| *byte == b'\n').take(MAX_LINES) {
            match Heartbeat::parse(line) {
                Ok(heartbeat) => return (Some(heartbeat), error),
                Err(bad) => error = Some(bad),
            }
        }
        (None, error)
    }
}

#[cfg(test)]
#[path = "progress_watch_tests.rs"]
mod tests;
