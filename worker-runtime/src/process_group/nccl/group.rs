//! A process group on NCCL: numbers and checks calls, puts them on streams, and is watched over.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

use super::calls::{Nccl, NcclError};
use super::communicator::Communicator;
use super::join;
use super::ops::Calls;
use super::watch::{Farewell, Watch};
use crate::context::WorkerContext;
use crate::cuda::{Query, Scratch};
use crate::process_group::collective::{Collective, HostCollective};
use crate::process_group::device::{DeviceCollective, DeviceMemory, Stream};
use crate::process_group::element::{DataType, Reduction};
use crate::process_group::error::{Ending, GroupError, MemoryKind};
use crate::process_group::meet::{self, Seat};
use crate::process_group::message::{Call, Operation};
use crate::process_group::nccl::numbers::Numbers;
use crate::process_group::parting::{self, Part};
use crate::process_group::plan::Wish;
use crate::process_group::split::{self, Choice};
use crate::process_group::{Backend, GroupOptions, ProcessGroup};
use crate::store::{StoreError, TcpStore};
use crate::{clock, cuda};

/// Between two looks whether the group goes on, while its ranks say how it is split.
const LOOK: Duration = Duration::from_millis(50);

/// Ranks on NVIDIA's GPUs, one each.
///
/// Calls on device memory are asynchronous: they return once they are on their stream. What goes wrong later is the result of the
/// next call, or of [`wait`](ProcessGroup::wait); work that can never be done is taken off the streams, so that nobody who
/// waits for one of them waits for ever.
///
/// The group's timeout holds for a call from its beginning until it is done on the device, with all that is before it on its
/// stream, and what is put there within milliseconds after it.
#[derive(Debug)]
pub struct NcclGroup {
    nccl: Nccl,
    seat: Seat,
    /// Where the ranks meet; none in a world of one.
    store: Option<TcpStore>,
    numbers: Numbers,
    /// An element for barriers.
    scratch: Scratch,
    watch: Arc<Watch>,
    /// `None` once it was given away.
    link: Option<Link>,
}

/// A communicator and its watch.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) communicator: Communicator,
    pub(super) watch: Arc<Watch>,
    pub(super) is_parted: bool,
}

impl NcclGroup {
    /// Joins the group of all ranks of the job on the current CUDA device of this thread; returns when all are there.
    /// `library` is NCCL's file, where it is not to be looked for (see [`Nccl::load`]).
    ///
    /// # Errors
    /// There is no NCCL, no CUDA, or no current device; the store cannot be reached; a rank is missing: it is named.
    pub fn join(
        context: &WorkerContext,
        options: &GroupOptions,
        library: Option<&Path>,
    ) -> Result<Self, GroupError> {
        let nccl = Nccl::load(library)?;
        cuda::cuda_available()?;
        cuda::driver()?.current_context()?;
        let (seat, store) = meet::enter(context, options, Wish::Nccl)?;
        Self::connect(nccl, seat, store)
    }

    fn connect(nccl: Nccl, seat: Seat, store: Option<TcpStore>) -> Result<Self, GroupError> {
        let scratch = cuda::driver()?.allocate(size_of::<u64>())?;
        let link = join::join(&nccl, &seat, store.as_ref())?;
        let (watch, numbers) = (Arc::clone(&link.watch), Numbers::new(seat.world_size));
        Ok(Self { nccl, seat, store, numbers, scratch, watch, link: Some(link) })
    }

    /// The communicator, for calls that this type does not have. Nobody watches over what is done with it.
    #[must_use]
    pub fn communicator(&self) -> Option<&Communicator> {
        self.link.as_ref().map(|link| &link.communicator)
    }

