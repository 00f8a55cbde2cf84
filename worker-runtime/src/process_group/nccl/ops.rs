//! The collective calls of a communicator, on raw device memory and a raw stream.
#![expect(unsafe_code, reason = "calls into a foreign library, on memory of a device")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::MutexGuard;

use rankrun_contract::rank::{Rank, WorldSize};

use super::communicator::int;
use super::library::{Nccl, NcclError};
use super::symbols::{Code, Handle, IN_PROGRESS};
use crate::process_group::device::{DeviceMemory, Stream};
use crate::process_group::element::{DataType, ReduceOp};

/// Access to the library with a communicator, for one thread at a time. No call begins after an abort.
///
/// All calls are asynchronous: they enqueue work on a stream, and memory must stay valid
/// and unchanged until that is done.
pub struct NcclCalls<'a> {
    nccl: &'a Nccl,
    handle: Handle,
    /// The function that returned `ncclInProgress`.
    in_progress: Cell<Option<&'static str>>,
    _inside: MutexGuard<'a, ()>,
}

impl<'a> NcclCalls<'a> {
    pub(super) fn new(nccl: &'a Nccl, handle: Handle, inside: MutexGuard<'a, ()>) -> Self {
        Self { nccl, handle, in_progress: Cell::new(None), _inside: inside }
    }

