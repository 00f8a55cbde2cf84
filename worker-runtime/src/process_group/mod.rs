//! Collective operations among the ranks of a job, on the CPU, over TCP.
//!
//! Every rank makes the same calls in the same order; a call that differs is an error on the ranks that see
//! it. Values are reduced in rank order, so the result has the same bits on every rank and in every run.
//!
//! A call ends with its result, or with an error: at once when a rank dies, and when the group's timeout has
//! passed at the latest. Every rank then names the same lost rank, also those that noticed only because
//! another one gave up; all later calls fail in the same way.
//!
//! A rank [leaves](ProcessGroup::leave) in good order: a call that needs it then fails at once on the others.
//! A group that is only dropped is left when the program under [`run`](crate::run) returns success or joins
//! its next group, and until then others that need this rank wait for it, up to the group's timeout; without
//! `run` it is left at once. A rank that ends its process without leaving, or whose program fails or panics,
//! counts as lost, as soon as its process is gone.

mod element;
mod error;
mod join;
mod layout;
mod mesh;
mod message;
pub(crate) mod parting;
mod verdict;

use std::time::Duration;

use bytemuck::{cast_slice, cast_slice_mut};
use rankrun_contract::rank::{Rank, WorldSize};

use crate::clock;
use crate::context::WorkerContext;
use crate::store::TcpStore;
pub use element::{DataType, Element, Reduction};
pub use error::{Ending, GroupError, LossCause};
use join::Seat;
use mesh::{Mesh, Step, Transfer};
pub use message::{Call, Operation};

/// Bytes of a buffer that `all_reduce` works on at a time: it bounds the memory that a call needs.
const BLOCK_LEN: usize = 4 * 1024 * 1024;

/// How long the store may take to say who was lost first, before this rank's own word counts.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);

/// How a group is made.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// Its name: ranks meet under the same one.
    pub name: String,
    /// How long joining, and each call, may take. It must be longer than ranks may be apart from each other.
    pub timeout: Duration,
}

impl Default for GroupOptions {
    /// The name `default`, and torch's half an hour.
    fn default() -> Self {
        Self { name: "default".to_owned(), timeout: Duration::from_secs(30 * 60) }
    }
}

/// The ranks of a job, connected with each other.
#[derive(Debug)]
pub struct ProcessGroup {
    rank: Rank,
    world_size: WorldSize,
    timeout: Duration,
    mesh: Mesh,
    /// Where the ending is agreed upon; none in a world of one, which has none.
    store: Option<TcpStore>,
    sequence: u64,
    ending: Option<Ending>,
}

impl ProcessGroup {
    /// Joins the group of all ranks; returns when all are there.
    ///
    /// # Errors
    /// The store cannot be reached, or a rank is missing: it is named.
    pub fn join(context: &WorkerContext, options: &GroupOptions) -> Result<Self, GroupError> {
        parting::go_on();
        if context.world_size() == WorldSize::ONE {
            let mesh = Mesh::new(vec![None])?;
            return Ok(Self::new(context.rank(), context.world_size(), options.timeout, mesh, None));
        }
        let seat = Seat {
            rank: context.rank(),
            world_size: context.world_size(),
            life: context.life(),
            run_id: context.run_id().to_string(),
            spans_nodes: context.spans_nodes(),
            timeout: options.timeout,
        };
        Self::meet(&context.store(options.timeout)?, &seat, &options.name)
    }

    fn meet(store: &TcpStore, seat: &Seat, name: &str) -> Result<Self, GroupError> {
        let store = store.with_own_connection(VERDICT_TIMEOUT)?.with_timeout(seat.timeout);
        let store = store.with_prefix(&format!("rankrun/group/{name}/life {}", seat.life));
        // A name may be used again once its group is gone; nothing of the first use is in the second one.
        let turn = store.add(&format!("turn of {}", seat.rank), 1)?;
        let store = store.with_prefix(&turn.to_string());
        let mesh = join::join(&store, seat)?;
        Ok(Self::new(seat.rank, seat.world_size, seat.timeout, mesh, Some(store)))
    }

