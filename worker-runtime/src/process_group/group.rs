//! A group as programs use it: calls on slices of one element type.

use rankrun_contract::rank::{Rank, WorldSize};

use super::buffer::Buffer;
use super::collective::{Collective, HostCollective};
use super::device::{DeviceCollective, Stream};
use super::element::{DataType, Element, Reduction};
use super::error::GroupError;
use super::reduce::{as_bytes, as_bytes_mut};
use super::{Backend, GroupOptions, ProcessGroup, meet};
use crate::context::WorkerContext;

/// The ranks of a job, or some of them, connected with each other.
///
/// Every rank makes the same calls in the same order, but for [`send`](Self::send) and [`receive`](Self::receive), which two
/// ranks make.
#[derive(Debug)]
pub struct Group {
    backend: Box<dyn ProcessGroup>,
}

impl Group {
    /// Joins the group of all ranks; returns when all are there.
    ///
    /// # Errors
    /// The store cannot be reached, or a rank is missing: it is named.
    pub fn join(context: &WorkerContext, options: &GroupOptions) -> Result<Self, GroupError> {
        Ok(Self { backend: meet::meet(context, options)? })
    }

    /// A group with a backend of one's own.
    #[must_use]
    pub fn new(backend: Box<dyn ProcessGroup>) -> Self {
        Self { backend }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.backend.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.backend.world_size()
    }

    /// What carries the calls.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend.backend()
    }

    /// `elements` zeros in memory that this group carries with the fewest copies; any slice does, more slowly. It may outlive the
    /// group. More than there is memory for ends the program, as a `Vec` does.
    pub fn buffer<T: Element>(&mut self, elements: usize) -> Buffer<T> {
        Buffer::new(self.backend.allocate(elements.saturating_mul(size_of::<T>())), elements)
    }

    /// Performs a call on memory of any element type; see [`ProcessGroup::run`].
    pub(crate) fn run(&mut self, data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        self.backend.run(data_type, work)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// The group has ended, a length does not fit, or there is no such rank; so for all calls.
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        self.backend.run(DataType::None, Collective::Barrier)
    }

    /// Gives every rank what `data` is on rank `root`.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<(), GroupError> {
        self.backend.run(T::DATA_TYPE, Collective::Broadcast { data: as_bytes_mut(data), root })
    }

    /// Makes `data` the reduction of what it is on all ranks, on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_reduce<T: Element>(&mut self, data: &mut [T], how: Reduction) -> Result<(), GroupError> {
        self.backend.run(T::DATA_TYPE, Collective::AllReduce { data: as_bytes_mut(data), how })
    }

    /// Makes `data` the reduction of what it is on all ranks, on the root; elsewhere it stays what it is.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn reduce<T: Element>(
        &mut self,
        data: &mut [T],
        how: Reduction,
        root: Rank,
    ) -> Result<(), GroupError> {
        self.backend.run(T::DATA_TYPE, Collective::Reduce { data: as_bytes_mut(data), how, root })
    }

    /// Makes `output` this rank's part of the reduction of all inputs: of as many equal parts as there are ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        let (input, output) = (as_bytes(input), as_bytes_mut(output));
        self.backend.run(T::DATA_TYPE, Collective::ReduceScatter { input, output, how })
    }

    /// Makes `output` the inputs of all ranks one after another, on all ranks; each gives equally much.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_gather_into<T: Element>(&mut self, input: &[T], output: &mut [T]) -> Result<(), GroupError> {
        let (input, output) = (as_bytes(input), as_bytes_mut(output));
        self.backend.run(T::DATA_TYPE, Collective::AllGather { input, output })
    }

    /// [`all_gather_into`](Self::all_gather_into) new memory.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_gather<T: Element>(&mut self, input: &[T]) -> Result<Vec<T>, GroupError> {
        let mut output = vec![T::zeroed(); input.len() * self.world_size().get() as usize];
        self.all_gather_into(input, &mut output)?;
        Ok(output)
    }

    /// This rank's part of the root's data: the first `counts[0]` elements for rank 0, and so on. `counts` is the same on all
    /// ranks; what others than the root give as `data` is not looked at.
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
        self.backend.run(T::DATA_TYPE, work)?;
        Ok(part)
    }

    /// The data of all ranks one after another, on the root only. `counts` says how much each rank gives and is the same on all
    /// ranks.
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
        // A total that no memory holds is refused before there is any.
        let is_root = self.rank() == root && total <= isize::MAX as usize / size_of::<T>();
        let mut all = is_root.then(|| vec![T::zeroed(); total]);
        let output = all.as_mut().map(|all| as_bytes_mut(all));
        let work = Collective::Gather { input: as_bytes(data), output, counts, root };
        self.backend.run(T::DATA_TYPE, work)?;
        Ok(all)
    }

    /// Sends `data` to one other rank, which receives as many elements. Both do so between the same two calls of all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn send<T: Element>(&mut self, data: &[T], to: Rank) -> Result<(), GroupError> {
        self.backend.run(T::DATA_TYPE, Collective::Send { data: as_bytes(data), to })
    }

    /// Receives from one other rank, which sends as many elements between the same two calls of all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn receive<T: Element>(&mut self, data: &mut [T], from: Rank) -> Result<(), GroupError> {
        self.backend.run(T::DATA_TYPE, Collective::Receive { data: as_bytes_mut(data), from })
    }

    /// Puts a call on a stream of a device; see [`ProcessGroup::run_on_device`].
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
        work: DeviceCollective<'_>,
        stream: Stream,
    ) -> Result<(), GroupError> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.run_on_device(data_type, work, stream) }
    }

    /// Waits until all is done that was put on `stream`.
    ///
    /// # Safety
    /// As [`ProcessGroup::wait`].
    ///
    /// # Errors
    /// How the group ended, if it did.
    #[expect(unsafe_code, reason = "the caller vouches for the stream")]
    pub unsafe fn wait(&mut self, stream: Stream) -> Result<(), GroupError> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.wait(stream) }
    }

    /// Makes sub-groups: ranks that say the same color become a group of their own, in which they are ordered by key, and by rank
    /// where keys are equal. Every rank of this group makes the call; one without a color gets no group. What the sub-groups do
    /// is independent of this group and of each other.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); or a member of the sub-group is missing, which does not end this group.
    pub fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Self>, GroupError> {
        Ok(self.backend.split(color, key)?.map(Self::new))
    }

    /// Leaves the group in good order: the other ranks hear at once that this one is done with it.
    pub fn leave(mut self) {
        self.backend.leave();
    }
}
