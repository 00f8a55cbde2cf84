//! The interface of programs: calls on slices of one element type. A [`ProcessGroup`] performs them.

use rankrun_contract::rank::{Rank, WorldSize};

use super::buffer::Buffer;
use super::collective::{Collective, HostCollective};
use super::device::{DeviceCollective, Stream};
use super::element::{DataType, Element, ReduceOp};
use super::error::GroupError;
use super::message::Operation;
use super::reduce::{as_bytes, as_bytes_mut};
use super::{Backend, GroupOptions, ProcessGroup, rendezvous};
use crate::context::WorkerContext;
use crate::progress_page::CollectiveMarks;

/// The ranks of a job, or a subset of them, connected with each other.
///
/// Every rank makes the same calls in the same order. [`send`](Self::send)
/// and [`receive`](Self::receive) concern two ranks only.
#[derive(Debug)]
pub struct Group {
    backend: Box<dyn ProcessGroup>,
    /// For the launcher. Calls on memory of a device are not marked: they end when their stream reaches them.
    marks: CollectiveMarks,
}

impl Group {
    /// Joins the group of all ranks; returns when every rank has joined.
    ///
    /// # Errors
    /// The store cannot be reached, or a rank is missing: it is named.
    pub fn join(context: &WorkerContext, options: &GroupOptions) -> Result<Self, GroupError> {
        let backend = rendezvous::join_group(context, options)?;
        let marks = match backend.backend() {
            Backend::Nccl => CollectiveMarks::default(),
            _ => context.progress_page().marks(&options.name, true),
        };
        Ok(Self { backend, marks })
    }

    /// A group on a custom backend.
    #[must_use]
    pub fn new(backend: Box<dyn ProcessGroup>) -> Self {
        Self { backend, marks: CollectiveMarks::default() }
    }

