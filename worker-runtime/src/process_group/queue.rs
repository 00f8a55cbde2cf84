//! Calls beside the program: a thread makes them, in the order in which they were started.
//!
//! A call that is started and waited for at once costs some 4 µs more than one that blocks, which is waking two threads; one of
//! many that are started ahead, 2 µs (`cargo bench -p rankrun-worker --bench queue`, AMD EPYC, Zen 5). So a queue pays where a call
//! takes longer than that and there is something to compute meanwhile.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rankrun_contract::rank::{Rank, WorldSize};

use super::element::{Element, Reduction};
use super::error::GroupError;
use super::fork::Process;
use super::group::Group;

/// Calls that may wait for their turn. Starting one more waits: whoever is that far ahead gains nothing, and holds memory.
const CAPACITY: usize = 64;

type Job = Box<dyn FnOnce(&mut Group) + Send>;

/// A group on a thread of its own, so that calls overlap with what the program computes meanwhile.
///
/// Calls are made one after another in the order in which they were started, so every rank must start the same ones in the same
/// order. Memory is given away and comes back with the result. Calls of two queues may overtake each other.
///
/// ```
/// use rankrun_worker::{GroupError, MemoryGroup, Queue, Reduction};
///
/// # fn main() -> Result<(), GroupError> {
/// # let group = MemoryGroup::world(1).remove(0);
/// let queue = Queue::new(group)?;
/// let last_layer = queue.all_reduce(vec![1.0f32, 2.0], Reduction::Mean);
/// // The gradient of the first layer is computed while that of the last one is on its way.
/// let first_layer = queue.all_reduce(vec![3.0f32], Reduction::Mean);
/// let gradients = (first_layer.wait()?, last_layer.wait()?);
/// # assert_eq!(gradients, (vec![3.0], vec![1.0, 2.0]));
/// # Ok(())
/// # }
/// ```
///
/// A queue that is dropped finishes what was started first. One that is dropped by a panic does not: its group ends as that of a
/// rank which has crashed.
pub struct Queue {
    /// `None` once no more are started.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<Group>>,
    /// Whether the program has panicked, so that nobody waits for what was started.
    is_abandoned: Arc<AtomicBool>,
    rank: Rank,
    world_size: WorldSize,
    /// The process that has the thread: a forked child has only the one that forked.
    owner: Process,
}

