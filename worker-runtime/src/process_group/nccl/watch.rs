//! Watches a communicator: one thread detects a lost rank, an error of NCCL's and a hanging call, agrees with
//! the other ranks on the failure, and aborts.
//!
//! The thread sleeps while no call is under way and checks every few milliseconds otherwise. A
//! lost rank wakes it at once.

use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use rankrun_contract::rank::Rank;

use super::call_log::CallLog;
use super::communicator::Core;
use super::explain::{Answer, explain_hang};
use super::other_ranks::{CallMessage, OtherRanks};
use super::symbols::{IN_PROGRESS, SUCCESS};
use crate::clock;
use crate::process_group::error::{GroupError, GroupFailure, LossCause};
use crate::process_group::message::{Call, Operation};
use crate::process_group::rendezvous::Membership;
use crate::process_group::verdict;
use crate::store::TcpStore;

/// Pause between two checks while a call is under way.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// How long the other ranks may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long after an error of NCCL's a lost rank explains it: NCCL often notices first.
const LOSS_WAIT: Duration = Duration::from_millis(500);

/// State that the program and the watching thread share.
#[derive(Debug)]
pub(super) struct Watch {
    membership: Membership,
    core: Arc<Core>,
    state: Mutex<WatchState>,
    changed: Condvar,
    wakeup: EventFd,
}

#[derive(Debug)]
pub(super) struct WatchState {
    pub(super) log: CallLog,
    pub(super) failure: Option<GroupFailure>,
    pub(super) failed_in: Operation,
    activity: Activity,
    /// The group cannot continue; its cause is being determined.
    cannot_continue: bool,
    /// An error that the program got from a call.
    error: Option<String>,
    leave_kind: Option<LeaveKind>,
}

/// The activity of the watching thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// It checks every few milliseconds.
    Awake,
    /// It waits for a wake-up or a message.
    Sleeping,
    /// It has returned.
    Ended,
}

/// How the group is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaveKind {
    /// The other ranks get a leave message.
    Announced,
    /// The other ranks take this one for lost.
    Silent,
}