    /// Rank of this process within the group.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.backend.rank()
    }

    /// Number of ranks in the group.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.backend.world_size()
    }

    /// The backend that performs the calls.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend.backend()
    }

    /// Allocates `elements` zeros in memory that this group transfers with the fewest copies. Any
    /// other slice works, more slowly. The buffer may outlive the group. As with `Vec`, the
    /// program ends if memory is exhausted.
    pub fn buffer<T: Element>(&mut self, elements: usize) -> Buffer<T> {
        Buffer::new(self.backend.allocate(elements.saturating_mul(size_of::<T>())), elements)
    }

    /// Performs a call on memory of any element type; see [`ProcessGroup::run`].
    pub(crate) fn run(
        &mut self,
        data_type: DataType,
        collective: HostCollective<'_>,
    ) -> Result<(), GroupError> {
        let operation = collective.operation();
        self.marks.begin(operation);
        let result = self.backend.run(data_type, collective);
        self.marks.end(operation, result.is_ok());
        result
    }

    /// Waits until every rank has made this call.
    ///
    /// # Errors
    /// The group has ended, a length does not fit, or there is no such rank; so for all calls.
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        self.run(DataType::None, Collective::Barrier)
    }

    /// Overwrites `data` on every rank with `data` of rank `root`.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<(), GroupError> {
        self.run(T::DATA_TYPE, Collective::Broadcast { data: as_bytes_mut(data), root })
    }

    /// Reduces `data` over all ranks, in place, on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_reduce<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<(), GroupError> {
        self.run(T::DATA_TYPE, Collective::AllReduce { data: as_bytes_mut(data), op })
    }

    /// Reduces `data` over all ranks into `data` of the root. On other ranks `data` is unchanged.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn reduce<T: Element>(&mut self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<(), GroupError> {
        self.run(T::DATA_TYPE, Collective::Reduce { data: as_bytes_mut(data), op, root })
    }

    /// Reduces the inputs over all ranks and stores part `rank` of the result in `output`. The input has one
    /// part of equal length for each rank.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), GroupError> {
        let (input, output) = (as_bytes(input), as_bytes_mut(output));
        self.run(T::DATA_TYPE, Collective::ReduceScatter { input, output, op })
    }

    /// Concatenates the inputs of all ranks in rank order into `output`, on all ranks.
    /// All inputs have the same length.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_gather_into<T: Element>(&mut self, input: &[T], output: &mut [T]) -> Result<(), GroupError> {
        let (input, output) = (as_bytes(input), as_bytes_mut(output));
        self.run(T::DATA_TYPE, Collective::AllGather { input, output })
    }

    /// [`all_gather_into`](Self::all_gather_into) with a new vector.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_gather<T: Element>(&mut self, input: &[T]) -> Result<Vec<T>, GroupError> {
        let mut output = vec![T::zeroed(); input.len() * self.world_size().get() as usize];
        self.all_gather_into(input, &mut output)?;
        Ok(output)
    }

    /// Splits `data` of the root: `counts[0]` elements go to rank 0, and so on. Returns the part of this
    /// rank. `counts` is the same on all ranks; `data` of other ranks is ignored.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn scatter<T: Element>(
        &mut self,
        data: &[T],
        counts: &[usize],
        root: Rank,
    ) -> Result<Vec<T>, GroupError> {
        let own = counts.get(self.rank().index()).copied().unwrap_or(0);
        let mut part = vec![T::zeroed(); own];
        let input = (self.rank() == root).then_some(as_bytes(data));
        let work = Collective::Scatter { input, output: as_bytes_mut(&mut part), counts, root };
        self.run(T::DATA_TYPE, work)?;
        Ok(part)
    }

    /// Concatenates the data of all ranks in rank order; returns it on the root only. `counts` has the length
    /// of each rank's data and is the same on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn gather<T: Element>(
        &mut self,
        data: &[T],
        counts: &[usize],
        root: Rank,
    ) -> Result<Option<Vec<T>>, GroupError> {
        let total = counts.iter().fold(0usize, |total, &count| total.saturating_add(count));
        // A total that no memory can hold is refused by the check of the call, before it is allocated.
        let is_root = self.rank() == root && total <= isize::MAX as usize / size_of::<T>();
        let mut all = is_root.then(|| vec![T::zeroed(); total]);
        let output = all.as_mut().map(|all| as_bytes_mut(all));
        let work = Collective::Gather { input: as_bytes(data), output, counts, root };
        self.run(T::DATA_TYPE, work)?;
        Ok(all)
    }

    /// Sends `data` to one other rank, which receives as many elements. Both calls lie between the
    /// same two calls of all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn send<T: Element>(&mut self, data: &[T], to: Rank) -> Result<(), GroupError> {
        self.run(T::DATA_TYPE, Collective::Send { data: as_bytes(data), to })
    }

    /// Receives from one other rank, which sends as many elements between the same two calls of all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn receive<T: Element>(&mut self, data: &mut [T], from: Rank) -> Result<(), GroupError> {
        self.run(T::DATA_TYPE, Collective::Receive { data: as_bytes_mut(data), from })
    }

    /// Enqueues a call on a stream of a device; see [`ProcessGroup::run_on_device`].
    ///
    /// # Safety
    /// As [`ProcessGroup::run_on_device`].
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); the group carries host memory only.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    pub unsafe fn run_on_device(
        &mut self,
        data_type: DataType,
        collective: DeviceCollective<'_>,
        stream: Stream,
    ) -> Result<(), GroupError> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.run_on_device(data_type, collective, stream) }
    }

    /// Waits until all work on `stream` is done.
    ///
    /// # Safety
    /// As [`ProcessGroup::synchronize`].
    ///
    /// # Errors
    /// The failure that ended the group.
    #[expect(unsafe_code, reason = "the caller vouches for the stream")]
    pub unsafe fn synchronize(&mut self, stream: Stream) -> Result<(), GroupError> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.synchronize(stream) }
    }

    /// Makes sub-groups: ranks with the same color become a group, ordered by key, and by rank where keys are
    /// equal. Every rank of this group makes the call; a rank without a color gets no group. Sub-groups are
    /// independent of this group and of each other.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); or a member of the sub-group is missing, which does not end this group.
    pub fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Self>, GroupError> {
        self.marks.begin(Operation::Split);
        let result = self.backend.split(color, key);
        self.marks.end(Operation::Split, result.is_ok());
        let backend = result?;
        let marks = self.marks.for_subgroup(color.unwrap_or_default());
        Ok(backend.map(|backend| Self { backend, marks }))
    }

    /// Leaves the group in good order: the other ranks learn at once that this rank makes no more calls.
    pub fn leave(mut self) {
        self.backend.leave();
    }
}