    /// Several calls that advance together, so that two ranks can send to each other.
    ///
    /// # Safety
    /// As [`run_on_device`](ProcessGroup::run_on_device), for each.
    ///
    /// # Errors
    /// As [`run_on_device`](ProcessGroup::run_on_device).
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    pub unsafe fn run_grouped(
        &mut self,
        works: &[(DataType, DeviceCollective<'_>)],
        stream: Stream,
    ) -> Result<(), GroupError> {
        let Seat { rank, world_size, .. } = self.seat;
        works.iter().try_for_each(|(data_type, work)| work.check(*data_type, rank, world_size))?;
        let Some((_, first)) = works.first() else { return Ok(()) };
        let operation = first.operation();
        for (data_type, work) in works {
            let (call, is_of_all) = self.numbers.number(work.call(*data_type));
            self.watch.begin(call, is_of_all).map_err(|ending| self.watch.ended(operation, ending))?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.put(operation, works, stream) }
    }

    /// What all ranks say when the group is split, through the store; the watch ends it where a rank does not.
    fn exchange(&self, sequence: u64, own: Choice) -> Result<Vec<Choice>, GroupError> {
        let Some(store) = &self.store else { return Ok(vec![own]) };
        let store = store.with_own_connection(meet::VERDICT_TIMEOUT)?;
        let key = |rank: u32| format!("choices {sequence}/{rank}");
        let [color, order] = own.encode();
        store.set(&key(self.seat.rank.0), format!("{color} {order}").as_bytes())?;
        let keys: Vec<String> = (0..self.seat.world_size.get()).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        loop {
            match store.wait(&keys, LOOK) {
                Err(StoreError::WaitTimeout { .. }) => self.watch.check()?,
                result => break result?,
            }
        }
        let parse = |(key, value): (&&str, Vec<u8>)| {
            let text = String::from_utf8_lossy(&value);
            let numbers = text.split_once(' ').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
            numbers.map(Choice::decode).ok_or_else(|| GroupError::strange_entry(key, &value))
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
        let ended = |ending: Ending| self.watch.ended(operation, ending);
        let Some(link) = &self.link else {
            return Err(GroupError::Nccl(NcclError::Aborted { function: "ncclCommGetAsyncError" }));
        };
        // SAFETY: the caller's promise.
        let all =
            |calls: &Calls<'_>| works.iter().try_for_each(|work| unsafe { self.issue(calls, work, stream) });
        let is_one = matches!(works, [(_, work)] if is_single(work));
        let result = if is_one { link.communicator.call(all) } else { link.communicator.group(all) };
        result.map_err(|error| ended(self.watch.fail(error.to_string())))?;
        // SAFETY: the caller's promise.
        let marked = unsafe { self.watch.locked().log.put_on(stream) };
        marked.map_err(|error| ended(self.watch.fail(error.to_string())))
    }

    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn issue(
        &self,
        calls: &Calls<'_>,
        (data_type, work): &(DataType, DeviceCollective<'_>),
        stream: Stream,
    ) -> Result<(), NcclError> {
        let kind = *data_type;
        // SAFETY: memory and stream are the caller's promise; lengths were checked (`Collective::check`).
        unsafe {
            match work {
                Collective::Barrier => {
                    let all = DeviceMemory { address: self.scratch.address, bytes: self.scratch.bytes };
                    calls.all_reduce((DataType::I64, Reduction::Max), all, all, stream)
                }
                Collective::Broadcast { data, root } => calls.broadcast(kind, *data, *root, stream),
                Collective::AllReduce { data, how } => calls.all_reduce((kind, *how), *data, *data, stream),
                Collective::Reduce { data, how, root } => calls.reduce((kind, *how), *data, *root, stream),
                Collective::ReduceScatter { input, output, how } => {
                    calls.reduce_scatter((kind, *how), *input, *output, stream)
                }
                Collective::AllGather { input, output } => calls.all_gather(kind, *input, *output, stream),
                Collective::Send { data, to } => calls.send(kind, *data, *to, stream),
                Collective::Receive { data, from } => calls.receive(kind, *data, *from, stream),
                // These are made of transfers, which the group ties together.
                Collective::Gather { input, output, counts, root } => {
                    calls.send(kind, *input, *root, stream)?;
                    let Some(output) = output else { return Ok(()) };
                    parts(*output, kind, counts)
                        .try_for_each(|(rank, part)| calls.receive(kind, part, rank, stream))
                }
                Collective::Scatter { input, output, counts, root } => {
                    if let Some(input) = input {
                        parts(*input, kind, counts)
                            .try_for_each(|(rank, part)| calls.send(kind, part, rank, stream))?;
                    }
                    calls.receive(kind, *output, *root, stream)
                }
            }
        }
    }
}

/// Whether NCCL has it as one call.
fn is_single(work: &DeviceCollective<'_>) -> bool {
    !matches!(work.operation(), Operation::Gather | Operation::Scatter)
}

/// The part of each rank.
fn parts(
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
        self.seat.rank
    }

    fn world_size(&self) -> WorldSize {
        self.seat.world_size
    }

    fn backend(&self) -> Backend {
        Backend::Nccl
    }

    fn run(&mut self, _data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        let HostCollective::Barrier = work else {
            let (operation, backend) = (work.operation(), Backend::Nccl);
            return Err(GroupError::WrongMemory { operation, backend, given: MemoryKind::Host });
        };
        let stream = Stream(std::ptr::null_mut());
        // SAFETY: a barrier has no memory but the group's own, and the default stream is always there.
        #[expect(unsafe_code, reason = "a barrier without the caller's memory")]
        unsafe {
            self.run_on_device(DataType::None, Collective::Barrier, stream)?;
            self.wait(stream)
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
        parting::go_on();
        let call = Call { operation: Operation::Split, ..HostCollective::Barrier.call(DataType::None) };
        let (call, _) = self.numbers.number(call);
        let begun = self.watch.begin(call, true);
        begun.map_err(|ending| self.watch.ended(Operation::Split, ending))?;
        let choices = self.exchange(call.sequence, Choice { color, key });
        self.watch.locked().log.give_up();
        let choices = choices?;
        let (Some(color), Some(members)) = (color, split::members(&choices, self.seat.rank)) else {
            return Ok(None);
        };
        let seat = self.seat.within(&members, clock::after(self.seat.timeout));
        // What waits there holds up nothing of this group.
        let own = |store: &TcpStore| store.with_own_connection(meet::VERDICT_TIMEOUT);
        let store = self.store.as_ref().filter(|_| seat.world_size != WorldSize::ONE);
        let store = store.map(own).transpose()?;
        let store = store.map(|store| store.with_prefix(&format!("split {}/{color}", call.sequence)));
        Ok(Some(Box::new(Self::connect(self.nccl.clone(), seat, store)?)))
    }

    #[expect(unsafe_code, reason = "the caller vouches for the stream")]
    unsafe fn wait(&mut self, stream: Stream) -> Result<(), GroupError> {
        let driver = cuda::driver()?;
        let (mut looks, never) = (0, clock::after(Duration::MAX));
        loop {
            self.watch.check()?;
            // SAFETY: the caller's promise. The watch sees to it that this comes to an end.
            match unsafe { driver.query_stream(stream.0) } {
                Ok(Query::Pending) => super::communicator::pause(&mut looks, never),
                Ok(Query::Done) => break,
                Err(error) => {
                    let ending = self.watch.fail(error.to_string());
                    let operation = self.watch.locked().ended_in;
                    return Err(self.watch.ended(operation, ending));
                }
            }
        }
        // An abort empties the stream too.
        self.watch.check()?;
        self.watch.locked().log.forget(stream);
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(mut link) = self.link.take() {
            self.watch.locked().log.let_go();
            link.leave();
        }
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.watch.locked().log.let_go();
            parting::take(Box::new(link));
        }
    }
}

impl Part for Link {
    fn leave(&mut self) {
        self.is_parted = true;
        self.watch.part(Farewell::Left);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.is_parted {
            let farewell = if thread::panicking() { Farewell::Silent } else { Farewell::Left };
            self.watch.part(farewell);
        }
    }
}
