//! Takes the stacks of all workers together: asks each Python that has the handler, waits until the handlers have ended,
//! and reads what they wrote. Where tools may be used, they look into the workers without a Python stack meanwhile.
//!
//! A dump has no end mark. The handler has ended when the signal is pending no more and no thread blocks it that did not
//! block it before: the kernel blocks a signal while its handler runs.
#![expect(clippy::disallowed_methods, reason = "all workers together have a limit")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_core::posix::Pid;
use rankrun_core::stacks::faulthandler::parse_dump;
use rankrun_core::stacks::{KernelThread, StackSource, WorkerStacks};

use super::device_power::PowerRun;
use super::dump_file::DumpFile;
use super::kernel;
use super::tools::{StackTools, ToolRuns, program_process};
use crate::process::descendants::scan_descendants_of;
use crate::process::proc::ProcessStat;
use crate::process::raw_signal::SignalTarget;

/// `SIGRTMIN+9` of glibc: below it are those that C libraries and debuggers use.
pub(super) const STACK_SIGNAL: libc::c_int = 43;
/// All workers together.
pub(crate) const STACKS_TIMEOUT: Duration = Duration::from_secs(2);
/// More of a dump is not read.
const MAX_DUMP: usize = 256 * 1024;
/// All workers of an answer together, so that a client can read it.
const MAX_DUMPS: usize = 2 * 1024 * 1024;
/// A handler that is Python's own has written something by then.
const SILENT_HANDLER: Duration = Duration::from_millis(100);
/// A handler that has not answered by then may never do so: the tools look too.
const SLOW_HANDLER: Duration = Duration::from_millis(250);
/// Workers that are looked into at the same time: each costs a process or two.
const MAX_LOOKED_INTO: usize = 16;
/// All killed tools are gone by then, unless they sleep uninterruptibly.
const END_AFTER_KILL: Duration = Duration::from_millis(50);
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// Each file has one reader at a time, or one would empty it while the other waits.
static LAST_COLLECTION: Mutex<Option<Finished>> = Mutex::new(None);

/// The last collection, for all that waited for it.
struct Finished {
    at: Instant,
    method: StackMethod,
    /// By the worker's process: after a restart a rank has another.
    workers: Vec<(Option<Pid>, WorkerStacks)>,
}

/// What may be done to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StackMethod {
    /// Signals alone: no worker is stopped.
    Signal,
    /// Tools look into workers without a Python stack, and stop them for a moment.
    Tools,
}

/// One worker whose stacks are taken.
#[derive(Debug, Clone)]
pub(crate) struct StackTarget {
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) pid: Option<Pid>,
    /// False after its end, when its pid may be another process's.
    pub(crate) is_live: bool,
    /// What its hook writes into.
    pub(crate) dump: Option<Arc<DumpFile>>,
    /// It was started with `--allow-ptrace`.
    pub(crate) names_tracer: bool,
    /// The device whose power draw is worth a look.
    pub(crate) device_uuid: Option<String>,
}

/// A target, and how far it has come.
struct Collection {
    target: StackTarget,
    /// The process that is asked.
    pid: Option<Pid>,
    state: CollectionState,
    /// What the kernel shows before the signal interrupts a system call.
    threads: Option<io::Result<Vec<KernelThread>>>,
    tools: Option<ToolRuns>,
    /// One of the tools still runs.
    is_looked_into: bool,
}