impl Queue {
    /// Gives the group to a thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn new(group: Group) -> Result<Self, GroupError> {
        let (rank, world_size) = (group.rank(), group.world_size());
        let (jobs, started) = sync_channel(CAPACITY);
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_abandoned);
        let thread = thread::Builder::new().name("rankrun-queue".to_owned());
        let thread = thread.spawn(move || serve(group, &started, &flag)).map_err(GroupError::Thread)?;
        let (jobs, thread, owner) = (Some(jobs), Some(thread), Process::this());
        Ok(Self { jobs, thread, is_abandoned, rank, world_size, owner })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.world_size
    }

    /// Starts [`Group::all_reduce`].
    pub fn all_reduce<T, B>(&self, mut data: B, how: Reduction) -> Work<B>
    where
        T: Element,
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.all_reduce(&mut data, how).map(|()| data))
    }

    /// Starts [`Group::broadcast`].
    pub fn broadcast<T, B>(&self, mut data: B, root: Rank) -> Work<B>
    where
        T: Element,
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.broadcast(&mut data, root).map(|()| data))
    }

    /// Starts [`Group::reduce_scatter`]; input and output come back.
    pub fn reduce_scatter<T, I, O>(&self, input: I, mut output: O, how: Reduction) -> Work<(I, O)>
    where
        T: Element,
        I: Deref<Target = [T]> + Send + 'static,
        O: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.reduce_scatter(&input, &mut output, how).map(|()| (input, output)))
    }

    /// Starts [`Group::all_gather_into`]; input and output come back.
    pub fn all_gather_into<T, I, O>(&self, input: I, mut output: O) -> Work<(I, O)>
    where
        T: Element,
        I: Deref<Target = [T]> + Send + 'static,
        O: DerefMut<Target = [T]> + Send + 'static,
    {
        self.start(move |group| group.all_gather_into(&input, &mut output).map(|()| (input, output)))
    }

    /// Starts anything else that is done with the group, in its turn: other calls, several calls, a new
    /// [`buffer`](Group::buffer).
    pub fn start<R, F>(&self, call: F) -> Work<R>
    where
        R: Send + 'static,
        F: FnOnce(&mut Group) -> Result<R, GroupError> + Send + 'static,
    {
        let slot = Arc::new(Slot { result: Mutex::new(None), is_there: Condvar::new() });
        let promise = Promise { slot: Arc::clone(&slot) };
        let job: Job = Box::new(move |group| promise.keep(call(group)));
        // A job that nobody takes any more breaks its promise, and the work says so.
        if let Some(jobs) = self.jobs.as_ref().filter(|_| self.owner.is_this()) {
            drop(jobs.send(job));
        }
        Work { slot, owner: self.owner, rank: self.rank }
    }

    /// Finishes what was started, and gives the group back.
    ///
    /// # Errors
    /// A call panicked, and the group ended with it; or this process was forked from the one that has the group.
    pub fn into_group(mut self) -> Result<Group, GroupError> {
        if !self.owner.is_this() {
            return Err(GroupError::Forked { rank: self.rank });
        }
        self.finish().ok_or(GroupError::Panicked)
    }

    fn finish(&mut self) -> Option<Group> {
        self.jobs = None;
        self.thread.take()?.join().ok()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.owner.is_this() {
            // The other end is not there to take notice, and may have been in the middle of anything.
            std::mem::forget((self.jobs.take(), self.thread.take()));
        } else if thread::panicking() {
            self.is_abandoned.store(true, Ordering::Release);
        } else {
            // It ends on this thread, as a group that its program drops.
            drop(self.finish());
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue of rank {} of {}", self.rank, self.world_size)
    }
}

/// Makes the calls until no more are started; gives the group back.
fn serve(mut group: Group, started: &Receiver<Job>, is_abandoned: &AtomicBool) -> Group {
    for job in started {
        if is_abandoned.load(Ordering::Acquire) {
            break;
        }
        job(&mut group);
    }
    if is_abandoned.load(Ordering::Acquire) {
        // The panic of the program is that of this rank: its group is dropped by one, which has been told already.
        let _group = group;
        std::panic::resume_unwind(Box::new("the program has panicked"));
    }
    group
}

/// A call that was started. Dropping it changes nothing about the call.
#[must_use = "a call may fail; `wait` says so, and gives the memory back"]
pub struct Work<R> {
    slot: Arc<Slot<R>>,
    owner: Process,
    rank: Rank,
}

impl<R> Work<R> {
    /// Waits until the call has ended, which it does within the group's timeout once it is its turn.
    ///
    /// # Errors
    /// As the call; the memory is gone then. [`GroupError::Panicked`] if this call or one before it panicked.
    pub fn wait(self) -> Result<R, GroupError> {
        if !self.owner.is_this() {
            return Err(GroupError::Forked { rank: self.rank });
        }
        let mut result = self.slot.lock();
        loop {
            match result.take() {
                Some(result) => return result,
                None => result = self.slot.is_there.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.slot.lock().is_some()
    }
}

impl<R> fmt::Debug for Work<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_done() { "Work, done" } else { "Work, under way" })
    }
}

/// Where a result is put.
struct Slot<R> {
    result: Mutex<Option<Result<R, GroupError>>>,
    is_there: Condvar,
}

impl<R> Slot<R> {
    fn lock(&self) -> MutexGuard<'_, Option<Result<R, GroupError>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a result where it is waited for, or an error when it is dropped without one.
struct Promise<R> {
    slot: Arc<Slot<R>>,
}

impl<R> Promise<R> {
    fn keep(self, result: Result<R, GroupError>) {
        *self.slot.lock() = Some(result);
    }
}

impl<R> Drop for Promise<R> {
    fn drop(&mut self) {
        self.slot.lock().get_or_insert_with(|| Err(GroupError::Panicked));
        self.slot.is_there.notify_all();
    }
}
