//! The processes of a virtual node. They record their own state, by which the machine is judged.

use std::time::{Duration, Instant};

use rankrun_contract::rank::{Generation, LocalRank};

use super::groups::GroupMember;
use super::history::ErrorFileContent;
use super::setup::{Setup, StopReaction};
use crate::posix::{Exit, Pid, Signal};

#[derive(Debug)]
pub(super) struct Process {
    pub(super) generation: Generation,
    pub(super) local_rank: LocalRank,
    pub(super) pid: Pid,
    /// The user started it: the external worker.
    pub(super) is_external: bool,
    pub(super) state: ProcessState,
    /// The stop signals that it got.
    pub(super) signals: Vec<Signal>,
    /// How and when it will end because of them.
    planned_end: Option<PendingExit>,
}

/// The state of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessState {
    Running,
    /// It is uninterruptible (state `D`).
    Uninterruptible,
    /// It has ended, and the machine does not know yet.
    Exited,
    /// The machine was told of its exit.
    ExitReported,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PendingExit {
    pub(super) at: Instant,
    exit: Exit,
    wrote: ErrorFileContent,
}

/// The exit of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedWorker {
    pub(super) generation: Generation,
    pub(super) local_rank: LocalRank,
    pub(super) pid: Pid,
    pub(super) exit: Exit,
    pub(super) wrote: ErrorFileContent,
}

impl Process {
    pub(super) const fn is_alive(&self) -> bool {
        matches!(self.state, ProcessState::Running | ProcessState::Uninterruptible)
    }

    pub(super) const fn is_uninterruptible(&self) -> bool {
        matches!(self.state, ProcessState::Uninterruptible)
    }

    pub(super) const fn is_known(&self) -> bool {
        matches!(self.state, ProcessState::ExitReported)
    }

    /// True if it died of a signal that we sent.
    pub(super) fn is_ended_by_us(&self, exit: Exit) -> bool {
        matches!(exit, Exit::Signal { number, .. } if self.signals.iter().any(|signal| *signal as i32 == number))
    }

    fn end(&mut self, exit: Exit, wrote: ErrorFileContent) -> EndedWorker {
        self.state = ProcessState::Exited;
        let Self { generation, local_rank, pid, .. } = *self;
        EndedWorker { generation, local_rank, pid, exit, wrote }
    }
}

/// All processes of all generations.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) processes: Vec<Process>,
    /// The processes in the groups of workers that get stop signals alone.
    pub(super) group_members: Vec<GroupMember>,
    /// The process that the workers left running.
    pub(super) leftover: Option<Leftover>,
}

/// A process that the workers left running.
#[derive(Debug)]
pub(super) struct Leftover {
    reaction: StopReaction,
    planned_end: Option<Instant>,
    is_gone: bool,
}

impl Leftover {
    pub(super) const fn new(reaction: StopReaction) -> Self {
        Self { reaction, planned_end: None, is_gone: false }
    }
}

impl Node {
    pub(super) fn spawn(&mut self, generation: Generation, local_rank: LocalRank, is_external: bool) -> Pid {
        let pid = Pid::from_raw(100 + i32::try_from(self.processes.len()).expect("few processes"));
        self.processes.push(Process {
            generation,
            local_rank,
            pid,
            is_external,
            state: ProcessState::Running,
            signals: Vec::new(),
            planned_end: None,
        });
        pid
    }

