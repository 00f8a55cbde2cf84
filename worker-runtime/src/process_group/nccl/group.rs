//! The process group on NCCL: numbers and checks calls, and enqueues them
//! on streams. A [`Watch`] detects failures.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

use super::communicator::Communicator;
use super::join;
use super::library::{Nccl, NcclError};
use super::ops::NcclCalls;
use super::watch::{LeaveKind, Watch};
use crate::context::WorkerContext;
use crate::cuda::{Query, Scratch};
use crate::process_group::collective::{Collective, HostCollective};
use crate::process_group::device::{DeviceCollective, DeviceMemory, Stream};
use crate::process_group::dropped_groups::{self, DroppedGroup};
use crate::process_group::element::{DataType, ReduceOp};
use crate::process_group::error::{GroupError, GroupFailure, MemoryKind};
use crate::process_group::message::{Call, Operation};
use crate::process_group::nccl::call_numbers::CallNumbers;
use crate::process_group::plan::BackendChoice;
use crate::process_group::rendezvous::{self, Membership};
use crate::process_group::split::{self, SplitChoice};
use crate::process_group::{Backend, GroupOptions, ProcessGroup};
use crate::store::{StoreError, TcpStore};
use crate::{clock, cuda};

/// Pause between two checks for a failure, while the ranks exchange their colors.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A process group on NVIDIA GPUs, one for each rank.
///
/// Calls on device memory are asynchronous: they return once they are enqueued. A later error is the result
/// of the next call or of [`wait`](ProcessGroup::synchronize). After a failure the calls are aborted, so that a
/// program which waits for a stream does not hang.
///
/// The group's timeout runs from the beginning of a call until it is done on the device, with all work before
/// it on its stream and the work that follows within milliseconds.
#[derive(Debug)]
pub struct NcclGroup {
    nccl: Nccl,
    membership: Membership,
    /// The keys of the group; `None` in a world of one.
    store: Option<TcpStore>,
    numbers: CallNumbers,
    scratch: Scratch,
    watch: Arc<Watch>,
    /// `None` after the group was left.
    link: Option<Link>,
}

/// A communicator with the thread that watches it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) communicator: Communicator,
    pub(super) watch: Arc<Watch>,
    pub(super) has_left: bool,
}

impl NcclGroup {
    /// Joins the group of all ranks of the job on the current CUDA device of this
    /// thread; returns when all have joined. `library` is the path of NCCL's file;
    /// without it the file is searched (see [`Nccl::load`]).
    ///
    /// # Errors
    /// There is no NCCL, no CUDA, or no current device; the store cannot be reached; or a rank
    /// is missing, which the error names.
    pub fn join(
        context: &WorkerContext,
        options: &GroupOptions,
        library: Option<&Path>,
    ) -> Result<Self, GroupError> {
        let nccl = Nccl::load(library)?;
        cuda::cuda_available()?;
        cuda::driver()?.current_context()?;
        let (membership, store) = rendezvous::resolve_membership(context, options, BackendChoice::Nccl)?;
        Self::connect(nccl, membership, store)
    }

    fn connect(nccl: Nccl, membership: Membership, store: Option<TcpStore>) -> Result<Self, GroupError> {
        let scratch = cuda::driver()?.allocate(size_of::<u64>())?;
        let link = join::connect_group(&nccl, &membership, store.as_ref())?;
        let (watch, numbers) = (Arc::clone(&link.watch), CallNumbers::new(membership.world_size));
        Ok(Self { nccl, membership, store, numbers, scratch, watch, link: Some(link) })
    }

    /// The communicator, for calls that this type does not have. They are not
    /// watched: a call that hangs stays.
    #[must_use]
    pub fn communicator(&self) -> Option<&Communicator> {
        self.link.as_ref().map(|link| &link.communicator)
    }

