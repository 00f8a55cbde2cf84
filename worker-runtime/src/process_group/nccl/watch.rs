//! Watches over a communicator: one thread that sees a lost rank, an error of NCCL's and a call that hangs, agrees with the other
//! ranks on how the group ended, and aborts.
//!
//! It sleeps while nothing is under way, and looks every few milliseconds while something is. Losses wake it at once.

use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use rankrun_contract::rank::Rank;

use super::communicator::Core;
use super::explain::{Answer, explain};
use super::log::Log;
use super::others::{Others, Said};
use super::symbols::{IN_PROGRESS, SUCCESS};
use crate::clock;
use crate::process_group::error::{Ending, GroupError, LossCause};
use crate::process_group::meet::Seat;
use crate::process_group::message::{Call, Operation};
use crate::process_group::verdict;
use crate::store::TcpStore;

/// Between two looks at what is under way.
const LOOK: Duration = Duration::from_millis(5);
/// How long the ranks may take to say what they call.
const ANSWERS: Duration = Duration::from_secs(1);
/// How long after an error of NCCL's a lost rank explains it: NCCL often notices first.
const EXPLANATION: Duration = Duration::from_millis(500);

/// What the program and the watching thread share.
#[derive(Debug)]
pub(super) struct Watch {
    seat: Seat,
    core: Arc<Core>,
    state: Mutex<State>,
    changed: Condvar,
    bell: EventFd,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) log: Log,
    pub(super) ending: Option<Ending>,
    /// The call that did not get done.
    pub(super) ended_in: Operation,
    thread: Thread,
    /// The group cannot go on; what it died of is being found out.
    is_doomed: bool,
    /// An error that the program met.
    error: Option<String>,
    farewell: Option<Farewell>,
}

/// What the watching thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// It looks every few milliseconds.
    Awake,
    /// It waits for the bell, and for the other ranks.
    Asleep,
    /// It has come to its end.
    Over,
}

/// How the watch ends before the group does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    /// The other ranks hear that this one is done.
    Left,
    /// They take it for lost.
    Silent,
}

impl Watch {
    pub(super) fn new(seat: Seat, core: Arc<Core>, log: Log) -> nix::Result<Self> {
        let state = State {
            log,
            ending: None,
            ended_in: Operation::Barrier,
            thread: Thread::Awake,
            is_doomed: false,
            error: None,
            farewell: None,
        };
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { seat, core, state: Mutex::new(state), changed: Condvar::new(), bell })
    }

    /// Notes the beginning of a call.
    ///
    /// # Errors
    /// How the group ended.
    pub(super) fn begin(&self, call: Call, is_of_all: bool) -> Result<(), Ending> {
        let mut state = self.locked();
        if state.ending.is_some() || state.is_doomed {
            drop(state);
            return Err(self.fail("another rank is gone".to_owned()));
        }
        state.log.begin(call, clock::after(self.seat.timeout), is_of_all);
        if state.thread == Thread::Asleep {
            state.thread = Thread::Awake;
            self.ring();
        }
        Ok(())
    }

    /// Whether the group goes on.
    ///
    /// # Errors
    /// How it ended, and in which call.
    pub(super) fn check(&self) -> Result<(), GroupError> {
        let state = self.locked();
        match &state.ending {
            Some(ending) => Err(self.ended(state.ended_in, ending.clone())),
            None => Ok(()),
        }
    }

    /// The error of a call after the ending.
    pub(super) fn ended(&self, operation: Operation, ending: Ending) -> GroupError {
        GroupError::Ended { operation, ending, members: self.seat.members.clone() }
    }

    /// The program met an error with which the group cannot go on.
    pub(super) fn fail(&self, error: String) -> Ending {
        let mut state = self.locked();
        state.log.give_up();
        state.error.get_or_insert(error);
        drop(state);
        self.ring();
        self.ending()
    }

    /// Ends the watch; returns when its thread has done its last deed, or hangs.
    pub(super) fn part(&self, farewell: Farewell) {
        self.locked().farewell.get_or_insert(farewell);
        self.ring();
        let is_under_way = |state: &mut State| state.thread != Thread::Over;
        drop(self.changed.wait_timeout_while(self.locked(), ANSWERS, is_under_way));
    }

    /// How the group ended, once it is known.
    fn ending(&self) -> Ending {
        // As long as it takes to learn it; the thread has its own deadlines.
        let state = self.locked();
        let is_unknown = |state: &mut State| state.ending.is_none() && state.thread != Thread::Over;
        let waited = self.changed.wait_while(state, is_unknown).unwrap_or_else(PoisonError::into_inner);
        let unknown =
            || Ending::Failed { rank: self.seat.rank, reason: "the group has been left".to_owned() };
        waited.ending.clone().unwrap_or_else(unknown)
    }

    fn ring(&self) {
        // It fails only where it has rung 2^64 times.
        let _ = self.bell.write(1);
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watching thread.
pub(super) struct Watcher {
    pub(super) watch: Arc<Watch>,
    pub(super) others: Others,
    /// Where the ending is agreed upon; none in a world of one.
    pub(super) store: Option<TcpStore>,
    /// What is being found out.
    pub(super) trouble: Trouble,
}

/// What is wrong, until it is known why.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Nothing.
    None,
    /// A call hangs; the other ranks were asked what they call.
    Hang { call: Call, answers: Vec<(Rank, Answer)>, until: Instant },
    /// NCCL or the device failed; a loss may explain it.
    Failure { reason: String, until: Instant },
}