enum CollectionState {
    /// The handler may run; `blocking` is how many threads blocked the signal before.
    Waiting {
        blocking: usize,
        ended_before: bool,
        since: Instant,
    },
    Written,
    Absent(&'static str),
}

/// The stacks of these workers, in their order. A worker that has not answered by `until` is shown without. Stacks that
/// were taken after `asked`, for another request, are taken for this one too.
#[must_use]
pub(crate) fn take_stacks(
    targets: Vec<StackTarget>,
    method: StackMethod,
    asked: Instant,
    until: Instant,
) -> Vec<WorkerStacks> {
    let mut last = LAST_COLLECTION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(workers) = last.as_ref().and_then(|last| last.answer(&targets, method, asked)) {
        return workers;
    }
    let pids: Vec<Option<Pid>> = targets.iter().map(|target| target.pid).collect();
    let tools = (method == StackMethod::Tools).then(StackTools::find);
    let workers = collect_stacks(targets, tools.as_ref(), until);
    let of_pids = pids.into_iter().zip(workers.clone()).collect();
    *last = Some(Finished { at: Instant::now(), method, workers: of_pids });
    workers
}

pub(super) fn collect_stacks(
    targets: Vec<StackTarget>,
    tools: Option<&StackTools>,
    until: Instant,
) -> Vec<WorkerStacks> {
    let most = (MAX_DUMPS / targets.len().max(1)).min(MAX_DUMP);
    let mut power = PowerRun::start(&targets);
    let mut collections: Vec<Collection> = targets.into_iter().map(Collection::begin).collect();
    let mut pause = FIRST_PAUSE;
    loop {
        let is_waiting =
            collections.iter_mut().map(Collection::advance).fold(false, |one, other| one | other);
        let has_started = tools.is_some_and(|tools| start_tools(&mut collections, tools));
        let is_asking =
            power.as_mut().is_some_and(PowerRun::advance) && collections.iter().any(Collection::needs_power);
        if !(is_waiting || has_started || is_asking) || Instant::now() >= until {
            break;
        }
        wait_for_tools(&collections, power.as_ref().filter(|_| is_asking), pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    collections.iter_mut().filter_map(|collection| collection.tools.as_mut()).for_each(ToolRuns::stop);
    power.iter_mut().for_each(PowerRun::stop);
    let tools_end = Instant::now() + END_AFTER_KILL;
    let watts = power.map(|power| power.finish(tools_end)).unwrap_or_default();
    collections.into_iter().map(|collection| collection.finish(most, tools_end, &watts)).collect()
}

/// Lets the tools look into workers whose turn has come; true if one was begun.
fn start_tools(collections: &mut [Collection], tools: &StackTools) -> bool {
    let running = collections.iter().filter(|collection| collection.is_looked_into).count();
    let free = MAX_LOOKED_INTO.saturating_sub(running);
    let wanting = collections.iter_mut().filter(|collection| collection.wants_tools()).take(free);
    wanting.filter_map(|collection| collection.start_tools(tools).then_some(())).count() > 0
}

/// Until a tool has written something, or the pause is over.
fn wait_for_tools(collections: &[Collection], power: Option<&PowerRun>, pause: Duration) {
    let tools = collections.iter().filter_map(|collection| collection.tools.as_ref());
    let fds = tools.flat_map(ToolRuns::fds).chain(power.into_iter().flat_map(PowerRun::fds));
    let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    if fds.is_empty() {
        std::thread::sleep(pause);
        return;
    }
    let timeout = PollTimeout::try_from(pause + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
    // After an interrupt the next look is cheap.
    let _ = poll(&mut fds, timeout);
}

impl Finished {
    /// Its stacks of these workers, if it ended after they were asked for.
    fn answer(
        &self,
        targets: &[StackTarget],
        method: StackMethod,
        asked: Instant,
    ) -> Option<Vec<WorkerStacks>> {
        let found = |target: &StackTarget| {
            let is_it = |(pid, stacks): &&(Option<Pid>, WorkerStacks)| {
                (*pid, stacks.rank) == (target.pid, target.rank)
            };
            self.workers.iter().find(is_it).map(|(_, stacks)| stacks.clone())
        };
        (self.at >= asked && self.method >= method).then(|| targets.iter().map(found).collect())?
    }
}

impl Collection {
    fn begin(target: StackTarget) -> Self {
        let before = target.pid.filter(|_| target.is_live).map(kernel::threads_of);
        let (pid, state) = match (target.pid, &target.dump) {
            (None, _) => (None, CollectionState::Absent("its process was not started")),
            (Some(_), _) if !target.is_live => (None, CollectionState::Absent("it has ended")),
            (Some(pid), None) => {
                (Some(program_process(pid)), CollectionState::Absent("its program has no hook"))
            }
            (Some(pid), Some(dump)) => ask_for_dump(pid, dump),
        };
        // A wrapper's program is another process.
        let threads = if pid == target.pid { before } else { pid.map(kernel::threads_of) };
        Self { target, pid, state, threads, tools: None, is_looked_into: false }
    }

    /// True while the handler or a tool may find a Python stack.
    fn advance(&mut self) -> bool {
        self.is_looked_into = self.tools.as_mut().is_some_and(ToolRuns::advance);
        let is_answered = self.is_answered_by_tools();
        self.is_looked_into | (self.advance_handler() && !is_answered)
    }

    fn is_answered_by_tools(&self) -> bool {
        !self.is_looked_into && self.tools.as_ref().is_some_and(ToolRuns::has_python)
    }

    /// The power of its device is shown beside a worker without a Python stack.
    fn needs_power(&self) -> bool {
        let has_python = matches!(self.state, CollectionState::Written) || self.is_answered_by_tools();
        self.target.is_live && self.target.device_uuid.is_some() && !has_python
    }

    /// Whether the tools are to look into it: it has no Python stack, or not soon.
    fn wants_tools(&self) -> bool {
        let is_late = match self.state {
            CollectionState::Waiting { since, .. } => since.elapsed() >= SLOW_HANDLER,
            CollectionState::Absent(_) => true,
            CollectionState::Written => false,
        };
        self.tools.is_none() && self.pid.is_some() && is_late
    }

    /// False if the process has ended.
    fn start_tools(&mut self, tools: &StackTools) -> bool {
        let Some(pid) = self.pid else { return false };
        self.tools = ToolRuns::start(tools, pid);
        if self.tools.is_none() {
            self.pid = None;
        }
        self.tools.is_some()
    }

    /// True while the handler may run.
    fn advance_handler(&mut self) -> bool {
        let (Some(pid), Some(dump)) = (self.pid, &self.target.dump) else { return false };
        let CollectionState::Waiting { blocking, ended_before, since } = &mut self.state else {
            return false;
        };
        let Some(status) = SignalStatus::of(pid) else {
            self.state = CollectionState::Absent("it has ended");
            return false;
        };
        let has_ended = !status.is_pending && status.blocking <= *blocking;
        // Twice: between the two the kernel may have taken the signal, and not yet blocked it.
        let is_over = has_ended && std::mem::replace(ended_before, has_ended);
        *ended_before = has_ended;
        if is_over && dump.len() > 0 {
            self.state = CollectionState::Written;
        } else if is_over && since.elapsed() >= SILENT_HANDLER {
            self.state = CollectionState::Absent("its program has replaced the hook's signal handler");
        }
        matches!(self.state, CollectionState::Waiting { .. })
    }

    fn finish(self, most: usize, tools_end: Instant, watts: &BTreeMap<String, f64>) -> WorkerStacks {
        let Self { target, pid, state, threads, tools, .. } = self;
        let StackTarget { rank, local_rank, dump, names_tracer, device_uuid, .. } = target;
        let mut stacks = WorkerStacks {
            rank,
            local_rank,
            pid: pid.map(Pid::as_raw),
            device_watts: device_uuid.and_then(|uuid| watts.get(&uuid).copied()),
            ..WorkerStacks::default()
        };
        let bytes = match (&state, &dump) {
            // What there is of a dump whose handler hangs is worth showing too.
            (CollectionState::Written | CollectionState::Waiting { .. }, Some(dump)) => {
                dump.read(most).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let dump = parse_dump(&bytes);
        stacks.is_python_cut = dump.is_cut;
        stacks.is_main_missing = dump.is_end_missing;
        stacks.python = dump.threads;
        stacks.python_source = (!stacks.python.is_empty()).then_some(StackSource::Faulthandler);
        stacks.python_absence = match state {
            CollectionState::Absent(why) => Some(why.to_owned()),
            _ if !stacks.python.is_empty() => None,
            CollectionState::Written => Some("what it wrote is not a stack".to_owned()),
            CollectionState::Waiting { .. } => Some("it does not answer the signal".to_owned()),
        };
        match threads {
            Some(Ok(threads)) => stacks.threads = threads,
            Some(Err(error)) => stacks.kernel_absence = Some(format!("`/proc` does not show it: {error}")),
            None => {}
        }
        if let Some(tools) = tools {
            tools.finish(tools_end, names_tracer, &mut stacks);
        }
        stacks
    }
}

/// Signals the worker, or the first process below it, that has the handler: a wrapper has the program as its child.
fn ask_for_dump(worker: Pid, dump: &DumpFile) -> (Option<Pid>, CollectionState) {
    let is_armed = |pid: &Pid| SignalStatus::of(*pid).is_some_and(|status| status.is_caught);
    let below = || scan_descendants_of(worker).unwrap_or_default().into_iter().find(is_armed);
    let Some(pid) = Some(worker).filter(is_armed).or_else(below) else {
        return (
            Some(program_process(worker)),
            CollectionState::Absent("its program has no handler: no Python, `-I`, `-S`, `-E`, or after exec"),
        );
    };
    (Some(pid), signal_for_dump(pid, dump))
}

fn signal_for_dump(pid: Pid, dump: &DumpFile) -> CollectionState {
    let process = SignalTarget::open(pid);
    // The default action kills, so the handler is looked for once the pid can have no other owner.
    let status = SignalStatus::of(pid).filter(|status| status.is_caught);
    let Some(SignalStatus { blocking, .. }) = status else {
        return CollectionState::Absent("it has ended");
    };
    if is_stopped(pid) {
        return CollectionState::Absent("it is stopped (SIGSTOP, a debugger)");
    }
    if !dump.is_open_in(pid) {
        return CollectionState::Absent("its program has closed the hook's descriptor");
    }
    if dump.clear().is_err() {
        return CollectionState::Absent("its file cannot be emptied");
    }
    // Once more: a program that has just called exec or replaced the handler would be killed.
    if !SignalStatus::is_caught_by(pid) || process.send(STACK_SIGNAL).is_err() {
        return CollectionState::Absent("it has ended");
    }
    CollectionState::Waiting { blocking, ended_before: false, since: Instant::now() }
}

fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).map(|raw| ProcessStat::parse(&raw));
    stat.is_ok_and(|stat| matches!(stat.state(), Some("T" | "t")))
}

/// How a process stands with [`STACK_SIGNAL`], from the masks of `/proc/PID/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SignalStatus {
    is_caught: bool,
    /// For the process or one of its threads.
    is_pending: bool,
    /// Threads that block it.
    blocking: usize,
}

impl SignalStatus {
    fn is_caught_by(pid: Pid) -> bool {
        fs::read(format!("/proc/{pid}/status")).is_ok_and(|status| has_signal(&status, b"SigCgt:"))
    }

    /// `None` if there is no such process.
    fn of(pid: Pid) -> Option<Self> {
        let process = fs::read(format!("/proc/{pid}/status")).ok()?;
        let mut status = Self {
            is_caught: has_signal(&process, b"SigCgt:"),
            is_pending: has_signal(&process, b"ShdPnd:"),
            blocking: 0,
        };
        for id in kernel::thread_ids(pid).ok()? {
            let Ok(thread) = fs::read(format!("/proc/{pid}/task/{id}/status")) else { continue };
            status.is_pending |= has_signal(&thread, b"SigPnd:");
            status.blocking += usize::from(has_signal(&thread, b"SigBlk:"));
        }
        Some(status)
    }
}

/// Whether the mask of this name has the signal.
fn has_signal(status: &[u8], name: &[u8]) -> bool {
    let mut lines = status.split(|byte| *byte == b'\n');
    let mask = lines.find_map(|line| line.strip_prefix(name));
    let mask = mask.and_then(|mask| u64::from_str_radix(str::from_utf8(mask).ok()?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (STACK_SIGNAL - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::own_pid;

    #[test]
    fn signal_is_found_in_mask_of_its_name() {
        let status =
            b"Name:\tpython\nSigPnd:\t0000000000000000\nSigCgt:\t0000040000000002\nSigBlk:\tgarbage\n";
        assert!(has_signal(status, b"SigCgt:"));
        for name in [&b"SigPnd:"[..], b"SigBlk:", b"ShdPnd:"] {
            assert!(!has_signal(status, name));
        }
    }

    #[test]
    fn stacks_taken_meanwhile_are_those_of_the_same_processes() {
        let start = Instant::now();
        let target = |pid: i32| StackTarget {
            rank: 0,
            local_rank: 0,
            pid: Some(Pid::from_raw(pid)),
            is_live: true,
            dump: None,
            names_tracer: false,
            device_uuid: None,
        };
        let at = start + Duration::from_secs(1);
        let method = StackMethod::Signal;
        let finished =
            Finished { at, method, workers: vec![(Some(Pid::from_raw(7)), WorkerStacks::default())] };
        assert!(finished.answer(&[target(7)], method, start).is_some());
        assert!(finished.answer(&[target(8)], method, start).is_none(), "the rank was started again");
        assert!(finished.answer(&[target(7)], method, start + Duration::from_secs(2)).is_none(), "too old");
        assert!(finished.answer(&[target(7)], StackMethod::Tools, start).is_none(), "no tool has looked");
    }

    /// The default action of the signal would kill these tests.
    #[test]
    fn process_without_handler_gets_no_signal() {
        let target = |pid, is_live| StackTarget {
            rank: 1,
            local_rank: 0,
            pid,
            is_live,
            dump: Some(Arc::new(DumpFile::open().unwrap())),
            names_tracer: false,
            device_uuid: None,
        };
        let targets =
            vec![target(Some(own_pid()), true), target(Some(own_pid()), false), target(None, false)];
        let stacks =
            take_stacks(targets, StackMethod::Signal, Instant::now(), Instant::now() + STACKS_TIMEOUT);
        let absences: Vec<&str> =
            stacks.iter().map(|stacks| stacks.python_absence.as_deref().unwrap()).collect();
        assert!(absences[0].starts_with("its program has no handler"), "{absences:?}");
        assert_eq!(absences[1..], ["it has ended", "its process was not started"]);
        assert!(!stacks[0].threads.is_empty() && stacks[1].threads.is_empty());
    }
}
