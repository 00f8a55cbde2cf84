//! Takes the stacks of all workers together: asks each Python that has the handler, waits until the handlers have ended,
//! and reads what they wrote.
//!
//! A dump has no end mark. The handler has ended when the signal is pending no more and no thread blocks it that did not
//! block it before: the kernel blocks a signal while its handler runs.
#![expect(clippy::disallowed_methods, reason = "all workers together have a limit")]

use std::fs;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rankrun_core::posix::Pid;
use rankrun_core::stacks::faulthandler::parse_dump;
use rankrun_core::stacks::{KernelThread, WorkerStacks};

use super::dump_file::DumpFile;
use super::kernel;
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
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// Each file has one reader at a time, or one would empty it while the other waits.
static LAST_COLLECTION: Mutex<Option<Finished>> = Mutex::new(None);

/// The last collection, for all that waited for it.
struct Finished {
    at: Instant,
    /// By the worker's process: after a restart a rank has another.
    workers: Vec<(Option<Pid>, WorkerStacks)>,
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
}

/// A target, and how far it has come.
struct Collection {
    target: StackTarget,
    /// The process that is asked.
    pid: Option<Pid>,
    state: CollectionState,
    /// What the kernel shows before the signal interrupts a system call.
    threads: Option<io::Result<Vec<KernelThread>>>,
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
pub(crate) fn take_stacks(targets: Vec<StackTarget>, asked: Instant, until: Instant) -> Vec<WorkerStacks> {
    let mut last = LAST_COLLECTION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(workers) = last.as_ref().and_then(|last| last.answer(&targets, asked)) {
        return workers;
    }
    let most = (MAX_DUMPS / targets.len().max(1)).min(MAX_DUMP);
    let pids: Vec<Option<Pid>> = targets.iter().map(|target| target.pid).collect();
    let mut collections: Vec<Collection> = targets.into_iter().map(Collection::begin).collect();
    let mut pause = FIRST_PAUSE;
    while collections.iter_mut().map(Collection::advance).fold(false, |one, other| one | other)
        && Instant::now() < until
    {
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    let workers: Vec<WorkerStacks> =
        collections.into_iter().map(|collection| collection.finish(most)).collect();
    *last = Some(Finished { at: Instant::now(), workers: pids.into_iter().zip(workers.clone()).collect() });
    workers
}

impl Finished {
    /// Its stacks of these workers, if it ended after they were asked for.
    fn answer(&self, targets: &[StackTarget], asked: Instant) -> Option<Vec<WorkerStacks>> {
        let found = |target: &StackTarget| {
            let is_it = |(pid, stacks): &&(Option<Pid>, WorkerStacks)| {
                (*pid, stacks.rank) == (target.pid, target.rank)
            };
            self.workers.iter().find(is_it).map(|(_, stacks)| stacks.clone())
        };
        (self.at >= asked).then(|| targets.iter().map(found).collect())?
    }
}

impl Collection {
    fn begin(target: StackTarget) -> Self {
        let before = target.pid.filter(|_| target.is_live).map(kernel::threads_of);
        let (pid, state) = match (target.pid, &target.dump) {
            (None, _) => (None, CollectionState::Absent("its process was not started")),
            (Some(_), _) if !target.is_live => (None, CollectionState::Absent("it has ended")),
            (Some(pid), None) => (Some(pid), CollectionState::Absent("its program has no hook")),
            (Some(pid), Some(dump)) => ask_for_dump(pid, dump),
        };
        // A wrapper's program is another process.
        let threads = if pid == target.pid { before } else { pid.map(kernel::threads_of) };
        Self { target, pid, state, threads }
    }

    /// True while the handler may run.
    fn advance(&mut self) -> bool {
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

    fn finish(self, most: usize) -> WorkerStacks {
        let Self { target, pid, state, threads } = self;
        let StackTarget { rank, local_rank, dump, .. } = target;
        let mut stacks =
            WorkerStacks { rank, local_rank, pid: pid.map(Pid::as_raw), ..WorkerStacks::default() };
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
        stacks
    }
}

/// Signals the worker, or the first process below it, that has the handler: a wrapper has the program as its child.
fn ask_for_dump(worker: Pid, dump: &DumpFile) -> (Option<Pid>, CollectionState) {
    let is_armed = |pid: &Pid| SignalStatus::of(*pid).is_some_and(|status| status.is_caught);
    let below = || scan_descendants_of(worker).unwrap_or_default().into_iter().find(is_armed);
    let Some(pid) = Some(worker).filter(is_armed).or_else(below) else {
        return (
            Some(worker),
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
        };
        let at = start + Duration::from_secs(1);
        let finished = Finished { at, workers: vec![(Some(Pid::from_raw(7)), WorkerStacks::default())] };
        assert!(finished.answer(&[target(7)], start).is_some());
        assert!(finished.answer(&[target(8)], start).is_none(), "the rank was started again");
        assert!(finished.answer(&[target(7)], start + Duration::from_secs(2)).is_none(), "too old");
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
        };
        let targets =
            vec![target(Some(own_pid()), true), target(Some(own_pid()), false), target(None, false)];
        let stacks = take_stacks(targets, Instant::now(), Instant::now() + STACKS_TIMEOUT);
        let absences: Vec<&str> =
            stacks.iter().map(|stacks| stacks.python_absence.as_deref().unwrap()).collect();
        assert!(absences[0].starts_with("its program has no handler"), "{absences:?}");
        assert_eq!(absences[1..], ["it has ended", "its process was not started"]);
        assert!(!stacks[0].threads.is_empty() && stacks[1].threads.is_empty());
    }
}
