//! Asynchronous calls: a thread makes them in the order in which they were started.
//!
//! A call that is started and waited for at once costs some 4 µs more than a blocking one, for waking two
//! threads; one of many that are started ahead costs 2 µs (`cargo bench -p rankrun-worker --bench async_group`, AMD
//! EPYC, Zen 5). It pays where a call takes longer and the program has something to compute meanwhile.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rankrun_contract::rank::{Rank, WorldSize};

use super::element::{Element, ReduceOp};
use super::error::GroupError;
use super::fork::ForkId;
use super::group::Group;

/// Calls that may wait for their turn. Starting one more blocks: being further
/// ahead gains nothing and holds memory.
const MAX_QUEUED_CALLS: usize = 64;

type Job = Box<dyn FnOnce(&mut Group) + Send>;

/// A group on a thread of its own, so that calls overlap with the program's computation.
///
/// Calls are made in the order in which they were started, so every rank must start the same calls
/// in the same order. A call takes ownership of its memory and returns it with the result. Calls of
/// two such groups are not ordered.
///
/// ```
/// use rankrun_worker::{GroupError, ThreadGroup, AsyncGroup, ReduceOp};
///
/// # fn main() -> Result<(), GroupError> {
/// # let group = ThreadGroup::world(1).remove(0);
/// let calls = AsyncGroup::new(group)?;
/// let last_layer = calls.all_reduce(vec![1.0f32, 2.0], ReduceOp::Mean);
/// // The gradient of the first layer is computed while that of the last one is reduced.
/// let first_layer = calls.all_reduce(vec![3.0f32], ReduceOp::Mean);
/// let gradients = (first_layer.wait()?, last_layer.wait()?);
/// # assert_eq!(gradients, (vec![3.0], vec![1.0, 2.0]));
/// # Ok(())
/// # }
/// ```
///
/// Dropping it finishes the started calls first. Dropping it in a panic does not: the other
/// ranks then see this rank crash.
pub struct AsyncGroup {
    /// `None` after the last call was started.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<Group>>,
    /// Whether the program has panicked; the thread then drops the remaining calls.
    is_abandoned: Arc<AtomicBool>,
    rank: Rank,
    world_size: WorldSize,
    /// The process of the thread: a forked child has no copy of it.
    owner: ForkId,
}

impl AsyncGroup {
    /// Moves the group to a new thread.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn new(group: Group) -> Result<Self, GroupError> {
        let (rank, world_size) = (group.rank(), group.world_size());
        let (jobs, started) = sync_channel(MAX_QUEUED_CALLS);
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_abandoned);
        let thread = thread::Builder::new().name("rankrun-queue".to_owned());
        let thread = thread.spawn(move || run_jobs(group, &started, &flag)).map_err(GroupError::Thread)?;
        let (jobs, thread, owner) = (Some(jobs), Some(thread), ForkId::current());
        Ok(Self { jobs, thread, is_abandoned, rank, world_size, owner })
    }

    /// Rank of this process within the group.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks in the group.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.world_size
    }

    /// Starts [`Group::all_reduce`]; the work returns the data.
    pub fn all_reduce<T, B>(&self, mut data: B, op: ReduceOp) -> Work<B>
    where
        T: Element,
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.all_reduce(&mut data, op).map(|()| data))
    }

    /// Starts [`Group::broadcast`]; the work returns the data.
    pub fn broadcast<T, B>(&self, mut data: B, root: Rank) -> Work<B>
    where
        T: Element,
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.broadcast(&mut data, root).map(|()| data))
    }

    /// Starts [`Group::reduce_scatter`]; the work returns input and output.
    pub fn reduce_scatter<T, I, O>(&self, input: I, mut output: O, op: ReduceOp) -> Work<(I, O)>
    where
        T: Element,
        I: Deref<Target = [T]> + Send + 'static,
        O: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.reduce_scatter(&input, &mut output, op).map(|()| (input, output)))
    }

    /// Starts [`Group::all_gather_into`]; the work returns input and output.
    pub fn all_gather_into<T, I, O>(&self, input: I, mut output: O) -> Work<(I, O)>
    where
        T: Element,
        I: Deref<Target = [T]> + Send + 'static,
        O: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.all_gather_into(&input, &mut output).map(|()| (input, output)))
    }

    /// Starts any function of the group, in its turn: other calls, several calls, a new
    /// [`buffer`](Group::buffer).
    pub fn start<R, F>(&self, call: F) -> Work<R>
    where
        R: Send + 'static,
        F: FnOnce(&mut Group) -> Result<R, GroupError> + Send + 'static,
    {
        let slot = Arc::new(ResultSlot { result: Mutex::new(None), result_ready: Condvar::new() });
        let promise = Promise { slot: Arc::clone(&slot) };
        let job: Job = Box::new(move |group| promise.fulfil(call(group)));
        // A job that the thread does not take drops its promise, and the work fails.
        if let Some(jobs) = self.jobs.as_ref().filter(|_| self.owner.is_current()) {
            drop(jobs.send(job));
        }
        Work { slot, owner: self.owner, rank: self.rank }
    }

    /// Finishes the started calls and returns the group.
    ///
    /// # Errors
    /// A call panicked, which ended the group; or this process was forked from the one that has the group.
    pub fn into_group(mut self) -> Result<Group, GroupError> {
        if !self.owner.is_current() {
            return Err(GroupError::Forked { rank: self.rank });
        }
        self.join_thread().ok_or(GroupError::Panicked)
    }

    fn join_thread(&mut self) -> Option<Group> {
        self.jobs = None;
        self.thread.take()?.join().ok()
    }
}