    /// The processes of one generation, without the external worker.
    pub(super) fn launched_workers(&self, generation: Generation) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |process| process.generation == generation && !process.is_external)
    }

    /// The `index`th live process that fits, counted cyclically.
    pub(super) fn living(
        &mut self,
        index: u32,
        fits: impl Fn(&Process) -> bool + Copy,
    ) -> Option<&mut Process> {
        let count = self.processes.iter().filter(|process| process.is_alive() && fits(process)).count();
        let index = (index as usize).checked_rem(count)?;
        self.processes.iter_mut().filter(|process| process.is_alive() && fits(process)).nth(index)
    }

    pub(super) fn end(&mut self, index: u32, exit: Exit, wrote: ErrorFileContent) -> Option<EndedWorker> {
        Some(self.living(index, |process| !process.is_uninterruptible())?.end(exit, wrote))
    }

    /// Ends all processes that can end.
    pub(super) fn end_all(&mut self, exit: Exit) -> Vec<EndedWorker> {
        let awake = self.processes.iter_mut().filter(|process| process.state == ProcessState::Running);
        awake.map(|process| process.end(exit, ErrorFileContent::Nothing)).collect()
    }

    /// Kills all workers that were not started by hand; an uninterruptible one ends later.
    pub(super) fn kill_all(&mut self, now: Instant) -> Vec<EndedWorker> {
        let exit = Exit::Signal { number: libc::SIGKILL, core_dumped: false };
        self.kill_group_members(now);
        let launched = self.processes.iter_mut().filter(|process| process.is_alive() && !process.is_external);
        let mut ended = Vec::new();
        for process in launched {
            process.signals.push(Signal::SIGKILL);
            if process.is_uninterruptible() {
                process.planned_end = Some(PendingExit { at: now, exit, wrote: ErrorFileContent::Nothing });
            } else {
                ended.push(process.end(exit, ErrorFileContent::Nothing));
            }
        }
        ended
    }

    pub(super) fn by_pid(&self, pid: Pid) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    pub(super) fn mark_known(&mut self, pid: Pid) {
        if let Some(process) = self.processes.iter_mut().find(|process| process.pid == pid) {
            process.state = ProcessState::ExitReported;
        }
    }

    /// Signals these workers; returns those that got the signal alone.
    pub(super) fn signal(
        &mut self,
        (generation, local_ranks): (Generation, &[LocalRank]),
        signal: Signal,
        now: Instant,
        setup: &Setup,
    ) -> Vec<LocalRank> {
        let mut alone = Vec::new();
        let meant = |process: &&mut Process| {
            process.is_alive()
                && process.generation == generation
                && local_ranks.contains(&process.local_rank)
        };
        for process in self.processes.iter_mut().filter(meant) {
            process.signals.push(signal);
            if setup.group_members[process.local_rank.0 as usize].is_some() {
                alone.push(process.local_rank);
            }
            let reaction = setup.reactions[process.local_rank.0 as usize];
            let Some(due) = react(reaction, signal, now) else { continue };
            if process.planned_end.is_none_or(|before| due.at < before.at) || signal == Signal::SIGKILL {
                process.planned_end = Some(due);
            }
        }
        // The agent cannot see the image of a worker that has ended, and signals its group.
        let has_ended = |local_rank: &LocalRank| {
            self.launched_workers(generation)
                .any(|it| it.local_rank == *local_rank && it.state == ProcessState::Exited)
        };
        let mut with_group: Vec<LocalRank> = local_ranks.iter().copied().filter(has_ended).collect();
        if signal == Signal::SIGKILL {
            with_group.append(&mut alone);
        }
        self.signal_groups((generation, &with_group), Some(signal), now);
        alone
    }

    /// Signals the leftover process; returns whether there is one.
    pub(super) fn signal_leftover(&mut self, signal: Option<Signal>, now: Instant) -> bool {
        let Some(leftover) = self.leftover.as_mut().filter(|leftover| !leftover.is_gone) else {
            return false;
        };
        let due = signal.and_then(|signal| react(leftover.reaction, signal, now)).map(|due| due.at);
        leftover.planned_end = leftover.planned_end.into_iter().chain(due).min();
        true
    }

    /// Ends the leftover process, if it is due; returns whether it was.
    pub(super) fn end_due_leftover(&mut self, now: Instant) -> bool {
        let Some(leftover) = self.leftover.as_mut().filter(|leftover| !leftover.is_gone) else {
            return false;
        };
        leftover.is_gone = leftover.planned_end.is_some_and(|end| end <= now);
        leftover.is_gone
    }

    fn leftover_end(&self) -> Option<Instant> {
        self.leftover.as_ref().filter(|leftover| !leftover.is_gone)?.planned_end
    }

    /// When the next process ends because of a signal.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let dying =
            self.processes.iter().filter(|process| process.is_alive() && !process.is_uninterruptible());
        let dying = dying.filter_map(|process| process.planned_end.map(|due| due.at));
        dying
            .chain(self.leftover_end())
            .chain(self.group_members.iter().filter_map(GroupMember::next_end))
            .min()
    }

    /// All processes were suspended for this long.
    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        for due in self.processes.iter_mut().filter_map(|process| process.planned_end.as_mut()) {
            due.at += lasted;
        }
        if let Some(end) = self.leftover.as_mut().and_then(|leftover| leftover.planned_end.as_mut()) {
            *end += lasted;
        }
        self.group_members.iter_mut().for_each(|member| member.add_suspended_time(lasted));
    }

    /// Ends the processes that are due.
    pub(super) fn end_due_processes(&mut self, now: Instant) -> Vec<EndedWorker> {
        let mut ended = Vec::new();
        for process in
            self.processes.iter_mut().filter(|process| process.is_alive() && !process.is_uninterruptible())
        {
            if let Some(due) = process.planned_end.filter(|due| due.at <= now) {
                ended.push(process.end(due.exit, due.wrote));
            }
        }
        ended
    }
}

pub(super) fn react(reaction: StopReaction, signal: Signal, now: Instant) -> Option<PendingExit> {
    let by_signal = Exit::Signal { number: signal as i32, core_dumped: false };
    let (after, exit, wrote) = match reaction {
        _ if signal == Signal::SIGKILL => (0, by_signal, ErrorFileContent::Nothing),
        StopReaction::Obeys { after } => (after, by_signal, ErrorFileContent::Nothing),
        StopReaction::Complains { after } => (after, by_signal, ErrorFileContent::Own),
        StopReaction::Handles { after, code } => (after, Exit::Code(code), ErrorFileContent::Nothing),
        StopReaction::DeafTo(deaf) if deaf != signal => (0, by_signal, ErrorFileContent::Nothing),
        StopReaction::DeafTo(_) | StopReaction::Ignores => return None,
    };
    Some(PendingExit { at: now + Duration::from_millis(u64::from(after)), exit, wrote })
}
