//! The state that the threads of one group share: the current call, messages
//! between two ranks, and the failure.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rankrun_contract::rank::{Rank, WorldSize};

use crate::clock;
use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::message::{Call, Operation};
use crate::process_group::transport::Step;

/// The data of one rank in a call.
pub(super) type Deposit = Vec<u8>;

#[derive(Debug)]
pub(super) struct Hub {
    state: Mutex<HubState>,
    changed: Condvar,
}

#[derive(Debug)]
struct HubState {
    /// Why a rank makes no more calls.
    loss_causes: Vec<Option<LossCause>>,
    /// The ranks that wait in the current call, with their data.
    arrived: Vec<Option<(Call, Deposit)>>,
    /// Number of completed calls of all ranks.
    completed_calls: u64,
    /// The data of the latest completed call. The next call completes only after every rank has read it.
    last_deposits: Arc<Vec<Deposit>>,
    /// Messages that were sent and not received, at most one for each ordered pair of ranks.
    messages: HashMap<(Rank, Rank), (Call, Deposit)>,
    failure: Option<HubFailure>,
    /// Sub-groups that some members have not taken yet, with the number that have.
    subgroups: HashMap<String, (Arc<Hub>, u32)>,
}

/// The failure, independent of the rank that reports it.
#[derive(Debug, Clone)]
enum HubFailure {
    Lost(Rank, LossCause),
    Differ([(Rank, Call); 2]),
}