impl Watch {
    pub(super) fn new(membership: Membership, core: Arc<Core>, log: CallLog) -> nix::Result<Self> {
        let state = WatchState {
            log,
            failure: None,
            failed_in: Operation::Barrier,
            activity: Activity::Awake,
            cannot_continue: false,
            error: None,
            leave_kind: None,
        };
        let wake_event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { membership, core, state: Mutex::new(state), changed: Condvar::new(), wakeup: wake_event })
    }

    /// Notes the beginning of a call and wakes the thread.
    ///
    /// # Errors
    /// The failure of the group.
    pub(super) fn begin(&self, call: Call, is_collective: bool) -> Result<(), GroupFailure> {
        let mut state = self.lock_state();
        if state.failure.is_some() || state.cannot_continue {
            drop(state);
            return Err(self.report_error("another rank is gone".to_owned()));
        }
        state.log.begin_call(call, clock::after(self.membership.timeout), is_collective);
        if state.activity == Activity::Sleeping {
            state.activity = Activity::Awake;
            self.wake();
        }
        Ok(())
    }

    /// Whether the group is still usable.
    ///
    /// # Errors
    /// Its failure, and the call in which it happened.
    pub(super) fn check(&self) -> Result<(), GroupError> {
        let state = self.lock_state();
        match &state.failure {
            Some(failure) => Err(self.group_error(state.failed_in, failure.clone())),
            None => Ok(()),
        }
    }

    /// The error of a call after the failure.
    pub(super) fn group_error(&self, operation: Operation, failure: GroupFailure) -> GroupError {
        GroupError::Failed { operation, failure, members: self.membership.members.clone() }
    }

    /// Reports an error of a call; returns the failure of the group.
    pub(super) fn report_error(&self, error: String) -> GroupFailure {
        let mut state = self.lock_state();
        state.log.cancel_current();
        state.error.get_or_insert(error);
        drop(state);
        self.wake();
        self.wait_for_failure()
    }

    /// Ends the watch; returns when its thread has ended, or after a second.
    pub(super) fn shut_down(&self, leave_kind: LeaveKind) {
        self.lock_state().leave_kind.get_or_insert(leave_kind);
        self.wake();
        let is_under_way = |state: &mut WatchState| state.activity != Activity::Ended;
        drop(self.changed.wait_timeout_while(self.lock_state(), ANSWER_TIMEOUT, is_under_way));
    }

    /// Waits for the failure of the group.
    fn wait_for_failure(&self) -> GroupFailure {
        // The thread's own deadlines bound this wait.
        let state = self.lock_state();
        let is_unknown =
            |state: &mut WatchState| state.failure.is_none() && state.activity != Activity::Ended;
        let waited = self.changed.wait_while(state, is_unknown).unwrap_or_else(PoisonError::into_inner);
        let unknown = || GroupFailure::RankFailed {
            rank: self.membership.rank,
            reason: "the group has been left".to_owned(),
        };
        waited.failure.clone().unwrap_or_else(unknown)
    }

    fn wake(&self) {
        // It fails only after 2^64 writes.
        let _ = self.wakeup.write(1);
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the watching thread.
pub(super) struct Watcher {
    pub(super) watch: Arc<Watch>,
    pub(super) other_ranks: OtherRanks,
    /// The keys for the agreement; `None` in a world of one.
    pub(super) store: Option<TcpStore>,
    /// The failure that is being explained.
    pub(super) diagnosis: Diagnosis,
}

/// A failure before its cause is known.
#[derive(Debug)]
pub(super) enum Diagnosis {
    /// Nothing.
    None,
    /// A call hangs; the other ranks were asked for theirs.
    Hang { call: Call, answers: Vec<(Rank, Answer)>, until: Instant },
    /// NCCL or the device failed; the loss of a rank may explain it.
    Failure { reason: String, until: Instant },
}

impl Watcher {
    /// Runs until the group fails or is left.
    pub(super) fn run(mut self) {
        // Waiting callers return even if this thread panics.
        struct EndGuard(Arc<Watch>);
        impl Drop for EndGuard {
            fn drop(&mut self) {
                let mut state = self.0.lock_state();
                state.activity = Activity::Ended;
                state.log.clear();
                drop(state);
                self.0.changed.notify_all();
            }
        }
        let end_guard = EndGuard(Arc::clone(&self.watch));
        loop {
            self.receive_messages();
            let Some(leave_kind) = self.watch.lock_state().leave_kind else {
                if let Some(failure) = self.check_calls() {
                    return self.end_group(failure);
                }
                self.sleep();
                continue;
            };
            if leave_kind == LeaveKind::Announced {
                let calls = self.watch.lock_state().log.call_count();
                self.other_ranks.peers.send_leave(calls);
            }
            self.other_ranks.peers.close();
            drop(end_guard);
            return;
        }
    }

    /// Handles the messages of the other ranks.
    fn receive_messages(&mut self) {
        for (rank, message) in self.other_ranks.receive_messages() {
            match message {
                CallMessage::Question(call) => {
                    let own = self.watch.lock_state().log.call_with_sequence_of(&call);
                    self.other_ranks.peers.answer(rank, own);
                }
                CallMessage::Answer(call) => {
                    if let Diagnosis::Hang { answers, .. } = &mut self.diagnosis {
                        let own = answers.iter_mut().find(|(asked_rank, _)| *asked_rank == rank);
                        own.into_iter().for_each(|(_, answer)| *answer = Answer::Calls(call));
                    }
                }
            }
        }
    }

    /// Checks the calls under way; returns a failure.
    fn check_calls(&mut self) -> Option<GroupFailure> {
        let now = clock::after(Duration::ZERO);
        let watch = Arc::clone(&self.watch);
        let mut state = watch.lock_state();
        let device = state.log.update_done(now);
        let (is_busy, calls) = (state.log.is_busy(), state.log.call_count());
        let overdue = state.log.overdue_call(now);
        let error = state.error.clone();
        // A lost rank matters only once a call needs it.
        state.cannot_continue = !self.other_ranks.lost_ranks.is_empty() || error.is_some();
        drop(state);
        let is_needed = is_busy || error.is_some();
        if is_needed && let Some((rank, cause)) = self.other_ranks.lost_ranks.first() {
            return Some(GroupFailure::Lost { rank: *rank, cause: cause.clone() });
        }
        let gone = self.other_ranks.departed_ranks.iter().find(|(_, made)| is_busy && calls > *made);
        if let Some((rank, _)) = gone {
            return Some(GroupFailure::Lost { rank: *rank, cause: LossCause::Left });
        }
        let error = error.or_else(|| device.err().map(|error| error.to_string()));
        let error = error.or_else(|| if is_busy { self.async_error() } else { None });
        self.update_diagnosis(now, overdue, error)
    }

    /// An error that NCCL reports by itself.
    fn async_error(&self) -> Option<String> {
        match self.watch.core.async_state()? {
            Ok(SUCCESS | IN_PROGRESS) => None,
            Ok(code) => Some(self.watch.core.nccl().error("ncclCommGetAsyncError", code).to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn update_diagnosis(
        &mut self,
        now: Instant,
        overdue: Option<Call>,
        error: Option<String>,
    ) -> Option<GroupFailure> {
        match &self.diagnosis {
            Diagnosis::None => {
                if let Some(reason) = error {
                    // Without other ranks no loss can explain it.
                    let patience = if self.store.is_some() { LOSS_WAIT } else { Duration::ZERO };
                    self.diagnosis = Diagnosis::Failure { reason, until: now + patience };
                } else if let Some(call) = overdue {
                    let answers = self
                        .other_ranks
                        .peers
                        .ask_for_calls(call)
                        .into_iter()
                        .map(|rank| (rank, Answer::Silence));
                    let answers = answers.collect();
                    self.diagnosis = Diagnosis::Hang { call, answers, until: now + ANSWER_TIMEOUT };
                }
                None
            }
            // The call is done after all.
            Diagnosis::Hang { .. } if overdue.is_none() => {
                self.diagnosis = Diagnosis::None;
                None
            }
            Diagnosis::Hang { call, answers, until } => {
                let is_known = answers.iter().all(|(_, answer)| *answer != Answer::Silence) || *until <= now;
                let watch = &self.watch;
                is_known
                    .then(|| explain_hang(watch.membership.rank, *call, watch.membership.timeout, answers))
            }
            Diagnosis::Failure { reason, until } => (*until <= now).then(|| GroupFailure::RankFailed {
                rank: self.watch.membership.rank,
                reason: reason.clone(),
            }),
        }
    }

    /// Sleeps until there may be something to do.
    fn sleep(&mut self) {
        let mut state = self.watch.lock_state();
        let is_quiet =
            !state.log.is_busy() && matches!(self.diagnosis, Diagnosis::None) && state.error.is_none();
        let may_sleep = is_quiet && state.leave_kind.is_none();
        let (activity, patience) =
            if may_sleep { (Activity::Sleeping, Duration::MAX) } else { (Activity::Awake, CHECK_INTERVAL) };
        state.activity = activity;
        drop(state);
        self.other_ranks.peers.wait(self.watch.wakeup.as_fd(), clock::after(patience));
        // The eventfd is empty if another event woke the thread.
        let _ = self.watch.wakeup.read();
        self.watch.lock_state().activity = Activity::Awake;
    }

    /// Agrees with the other ranks on the failure, tells the program, and aborts the communicator.
    fn end_group(mut self, local_failure: GroupFailure) {
        let failure = match &self.store {
            Some(store) => verdict::agree_on_failure(store, &self.watch.membership, local_failure),
            None => local_failure,
        };
        let mut state = self.watch.lock_state();
        state.failed_in = state.log.oldest_pending().map_or(Operation::Barrier, |call| call.operation);
        state.failure = Some(failure);
        drop(state);
        self.watch.changed.notify_all();
        // The other ranks detect it, and read the verdict.
        self.other_ranks.peers.close();
        self.watch.core.abort();
    }
}