impl Watcher {
    /// Watches until the group ends or is left.
    pub(super) fn run(mut self) {
        // Whatever happens here, nobody waits for this thread for ever.
        struct Over(Arc<Watch>);
        impl Drop for Over {
            fn drop(&mut self) {
                let mut state = self.0.locked();
                state.thread = Thread::Over;
                state.log.clear();
                drop(state);
                self.0.changed.notify_all();
            }
        }
        let over = Over(Arc::clone(&self.watch));
        loop {
            self.hear();
            let Some(farewell) = self.watch.locked().farewell else {
                if let Some(seen) = self.look() {
                    return self.end(seen);
                }
                self.rest();
                continue;
            };
            if farewell == Farewell::Left {
                let calls = self.watch.locked().log.count();
                self.others.peers.say_farewell(calls);
            }
            self.others.peers.close();
            drop(over);
            return;
        }
    }

    /// Takes in what the other ranks say.
    fn hear(&mut self) {
        for (rank, said) in self.others.hear() {
            match said {
                Said::Asked(call) => {
                    let own = self.watch.locked().log.at(&call);
                    self.others.peers.answer(rank, own);
                }
                Said::Answered(call) => {
                    if let Trouble::Hang { answers, .. } = &mut self.trouble {
                        let own = answers.iter_mut().find(|(asked, _)| *asked == rank);
                        own.into_iter().for_each(|(_, answer)| *answer = Answer::Calls(call));
                    }
                }
            }
        }
    }

    /// Looks at what is under way; how the group ends, if it does.
    fn look(&mut self) -> Option<Ending> {
        let now = clock::after(Duration::ZERO);
        let watch = Arc::clone(&self.watch);
        let mut state = watch.locked();
        let device = state.log.look(now);
        let (is_busy, calls) = (state.log.is_busy(), state.log.count());
        let overdue = state.log.overdue(now);
        let error = state.error.clone();
        // What was lost matters as soon as anything is called.
        state.is_doomed = !self.others.lost.is_empty() || error.is_some();
        drop(state);
        let is_needed = is_busy || error.is_some();
        if is_needed && let Some((rank, cause)) = self.others.lost.first() {
            return Some(Ending::Lost { rank: *rank, cause: cause.clone() });
        }
        let gone = self.others.left.iter().find(|(_, made)| is_busy && calls > *made);
        if let Some((rank, _)) = gone {
            return Some(Ending::Lost { rank: *rank, cause: LossCause::Left });
        }
        let error = error.or_else(|| device.err().map(|error| error.to_string()));
        let error = error.or_else(|| if is_busy { self.async_error() } else { None });
        self.explain(now, overdue, error)
    }

    /// What NCCL reports by itself.
    fn async_error(&self) -> Option<String> {
        match self.watch.core.look()? {
            Ok(SUCCESS | IN_PROGRESS) => None,
            Ok(code) => Some(self.watch.core.nccl().error("ncclCommGetAsyncError", code).to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn explain(&mut self, now: Instant, overdue: Option<Call>, error: Option<String>) -> Option<Ending> {
        match &self.trouble {
            Trouble::None => {
                if let Some(reason) = error {
                    // Nobody is there who could be lost.
                    let patience = if self.store.is_some() { EXPLANATION } else { Duration::ZERO };
                    self.trouble = Trouble::Failure { reason, until: now + patience };
                } else if let Some(call) = overdue {
                    let answers = self.others.peers.ask(call).into_iter().map(|rank| (rank, Answer::Silence));
                    let answers = answers.collect();
                    self.trouble = Trouble::Hang { call, answers, until: now + ANSWERS };
                }
                None
            }
            // It has been done after all.
            Trouble::Hang { .. } if overdue.is_none() => {
                self.trouble = Trouble::None;
                None
            }
            Trouble::Hang { call, answers, until } => {
                let is_known = answers.iter().all(|(_, answer)| *answer != Answer::Silence) || *until <= now;
                let watch = &self.watch;
                is_known.then(|| explain(watch.seat.rank, *call, watch.seat.timeout, answers))
            }
            Trouble::Failure { reason, until } => {
                (*until <= now).then(|| Ending::Failed { rank: self.watch.seat.rank, reason: reason.clone() })
            }
        }
    }

    /// Sleeps until there may be something new.
    fn rest(&mut self) {
        let mut state = self.watch.locked();
        let is_quiet = !state.log.is_busy() && matches!(self.trouble, Trouble::None) && state.error.is_none();
        let may_sleep = is_quiet && state.farewell.is_none();
        let (thread, patience) =
            if may_sleep { (Thread::Asleep, Duration::MAX) } else { (Thread::Awake, LOOK) };
        state.thread = thread;
        drop(state);
        self.others.peers.wait(self.watch.bell.as_fd(), clock::after(patience));
        // It may not have rung.
        let _ = self.watch.bell.read();
        self.watch.locked().thread = Thread::Awake;
    }

    /// Agrees with the other ranks on the ending, tells the program, and frees whatever waits for NCCL.
    fn end(mut self, seen: Ending) {
        let ending = match &self.store {
            Some(store) => verdict::agree(store, &self.watch.seat, seen),
            None => seen,
        };
        let mut state = self.watch.locked();
        state.ended_in = state.log.oldest().map_or(Operation::Barrier, |call| call.operation);
        state.ending = Some(ending);
        drop(state);
        self.watch.changed.notify_all();
        // The others notice, and read what was agreed upon.
        self.others.peers.close();
        self.watch.core.abort();
    }
}