impl Hub {
    pub(super) fn new(world_size: WorldSize) -> Self {
        let ranks = world_size.get() as usize;
        let state = HubState {
            loss_causes: vec![None; ranks],
            arrived: (0..ranks).map(|_| None).collect(),
            completed_calls: 0,
            last_deposits: Arc::default(),
            messages: HashMap::new(),
            failure: None,
            subgroups: HashMap::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The hub of a sub-group, the same for all of its members.
    pub(super) fn subgroup_hub(&self, name: &str, world_size: WorldSize) -> Arc<Self> {
        let mut state = self.lock();
        let new = || (Arc::new(Self::new(world_size)), 0);
        let (hub, taken) = state.subgroups.entry(name.to_owned()).or_insert_with(new);
        let hub = Arc::clone(hub);
        *taken += 1;
        if *taken == world_size.get() {
            state.subgroups.remove(name);
        }
        hub
    }

    /// Makes a call of all ranks; returns the data of each once all have arrived.
    pub(super) fn exchange(
        &self,
        step: &Step,
        me: Rank,
        own: Deposit,
    ) -> Result<Arc<Vec<Deposit>>, GroupFailure> {
        let mut state = self.lock();
        let own_call = state.completed_calls;
        state.record_arrival(step.call, me, own);
        self.changed.notify_all();
        self.wait(state, step, me, |state| {
            if state.completed_calls > own_call {
                return HubWait::Done(Arc::clone(&state.last_deposits));
            }
            let missing = || {
                (0..).zip(&state.arrived).filter(|(_, deposit)| deposit.is_none()).map(|(rank, _)| Rank(rank))
            };
            let gone = missing().find(|rank| state.loss_causes[rank.index()].is_some());
            HubWait::Pending(gone.or_else(|| missing().next()).unwrap_or(me))
        })
    }

    /// Sends a message, after the other rank has received the one before.
    pub(super) fn send(
        &self,
        step: &Step,
        (me, to): (Rank, Rank),
        message: Deposit,
    ) -> Result<(), GroupFailure> {
        let mut message = Some(message);
        self.wait(self.lock(), step, me, |state| match message.take() {
            Some(message) if state.can_send(me, to) => {
                state.messages.insert((me, to), (step.call, message));
                self.changed.notify_all();
                HubWait::Done(())
            }
            untouched => {
                message = untouched;
                HubWait::Pending(to)
            }
        })
    }

    /// Receives the message of another rank.
    pub(super) fn receive(&self, step: &Step, (from, me): (Rank, Rank)) -> Result<Deposit, GroupFailure> {
        // The hub sees the same call at both ends; the program called this end `receive`.
        let receive_call = Call { operation: Operation::Receive, root: Some(from), ..step.call };
        self.wait(self.lock(), &Step { call: receive_call, ..*step }, me, |state| {
            match state.messages.remove(&(from, me)) {
                Some((call, message)) => {
                    self.changed.notify_all();
                    if call == step.call { HubWait::Done(message) } else { HubWait::Differs((from, call)) }
                }
                None => HubWait::Pending(from),
            }
        })
    }

    /// Notes that the rank has left.
    pub(super) fn mark_left(&self, rank: Rank) {
        self.mark_gone(rank, LossCause::Left);
    }

    /// Notes that the rank is lost.
    pub(super) fn mark_lost(&self, rank: Rank) {
        self.mark_gone(rank, LossCause::Closed);
    }

    fn mark_gone(&self, rank: Rank, cause: LossCause) {
        self.lock().loss_causes[rank.index()].get_or_insert(cause);
        self.changed.notify_all();
    }

    /// Waits until `look` is done; at most until the deadline, while the group has not failed
    /// and the awaited rank may come.
    fn wait<T>(
        &self,
        mut state: MutexGuard<'_, HubState>,
        step: &Step,
        me: Rank,
        mut poll_state: impl FnMut(&mut HubState) -> HubWait<T>,
    ) -> Result<T, GroupFailure> {
        loop {
            let other = match poll_state(&mut state) {
                // A complete call counts, although the group may have failed since.
                HubWait::Done(result) => return Ok(result),
                HubWait::Differs(other) => HubFailure::Differ([other, (me, step.call)]),
                HubWait::Pending(rank) => match state.reason_to_stop(rank, me, step) {
                    Some(hub_failure) => hub_failure,
                    None => {
                        state = self
                            .changed
                            .wait_timeout(state, clock::until(step.deadline))
                            .unwrap_or_else(PoisonError::into_inner)
                            .0;
                        continue;
                    }
                },
            };
            let hub_failure = state.failure.get_or_insert(other).clone();
            self.changed.notify_all();
            return Err(hub_failure.for_rank(me));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of a rank's call.
enum HubWait<T> {
    Done(T),
    /// It waits for this rank.
    Pending(Rank),
    /// This rank has made a different call.
    Differs((Rank, Call)),
}

impl HubState {
    /// Notes an arrived rank, which may complete the call.
    fn record_arrival(&mut self, call: Call, me: Rank, own: Deposit) {
        self.arrived[me.index()] = Some((call, own));
        let different = (0..).zip(&self.arrived).find_map(|(rank, deposit)| {
            deposit
                .as_ref()
                .filter(|(other_call, _)| *other_call != call)
                .map(|&(other_call, _)| (Rank(rank), other_call))
        });
        if let Some(other) = different {
            self.failure.get_or_insert(HubFailure::Differ([other, (me, call)]));
        } else if self.failure.is_none() && self.arrived.iter().all(Option::is_some) {
            let all = self.arrived.iter_mut().filter_map(Option::take).map(|(_, deposit)| deposit);
            self.last_deposits = Arc::new(all.collect());
            self.completed_calls += 1;
        }
    }

    /// Whether the place for a message is free, and its receiver still takes part.
    fn can_send(&self, from: Rank, to: Rank) -> bool {
        self.failure.is_none()
            && self.loss_causes[to.index()].is_none()
            && !self.messages.contains_key(&(from, to))
    }

    /// Why `me` need not wait any longer for `rank`.
    fn reason_to_stop(&self, rank: Rank, me: Rank, step: &Step) -> Option<HubFailure> {
        if let Some(hub_failure) = &self.failure {
            return Some(hub_failure.clone());
        }
        if let Some(cause) = &self.loss_causes[rank.index()] {
            return Some(HubFailure::Lost(rank, cause.clone()));
        }
        // That rank waits for this one in a call of all ranks, this one for it in a call of two: a deadlock.
        if let (None, Some((other_call, _))) = (&self.arrived[me.index()], &self.arrived[rank.index()]) {
            return Some(HubFailure::Differ([(rank, *other_call), (me, step.call)]));
        }
        let is_over = clock::until(step.deadline).is_zero();
        is_over.then_some(HubFailure::Lost(rank, LossCause::Timeout(step.timeout)))
    }
}

impl HubFailure {
    fn for_rank(self, me: Rank) -> GroupFailure {
        match self {
            // A rank that runs cannot be lost itself: others have missed it.
            Self::Lost(rank, _) if rank == me => GroupFailure::Lost { rank, cause: LossCause::Reported },
            Self::Lost(rank, cause) => GroupFailure::Lost { rank, cause },
            Self::Differ([(first, call), (second, other)]) if first == me => GroupFailure::Mismatch {
                rank: second,
                other_call: Some(Box::new(other)),
                own_call: Box::new(call),
            },
            Self::Differ([(first, call), (second, other)]) if second == me => GroupFailure::Mismatch {
                rank: first,
                other_call: Some(Box::new(call)),
                own_call: Box::new(other),
            },
            Self::Differ([(rank, call), (other, other_call)]) => GroupFailure::Disagreed {
                rank,
                call: Box::new(call),
                other_rank: other,
                other_call: Some(Box::new(other_call)),
            },
        }
    }
}