impl Drop for AsyncGroup {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // The thread does not exist here, and its channel may be in any state.
            std::mem::forget((self.jobs.take(), self.thread.take()));
        } else if thread::panicking() {
            self.is_abandoned.store(true, Ordering::Release);
        } else {
            // The group is dropped on this thread, like any other group of the program.
            drop(self.join_thread());
        }
    }
}

impl fmt::Debug for AsyncGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncGroup of rank {} of {}", self.rank, self.world_size)
    }
}

/// Makes the calls until no more are started; returns the group.
fn run_jobs(mut group: Group, jobs: &Receiver<Job>, is_abandoned: &AtomicBool) -> Group {
    for job in jobs {
        if is_abandoned.load(Ordering::Acquire) {
            break;
        }
        job(&mut group);
    }
    if is_abandoned.load(Ordering::Acquire) {
        // The panic is that of the program, already reported: drop the group as in a panicking rank.
        let _group = group;
        std::panic::resume_unwind(Box::new("the program has panicked"));
    }
    group
}

/// A started call, as torch's `Work`. Dropping it does not cancel the call.
#[must_use = "a call may fail; `wait` says so, and gives the memory back"]
pub struct Work<R> {
    slot: Arc<ResultSlot<R>>,
    owner: ForkId,
    rank: Rank,
}

impl<R> Work<R> {
    /// Waits until the call has ended. Once its turn has come, that takes at most the group's timeout.
    ///
    /// # Errors
    /// The error of the call; its memory is lost. [`GroupError::Panicked`] if this
    /// call or an earlier one panicked.
    pub fn wait(self) -> Result<R, GroupError> {
        if !self.owner.is_current() {
            return Err(GroupError::Forked { rank: self.rank });
        }
        let mut result = self.slot.lock();
        loop {
            match result.take() {
                Some(result) => return result,
                None => result = self.slot.result_ready.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether [`wait`](Self::wait) returns at once.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.slot.lock().is_some()
    }
}

impl<R> fmt::Debug for Work<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_completed() { "Work, done" } else { "Work, under way" })
    }
}

/// The place of a result, shared by the thread and the work.
struct ResultSlot<R> {
    result: Mutex<Option<Result<R, GroupError>>>,
    result_ready: Condvar,
}

impl<R> ResultSlot<R> {
    fn lock(&self) -> MutexGuard<'_, Option<Result<R, GroupError>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Delivers a result, or an error if it is dropped without one.
struct Promise<R> {
    slot: Arc<ResultSlot<R>>,
}

impl<R> Promise<R> {
    fn fulfil(self, result: Result<R, GroupError>) {
        *self.slot.lock() = Some(result);
    }
}

impl<R> Drop for Promise<R> {
    fn drop(&mut self) {
        self.slot.lock().get_or_insert_with(|| Err(GroupError::Panicked));
        self.slot.result_ready.notify_all();
    }
}
