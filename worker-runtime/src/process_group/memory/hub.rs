//! What the threads of one group share: the call that they are in, messages between two of them, and how it ended.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rankrun_contract::rank::{Rank, WorldSize};

use crate::clock;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::message::{Call, Operation};
use crate::process_group::transport::Step;

/// What one rank gives to a call.
pub(super) type Deposit = Vec<u8>;

#[derive(Debug)]
pub(super) struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Why a rank makes no more calls.
    gone: Vec<Option<LossCause>>,
    /// Who waits in the call of all that is under way, and with what.
    arrived: Vec<Option<(Call, Deposit)>>,
    /// How many calls of all have been completed.
    completed: u64,
    /// What all ranks gave to the last one. The next one is not completed before every rank has taken it.
    last: Arc<Vec<Deposit>>,
    /// What was sent and not yet received, at most one message from one rank to another.
    mail: HashMap<(Rank, Rank), (Call, Deposit)>,
    ending: Option<End>,
    /// Sub-groups that some members have not yet taken, and how many have.
    subgroups: HashMap<String, (Arc<Hub>, u32)>,
}

/// How it ended, as nobody in particular sees it.
#[derive(Debug, Clone)]
enum End {
    Lost(Rank, LossCause),
    Differ([(Rank, Call); 2]),
}