    fn new(
        rank: Rank,
        world_size: WorldSize,
        timeout: Duration,
        mesh: Mesh,
        store: Option<TcpStore>,
    ) -> Self {
        Self { rank, world_size, timeout, mesh, store, sequence: 0, ending: None }
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

    /// Gives every rank what `data` is on rank `root`.
    ///
    /// # Errors
    /// The group has ended, or there is no such root; so for all calls.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<(), GroupError> {
        let step = self.begin::<T>(Operation::Broadcast, None, Some(root), data.len())?;
        if self.rank == root {
            let bytes: &[u8] = cast_slice(data);
            self.exchange(&step, |_| Transfer { send: Some(bytes), receive: None })
        } else {
            let mut bytes = Some(cast_slice_mut(data));
            self.exchange(&step, |rank| Transfer {
                send: None,
                receive: if rank == root { bytes.take() } else { None },
            })
        }
    }

    /// Makes `data` the reduction of what it is on all ranks, on all ranks.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn all_reduce<T: Element>(&mut self, data: &mut [T], how: Reduction) -> Result<(), GroupError> {
        let mut step = self.begin::<T>(Operation::AllReduce, Some(how), None, data.len())?;
        if data.is_empty() {
            return self.reduce_block(&mut step, data, how);
        }
        data.chunks_mut(BLOCK_LEN / size_of::<T>())
            .try_for_each(|block| self.reduce_block(&mut step, block, how))
    }

    /// Every rank reduces the part of the block that belongs to it, and gives the result to all others.
    fn reduce_block<T: Element>(
        &mut self,
        step: &mut Step,
        block: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        let (me, world) = (self.rank.index(), self.world_size.get() as usize);
        let parts = layout::segments(block.len(), world);
        let own = parts[me].clone();

        let mut arrivals = vec![T::zeroed(); own.len() * world];
        let mut slots = layout::split_mut(&mut arrivals, vec![own.len(); world]).into_iter();
        self.exchange(step, |rank| Transfer {
            send: Some(cast_slice(&block[parts[rank.index()].clone()])),
            receive: slots.next().map(cast_slice_mut),
        })?;
        arrivals[me * own.len()..][..own.len()].copy_from_slice(&block[own.clone()]);
        let (total, others) = arrivals.split_at_mut(own.len());
        others.chunks(own.len().max(1)).for_each(|other| element::fold(how, total, other));
        element::finish(how, total, self.world_size.get());
        block[own].copy_from_slice(total);

        step.number += 1;
        let mut pieces = layout::split_mut(block, parts.iter().map(ExactSizeIterator::len));
        let own: &mut [T] = std::mem::take(&mut pieces[me]);
        let own: &[T] = own;
        let mut pieces = pieces.into_iter();
        self.exchange(step, |_| Transfer {
            send: Some(cast_slice(own)),
            receive: pieces.next().map(cast_slice_mut),
        })?;
        step.number += 1;
        Ok(())
    }

    /// The data of all ranks one after another, on all ranks; each gives equally much.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn all_gather<T: Element>(&mut self, data: &[T]) -> Result<Vec<T>, GroupError> {
        let step = self.begin::<T>(Operation::AllGather, None, None, data.len())?;
        let (me, world) = (self.rank.index(), self.world_size.get() as usize);
        let mut all = vec![T::zeroed(); data.len() * world];
        all[me * data.len()..][..data.len()].copy_from_slice(data);
        let mut slots = layout::split_mut(&mut all, vec![data.len(); world]).into_iter();
        self.exchange(&step, |_| Transfer {
            send: Some(cast_slice(data)),
            receive: slots.next().map(cast_slice_mut),
        })?;
        Ok(all)
    }

    /// This rank's part of the root's data: the first `counts[0]` elements for rank 0, and so on. `counts` is
    /// the same on all ranks; what others than the root give as `data` is not looked at.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast), and [`GroupError::WrongLength`].
    pub fn scatter<T: Element>(
        &mut self,
        data: &[T],
        counts: &[usize],
        root: Rank,
    ) -> Result<Vec<T>, GroupError> {
        let total = self.total(Operation::Scatter, counts)?;
        if self.rank == root {
            expect_length(Operation::Scatter, "elements", total, data.len())?;
        }
        let step = self.begin::<T>(Operation::Scatter, None, Some(root), total)?;
        let mut part = vec![T::zeroed(); counts[self.rank.index()]];
        if self.rank == root {
            let parts = layout::split(data, counts.iter().copied());
            part.copy_from_slice(parts[root.index()]);
            self.exchange(&step, |rank| Transfer {
                send: Some(cast_slice(parts[rank.index()])),
                receive: None,
            })?;
        } else {
            let mut slot = Some(cast_slice_mut(&mut part));
            self.exchange(&step, |rank| Transfer {
                send: None,
                receive: if rank == root { slot.take() } else { None },
            })?;
        }
        Ok(part)
    }

    /// The data of all ranks one after another, on the root only. `counts` says how much each rank gives and
    /// is the same on all ranks.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter).
    pub fn gather<T: Element>(
        &mut self,
        data: &[T],
        counts: &[usize],
        root: Rank,
    ) -> Result<Option<Vec<T>>, GroupError> {
        let total = self.total(Operation::Gather, counts)?;
        expect_length(Operation::Gather, "elements", counts[self.rank.index()], data.len())?;
        let step = self.begin::<T>(Operation::Gather, None, Some(root), total)?;
        if self.rank != root {
            let send = |rank| (rank == root).then_some(cast_slice(data));
            self.exchange(&step, |rank| Transfer { send: send(rank), receive: None })?;
            return Ok(None);
        }
        let mut all = vec![T::zeroed(); total];
        let mut slots = layout::split_mut(&mut all, counts.iter().copied());
        slots[root.index()].copy_from_slice(data);
        let mut slots = slots.into_iter();
        self.exchange(&step, |_| Transfer { send: None, receive: slots.next().map(cast_slice_mut) })?;
        Ok(Some(all))
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        let step = self.begin_call(Call {
            operation: Operation::Barrier,
            data_type: DataType::None,
            reduction: None,
            root: None,
            count: 0,
            sequence: 0,
        })?;
        self.exchange(&step, |_| Transfer { send: Some(&[]), receive: Some(&mut []) })
    }

    /// Leaves the group in good order: the other ranks hear at once that this one is done with it.
    pub fn leave(mut self) {
        std::mem::take(&mut self.mesh).leave();
    }

    fn total(&self, operation: Operation, counts: &[usize]) -> Result<usize, GroupError> {
        expect_length(operation, "counts", self.world_size.get() as usize, counts.len())?;
        let total = counts.iter().try_fold(0usize, |total, &count| total.checked_add(count));
        total.ok_or(GroupError::WrongLength {
            operation,
            what: "elements at most",
            expected: usize::MAX,
            given: usize::MAX,
        })
    }

    fn begin<T: Element>(
        &mut self,
        operation: Operation,
        reduction: Option<Reduction>,
        root: Option<Rank>,
        count: usize,
    ) -> Result<Step, GroupError> {
        let (data_type, count) = (T::DATA_TYPE, count as u64);
        self.begin_call(Call { operation, data_type, reduction, root, count, sequence: 0 })
    }

    /// Numbers the call.
    fn begin_call(&mut self, call: Call) -> Result<Step, GroupError> {
        let Call { operation, root, .. } = call;
        if let Some(ending) = self.ending.clone() {
            return Err(GroupError::Ended { operation, ending });
        }
        if let Some(root) = root.filter(|root| root.0 >= self.world_size.get()) {
            return Err(GroupError::NoSuchRank { operation, root, world_size: self.world_size });
        }
        self.sequence += 1;
        let call = Call { sequence: self.sequence, ..call };
        Ok(Step { call, number: 0, deadline: clock::after(self.timeout), timeout: self.timeout })
    }

    /// One exchange with all other ranks; `transfer` is asked for every rank in order, this one included.
    fn exchange<'a>(
        &mut self,
        step: &Step,
        mut transfer: impl FnMut(Rank) -> Transfer<'a>,
    ) -> Result<(), GroupError> {
        let transfers = (0..self.world_size.get())
            .map(|rank| {
                let transfer = transfer(Rank(rank));
                if Rank(rank) == self.rank { Transfer::default() } else { transfer }
            })
            .collect();
        self.mesh.exchange(step, transfers).map_err(|ending| self.end(step.call.operation, ending))
    }

    /// Agrees with the other ranks on how the group ended, then lets them see it.
    fn end(&mut self, operation: Operation, seen: Ending) -> GroupError {
        let ending = match &self.store {
            Some(store) => verdict::agree(store, seen, self.rank),
            None => seen,
        };
        self.mesh.close();
        self.ending = Some(ending.clone());
        GroupError::Ended { operation, ending }
    }
}

fn expect_length(
    operation: Operation,
    what: &'static str,
    expected: usize,
    given: usize,
) -> Result<(), GroupError> {
    if expected == given { Ok(()) } else { Err(GroupError::WrongLength { operation, what, expected, given }) }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.ending.is_none() {
            parting::take(std::mem::take(&mut self.mesh));
        }
    }
}