    /// Makes several calls that advance together, so that two ranks can send to each other.
    ///
    /// # Safety
    /// As [`run_on_device`](ProcessGroup::run_on_device), for each call.
    ///
    /// # Errors
    /// As [`run_on_device`](ProcessGroup::run_on_device).
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    pub unsafe fn run_grouped(
        &mut self,
        works: &[(DataType, DeviceCollective<'_>)],
        stream: Stream,
    ) -> Result<(), GroupError> {
        let Membership { rank, world_size, .. } = self.membership;
        works.iter().try_for_each(|(data_type, work)| work.check(*data_type, rank, world_size))?;
        let Some((_, first)) = works.first() else { return Ok(()) };
        let operation = first.operation();
        for (data_type, work) in works {
            let (call, is_of_all) = self.numbers.assign_sequence(work.call(*data_type));
            self.watch
                .begin(call, is_of_all)
                .map_err(|failure| self.watch.group_error(operation, failure))?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.put(operation, works, stream) }
    }

    /// Exchanges colors and keys through the store. The watch ends the exchange if a rank is lost.
    fn exchange_split_choices(
        &self,
        sequence: u64,
        own: SplitChoice,
    ) -> Result<Vec<SplitChoice>, GroupError> {
        let Some(store) = &self.store else { return Ok(vec![own]) };
        let store = store.with_own_connection(rendezvous::VERDICT_TIMEOUT)?;
        let key = |rank: u32| format!("choices {sequence}/{rank}");
        let [color, order] = own.encode();
        store.set(&key(self.membership.rank.0), format!("{color} {order}").as_bytes())?;
        let keys: Vec<String> = (0..self.membership.world_size.get()).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        loop {
            match store.wait(&keys, CHECK_INTERVAL) {
                Err(StoreError::WaitTimeout { .. }) => self.watch.check()?,
                result => break result?,
            }
        }
        let parse = |(key, value): (&&str, Vec<u8>)| {
            let text = String::from_utf8_lossy(&value);
            let numbers = text.split_once(' ').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
            numbers.map(SplitChoice::decode).ok_or_else(|| GroupError::unexpected_entry(key, &value))
        };
        keys.iter().zip(store.multi_get(&keys)?).map(parse).collect()
    }

    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn put(
        &self,
        operation: Operation,
        works: &[(DataType, DeviceCollective<'_>)],
        stream: Stream,
    ) -> Result<(), GroupError> {
        let failed = |failure: GroupFailure| self.watch.group_error(operation, failure);
        let Some(link) = &self.link else {
            return Err(GroupError::Nccl(NcclError::Aborted { function: "ncclCommGetAsyncError" }));
        };
        let all = |calls: &NcclCalls<'_>| {
            // SAFETY: the caller's promise.
            works.iter().try_for_each(|work| unsafe { self.issue(calls, work, stream) })
        };
        let is_one = matches!(works, [(_, work)] if is_single(work));
        let result = if is_one { link.communicator.call(all) } else { link.communicator.group(all) };
        result.map_err(|error| failed(self.watch.report_error(error.to_string())))?;
        // SAFETY: the caller's promise.
        let marked = unsafe { self.watch.lock_state().log.record_stream(stream) };
        marked.map_err(|error| failed(self.watch.report_error(error.to_string())))
    }

    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn issue(
        &self,
        calls: &NcclCalls<'_>,
        (data_type, work): &(DataType, DeviceCollective<'_>),
        stream: Stream,
    ) -> Result<(), NcclError> {
        let kind = *data_type;
        // SAFETY: memory and stream are the caller's promise; lengths were checked (`Collective::check`).
        unsafe {
            match work {
                Collective::Barrier => {
                    let all = DeviceMemory { address: self.scratch.address, bytes: self.scratch.bytes };
                    calls.all_reduce((DataType::I64, ReduceOp::Max), all, all, stream)
                }
                Collective::Broadcast { data, root } => calls.broadcast(kind, *data, *root, stream),
                Collective::AllReduce { data, op } => calls.all_reduce((kind, *op), *data, *data, stream),
                Collective::Reduce { data, op, root } => calls.reduce((kind, *op), *data, *root, stream),
                Collective::ReduceScatter { input, output, op } => {
                    calls.reduce_scatter((kind, *op), *input, *output, stream)
                }
                Collective::AllGather { input, output } => calls.all_gather(kind, *input, *output, stream),
                Collective::Send { data, to } => calls.send(kind, *data, *to, stream),
                Collective::Receive { data, from } => calls.receive(kind, *data, *from, stream),
                // NCCL has neither: they are made of transfers in one group of calls.
                Collective::Gather { input, output, counts, root } => {
                    calls.send(kind, *input, *root, stream)?;
                    let Some(output) = output else { return Ok(()) };
                    rank_parts(*output, kind, counts)
                        .try_for_each(|(rank, part)| calls.receive(kind, part, rank, stream))
                }
                Collective::Scatter { input, output, counts, root } => {
                    if let Some(input) = input {
                        rank_parts(*input, kind, counts)
                            .try_for_each(|(rank, part)| calls.send(kind, part, rank, stream))?;
                    }
                    calls.receive(kind, *output, *root, stream)
                }
            }
        }
    }
}

/// Whether NCCL performs it as one call.
fn is_single(work: &DeviceCollective<'_>) -> bool {
    !matches!(work.operation(), Operation::Gather | Operation::Scatter)
}

/// The part of `all` that belongs to each rank.
fn rank_parts(
    all: DeviceMemory,
    data_type: DataType,
    counts: &[usize],
) -> impl Iterator<Item = (Rank, DeviceMemory)> {
    let lengths = counts.iter().map(move |count| count * data_type.size());
    let mut start = 0;
    (0..).map(Rank).zip(lengths).map(move |(rank, length)| {
        let part = all.part(start, length);
        start += length;
        (rank, part)
    })
}

impl ProcessGroup for NcclGroup {
    fn rank(&self) -> Rank {
        self.membership.rank
    }

    fn world_size(&self) -> WorldSize {
        self.membership.world_size
    }

    fn backend(&self) -> Backend {
        Backend::Nccl
    }

    fn run(&mut self, _data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        let HostCollective::Barrier = work else {
            let (operation, backend) = (work.operation(), Backend::Nccl);
            return Err(GroupError::WrongMemory { operation, backend, actual: MemoryKind::Host });
        };
        let stream = Stream(std::ptr::null_mut());
        // SAFETY: a barrier uses the group's own memory only, and the default stream always exists.
        #[expect(unsafe_code, reason = "a barrier without the caller's memory")]
        unsafe {
            self.run_on_device(DataType::None, Collective::Barrier, stream)?;
            self.synchronize(stream)
        }
    }

    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn run_on_device(
        &mut self,
        data_type: DataType,
        work: DeviceCollective<'_>,
        stream: Stream,
    ) -> Result<(), GroupError> {
        // SAFETY: the caller's promise.
        unsafe { self.run_grouped(&[(data_type, work)], stream) }
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError> {
        dropped_groups::leave_kept_groups();
        let call = Call { operation: Operation::Split, ..HostCollective::Barrier.call(DataType::None) };
        let (call, _) = self.numbers.assign_sequence(call);
        let begun = self.watch.begin(call, true);
        begun.map_err(|failure| self.watch.group_error(Operation::Split, failure))?;
        let choices = self.exchange_split_choices(call.sequence, SplitChoice { color, key });
        self.watch.lock_state().log.cancel_current();
        let choices = choices?;
        let (Some(color), Some(members)) = (color, split::subgroup_members(&choices, self.membership.rank))
        else {
            return Ok(None);
        };
        let membership = self.membership.for_subgroup(&members, clock::after(self.membership.timeout));
        // A wait on a connection of its own does not delay this group.
        let own = |store: &TcpStore| store.with_own_connection(rendezvous::VERDICT_TIMEOUT);
        let store = self.store.as_ref().filter(|_| membership.world_size != WorldSize::ONE);
        let store = store.map(own).transpose()?;
        let store = store.map(|store| store.with_prefix(&format!("split {}/{color}", call.sequence)));
        Ok(Some(Box::new(Self::connect(self.nccl.clone(), membership, store)?)))
    }

    #[expect(unsafe_code, reason = "the caller vouches for the stream")]
    unsafe fn synchronize(&mut self, stream: Stream) -> Result<(), GroupError> {
        let driver = cuda::driver()?;
        let (mut polls, never) = (0, clock::after(Duration::MAX));
        loop {
            self.watch.check()?;
            // SAFETY: the caller's promise. The watch ends this loop after a failure.
            match unsafe { driver.query_stream(stream.0) } {
                Ok(Query::Pending) => super::communicator::pause_between_polls(&mut polls, never),
                Ok(Query::Done) => break,
                Err(error) => {
                    let failure = self.watch.report_error(error.to_string());
                    let operation = self.watch.lock_state().failed_in;
                    return Err(self.watch.group_error(operation, failure));
                }
            }
        }
        // An abort empties the stream as well.
        self.watch.check()?;
        self.watch.lock_state().log.forget_stream(stream);
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(mut link) = self.link.take() {
            self.watch.lock_state().log.mark_all_streams();
            link.leave();
        }
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.watch.lock_state().log.mark_all_streams();
            dropped_groups::keep_or_leave(Box::new(link));
        }
    }
}

impl DroppedGroup for Link {
    fn leave(&mut self) {
        self.has_left = true;
        self.watch.shut_down(LeaveKind::Announced);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.has_left {
            let leave_kind = if thread::panicking() { LeaveKind::Silent } else { LeaveKind::Announced };
            self.watch.shut_down(leave_kind);
        }
    }
}