impl Hub {
    pub(super) fn new(world_size: WorldSize) -> Self {
        let ranks = world_size.get() as usize;
        let state = State {
            gone: vec![None; ranks],
            arrived: (0..ranks).map(|_| None).collect(),
            completed: 0,
            last: Arc::default(),
            mail: HashMap::new(),
            ending: None,
            subgroups: HashMap::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The hub of a sub-group, the same one for all of its members.
    pub(super) fn within(&self, name: &str, world_size: WorldSize) -> Arc<Self> {
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

    /// A call of all ranks: what each of them gave, once all are here.
    pub(super) fn meet(&self, step: &Step, me: Rank, own: Deposit) -> Result<Arc<Vec<Deposit>>, Ending> {
        let mut state = self.lock();
        let mine = state.completed;
        state.arrive(step.call, me, own);
        self.changed.notify_all();
        self.wait(state, step, me, |state| {
            if state.completed > mine {
                return Progress::Done(Arc::clone(&state.last));
            }
            let missing =
                || (0..).zip(&state.arrived).filter(|(_, it)| it.is_none()).map(|(rank, _)| Rank(rank));
            let gone = missing().find(|rank| state.gone[rank.index()].is_some());
            Progress::Waits(gone.or_else(|| missing().next()).unwrap_or(me))
        })
    }

    /// Gives a message to another rank, once it has received the one before.
    pub(super) fn send(&self, step: &Step, (me, to): (Rank, Rank), message: Deposit) -> Result<(), Ending> {
        let mut message = Some(message);
        self.wait(self.lock(), step, me, |state| match message.take() {
            Some(message) if state.takes_mail(me, to) => {
                state.mail.insert((me, to), (step.call, message));
                self.changed.notify_all();
                Progress::Done(())
            }
            untouched => {
                message = untouched;
                Progress::Waits(to)
            }
        })
    }

    /// Takes a message of another rank.
    pub(super) fn receive(&self, step: &Step, (from, me): (Rank, Rank)) -> Result<Deposit, Ending> {
        // Both ends make the same call to the hub; the program called this end `receive`.
        let asked = Call { operation: Operation::Receive, root: Some(from), ..step.call };
        self.wait(self.lock(), &Step { call: asked, ..*step }, me, |state| {
            match state.mail.remove(&(from, me)) {
                Some((call, message)) => {
                    self.changed.notify_all();
                    if call == step.call { Progress::Done(message) } else { Progress::Differs((from, call)) }
                }
                None => Progress::Waits(from),
            }
        })
    }

    /// The rank makes no more calls, since it needs none.
    pub(super) fn leave(&self, rank: Rank) {
        self.part(rank, LossCause::Left);
    }

    /// The rank makes no more calls, although it may be needed.
    pub(super) fn lose(&self, rank: Rank) {
        self.part(rank, LossCause::Closed);
    }

    fn part(&self, rank: Rank, cause: LossCause) {
        self.lock().gone[rank.index()].get_or_insert(cause);
        self.changed.notify_all();
    }

    /// Waits for what `look` looks for; at most until the deadline, while the group has not ended and whoever is waited for may come.
    fn wait<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        step: &Step,
        me: Rank,
        mut look: impl FnMut(&mut State) -> Progress<T>,
    ) -> Result<T, Ending> {
        loop {
            let other = match look(&mut state) {
                // What is complete is good, also if the group has come to its end since.
                Progress::Done(result) => return Ok(result),
                Progress::Differs(other) => End::Differ([other, (me, step.call)]),
                Progress::Waits(rank) => match state.hopeless(rank, me, step) {
                    Some(end) => end,
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
            let end = state.ending.get_or_insert(other).clone();
            self.changed.notify_all();
            return Err(end.seen_by(me));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a rank's call is.
enum Progress<T> {
    Done(T),
    /// For this rank.
    Waits(Rank),
    /// This rank has made another call.
    Differs((Rank, Call)),
}

impl State {
    /// Notes that a rank is here, which may complete the call.
    fn arrive(&mut self, call: Call, me: Rank, own: Deposit) {
        self.arrived[me.index()] = Some((call, own));
        let different = (0..).zip(&self.arrived).find_map(|(rank, it)| {
            it.as_ref().filter(|(theirs, _)| *theirs != call).map(|&(theirs, _)| (Rank(rank), theirs))
        });
        if let Some(other) = different {
            self.ending.get_or_insert(End::Differ([other, (me, call)]));
        } else if self.ending.is_none() && self.arrived.iter().all(Option::is_some) {
            let all = self.arrived.iter_mut().filter_map(Option::take).map(|(_, deposit)| deposit);
            self.last = Arc::new(all.collect());
            self.completed += 1;
        }
    }

    /// Whether there is room for a message, and somebody to receive it.
    fn takes_mail(&self, from: Rank, to: Rank) -> bool {
        self.ending.is_none() && self.gone[to.index()].is_none() && !self.mail.contains_key(&(from, to))
    }

    /// Why `me` need not wait any longer for `rank`.
    fn hopeless(&self, rank: Rank, me: Rank, step: &Step) -> Option<End> {
        if let Some(end) = &self.ending {
            return Some(end.clone());
        }
        if let Some(cause) = &self.gone[rank.index()] {
            return Some(End::Lost(rank, cause.clone()));
        }
        // It waits for this rank in a call of all, and this one for it in a call of two: they would wait for each other.
        if let (None, Some((theirs, _))) = (&self.arrived[me.index()], &self.arrived[rank.index()]) {
            return Some(End::Differ([(rank, *theirs), (me, step.call)]));
        }
        let is_over = clock::until(step.deadline).is_zero();
        is_over.then_some(End::Lost(rank, LossCause::Timeout(step.timeout)))
    }
}

impl End {
    fn seen_by(self, me: Rank) -> Ending {
        match self {
            // It can only have heard that it is missed.
            Self::Lost(rank, _) if rank == me => Ending::Lost { rank, cause: LossCause::Reported },
            Self::Lost(rank, cause) => Ending::Lost { rank, cause },
            Self::Differ([(first, call), (second, other)]) if first == me => {
                Ending::Mismatch { rank: second, theirs: Some(Box::new(other)), ours: Box::new(call) }
            }
            Self::Differ([(first, call), (second, other)]) if second == me => {
                Ending::Mismatch { rank: first, theirs: Some(Box::new(call)), ours: Box::new(other) }
            }
            Self::Differ([(rank, call), (other, others)]) => {
                Ending::Disagreed { rank, call: Box::new(call), other, others: Some(Box::new(others)) }
            }
        }
    }
}