    /// NCCL's own `ncclComm_t`, for functions that this type does not have. It is
    /// valid as long as this value.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    pub(super) fn in_progress_function(&self) -> Option<&'static str> {
        self.in_progress.get()
    }

    /// Reduces `input` over all ranks into `output`, on all ranks; both may be the same memory.
    ///
    /// # Safety
    /// Both are memory of the communicator's device, and `stream` is a stream of it. All stay valid until the
    /// work on the stream is done.
    ///
    /// # Errors
    /// NCCL's own error, or a wrong length; so for all calls.
    pub unsafe fn all_reduce(
        &self,
        (data_type, op): (DataType, ReduceOp),
        input: DeviceMemory,
        output: DeviceMemory,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclAllReduce";
        check_length(FUNCTION, input.bytes, output.bytes)?;
        let (count, kind) = element_count(FUNCTION, data_type, input.bytes)?;
        let (from, to) = (input.address, output.address);
        // SAFETY: the handle is that of a living communicator, and we alone are inside; memory and stream are the caller's
        // promise.
        let code = unsafe {
            (self.nccl.symbols().all_reduce)(from, to, count, kind, nccl_red_op(op), self.handle, stream.0)
        };
        self.check_progress(FUNCTION, code)
    }

    /// Overwrites `data` on every rank with `data` of the root.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn broadcast(
        &self,
        data_type: DataType,
        data: DeviceMemory,
        root: Rank,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclBroadcast";
        let (count, kind) = element_count(FUNCTION, data_type, data.bytes)?;
        let at = data.address;
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.nccl.symbols().broadcast)(at, at, count, kind, int(root.0), self.handle, stream.0)
        };
        self.check_progress(FUNCTION, code)
    }

    /// Reduces `data` over all ranks into `data` of the root. On other ranks it is unchanged.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce(
        &self,
        (data_type, op): (DataType, ReduceOp),
        data: DeviceMemory,
        root: Rank,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclReduce";
        let (count, kind) = element_count(FUNCTION, data_type, data.bytes)?;
        let (at, root) = (data.address, int(root.0));
        let reduce = self.nccl.symbols().reduce;
        // SAFETY: as in `all_reduce`; only the root writes.
        let code = unsafe { reduce(at, at, count, kind, nccl_red_op(op), root, self.handle, stream.0) };
        self.check_progress(FUNCTION, code)
    }

    /// Reduces the inputs over all ranks and stores part `rank` of the result in `output`.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce); `input` holds one part for each rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(
        &self,
        (data_type, op): (DataType, ReduceOp),
        input: DeviceMemory,
        output: DeviceMemory,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclReduceScatter";
        let (count, kind) = element_count(FUNCTION, data_type, output.bytes)?;
        let (from, to, op) = (input.address, output.address, nccl_red_op(op));
        let reduce_scatter = self.nccl.symbols().reduce_scatter;
        // SAFETY: as in `all_reduce`.
        let code = unsafe { reduce_scatter(from, to, count, kind, op, self.handle, stream.0) };
        self.check_progress(FUNCTION, code)
    }

    /// Concatenates the inputs of all ranks in rank order into `output`.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce); `output` holds one part for each rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_gather(
        &self,
        data_type: DataType,
        input: DeviceMemory,
        output: DeviceMemory,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclAllGather";
        let (count, kind) = element_count(FUNCTION, data_type, input.bytes)?;
        let (from, to) = (input.address, output.address);
        // SAFETY: as in `all_reduce`.
        let code = unsafe { (self.nccl.symbols().all_gather)(from, to, count, kind, self.handle, stream.0) };
        self.check_progress(FUNCTION, code)
    }

    /// Sends `data` to one rank, which receives the same number of bytes.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn send(
        &self,
        data_type: DataType,
        data: DeviceMemory,
        to: Rank,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclSend";
        let (count, kind) = element_count(FUNCTION, data_type, data.bytes)?;
        let send = self.nccl.symbols().send;
        // SAFETY: as in `all_reduce`.
        let code = unsafe { send(data.address, count, kind, int(to.0), self.handle, stream.0) };
        self.check_progress(FUNCTION, code)
    }

    /// Receives from one rank, which sends the same number of bytes.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn receive(
        &self,
        data_type: DataType,
        data: DeviceMemory,
        from: Rank,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclRecv";
        let (count, kind) = element_count(FUNCTION, data_type, data.bytes)?;
        let receive = self.nccl.symbols().receive;
        // SAFETY: as in `all_reduce`.
        let code = unsafe { receive(data.address, count, kind, int(from.0), self.handle, stream.0) };
        self.check_progress(FUNCTION, code)
    }

    /// Makes the calls within as one group.
    pub(super) fn group<R>(&self, calls: impl FnOnce(&Self) -> Result<R, NcclError>) -> Result<R, NcclError> {
        /// Closes the thread's open group on every way out.
        struct Open<'a>(&'a Nccl);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                // SAFETY: a group is open. After an error in it this call fails too, with nothing new.
                unsafe { (self.0.symbols().group_end)() };
            }
        }
        // SAFETY: it affects this thread only.
        self.nccl.check("ncclGroupStart", unsafe { (self.nccl.symbols().group_start)() })?;
        let open = Open(self.nccl);
        let result = calls(self)?;
        std::mem::forget(open);
        // SAFETY: a group is open.
        let code = unsafe { (self.nccl.symbols().group_end)() };
        self.check_progress("ncclGroupEnd", code).map(|()| result)
    }

    pub(super) fn async_error(&self) -> Result<Code, NcclError> {
        let mut state = 0;
        // SAFETY: the handle is that of a living communicator, and the number lives through the call.
        let code = unsafe { (self.nccl.symbols().get_async_error)(self.handle, &raw mut state) };
        self.nccl.check("ncclCommGetAsyncError", code).map(|()| state)
    }

    pub(super) fn finalize(&self) -> Result<(), NcclError> {
        // SAFETY: the handle is that of a living communicator, and we alone are inside.
        self.nccl.check("ncclCommFinalize", unsafe { (self.nccl.symbols().finalize)(self.handle) })
    }

    /// The rank of this process and the number of ranks.
    pub(super) fn rank_and_world_size(&self) -> Result<(Rank, WorldSize), NcclError> {
        let (mut rank, mut count) = (0, 0);
        // SAFETY: as in `async_error`.
        let code = unsafe { (self.nccl.symbols().user_rank)(self.handle, &raw mut rank) };
        self.nccl.check("ncclCommUserRank", code)?;
        // SAFETY: as in `async_error`.
        let code = unsafe { (self.nccl.symbols().count)(self.handle, &raw mut count) };
        self.nccl.check("ncclCommCount", code)?;
        let world_size = u32::try_from(count).ok().and_then(WorldSize::new).unwrap_or(WorldSize::ONE);
        Ok((Rank(u32::try_from(rank).unwrap_or(u32::MAX)), world_size))
    }

    fn check_progress(&self, function: &'static str, code: Code) -> Result<(), NcclError> {
        if code == IN_PROGRESS {
            self.in_progress.set(Some(function));
        }
        self.nccl.check(function, code)
    }
}

/// The number of elements, and NCCL's code of their type.
fn element_count(
    function: &'static str,
    data_type: DataType,
    bytes: usize,
) -> Result<(usize, c_int), NcclError> {
    let size = data_type.size().max(1);
    // NCCL would drop part of an element in silence.
    check_length(function, bytes / size * size, bytes)?;
    let kind = match data_type {
        // Without elements any type will do.
        DataType::U8 | DataType::None => 1,
        DataType::I32 => 2,
        DataType::I64 => 4,
        DataType::F16 => 6,
        DataType::F32 => 7,
        DataType::F64 => 8,
        DataType::Bf16 => 9,
    };
    Ok((bytes / size, kind))
}

fn check_length(function: &'static str, expected: usize, actual: usize) -> Result<(), NcclError> {
    if expected == actual { Ok(()) } else { Err(NcclError::Length { function, expected, actual }) }
}

/// `ncclRedOp_t`.
fn nccl_red_op(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
    }
}
