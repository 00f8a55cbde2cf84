//! The collective calls of a communicator, on raw memory and a raw stream.
#![expect(unsafe_code, reason = "calls into a foreign library, on memory of a device")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::MutexGuard;

use rankrun_contract::rank::{Rank, WorldSize};

use super::calls::{Nccl, NcclError};
use super::communicator::int;
use super::symbols::{Code, Handle, IN_PROGRESS};
use crate::process_group::device::{DeviceMemory, Stream};
use crate::process_group::element::{DataType, Reduction};

/// A thread that is inside the library with a communicator. While it is, nobody else is; no call begins after an abort.
///
/// All calls are asynchronous: they put work on a stream, and memory must stay as it is until that is done.
pub struct Calls<'a> {
    nccl: &'a Nccl,
    handle: Handle,
    /// The function that returned before it was done.
    goes_on: Cell<Option<&'static str>>,
    _inside: MutexGuard<'a, ()>,
}

impl<'a> Calls<'a> {
    pub(super) fn new(nccl: &'a Nccl, handle: Handle, inside: MutexGuard<'a, ()>) -> Self {
        Self { nccl, handle, goes_on: Cell::new(None), _inside: inside }
    }

    /// NCCL's own `ncclComm_t`, for functions that this type does not have. It is good as long as this value is.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    pub(super) fn goes_on(&self) -> Option<&'static str> {
        self.goes_on.get()
    }

    /// `output` becomes the reduction of all inputs, on all ranks; both may be the same memory.
    ///
    /// # Safety
    /// Both are memory of the communicator's device, for as long as the work on `stream` takes; `stream` is a stream of this
    /// device, and stays until then.
    ///
    /// # Errors
    /// NCCL's own, or a length that does not fit; so for all calls.
    pub unsafe fn all_reduce(
        &self,
        (data_type, how): (DataType, Reduction),
        input: DeviceMemory,
        output: DeviceMemory,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclAllReduce";
        same(FUNCTION, input.bytes, output.bytes)?;
        let (count, kind) = elements(FUNCTION, data_type, input.bytes)?;
        let (from, to) = (input.address, output.address);
        // SAFETY: the handle is that of a living communicator, and we alone are inside; memory and stream are the caller's
        // promise.
        let code = unsafe {
            (self.nccl.symbols().all_reduce)(from, to, count, kind, operator(how), self.handle, stream.0)
        };
        self.took(FUNCTION, code)
    }

    /// `data` becomes the root's.
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
        let (count, kind) = elements(FUNCTION, data_type, data.bytes)?;
        let at = data.address;
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.nccl.symbols().broadcast)(at, at, count, kind, int(root.0), self.handle, stream.0)
        };
        self.took(FUNCTION, code)
    }

    /// `data` becomes the reduction over all ranks on the root; elsewhere it stays what it is.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce(
        &self,
        (data_type, how): (DataType, Reduction),
        data: DeviceMemory,
        root: Rank,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclReduce";
        let (count, kind) = elements(FUNCTION, data_type, data.bytes)?;
        let (at, root) = (data.address, int(root.0));
        let reduce = self.nccl.symbols().reduce;
        // SAFETY: as in `all_reduce`; only the root writes.
        let code = unsafe { reduce(at, at, count, kind, operator(how), root, self.handle, stream.0) };
        self.took(FUNCTION, code)
    }

    /// `output` becomes this rank's part of the reduction of all inputs.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce); `input` holds as many parts as there are ranks.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(
        &self,
        (data_type, how): (DataType, Reduction),
        input: DeviceMemory,
        output: DeviceMemory,
        stream: Stream,
    ) -> Result<(), NcclError> {
        const FUNCTION: &str = "ncclReduceScatter";
        let (count, kind) = elements(FUNCTION, data_type, output.bytes)?;
        let (from, to, how) = (input.address, output.address, operator(how));
        let reduce_scatter = self.nccl.symbols().reduce_scatter;
        // SAFETY: as in `all_reduce`.
        let code = unsafe { reduce_scatter(from, to, count, kind, how, self.handle, stream.0) };
        self.took(FUNCTION, code)
    }

    /// `output` becomes the inputs of all ranks one after another.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce); `output` holds as many parts as there are ranks.
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
        let (count, kind) = elements(FUNCTION, data_type, input.bytes)?;
        let (from, to) = (input.address, output.address);
        // SAFETY: as in `all_reduce`.
        let code = unsafe { (self.nccl.symbols().all_gather)(from, to, count, kind, self.handle, stream.0) };
        self.took(FUNCTION, code)
    }

    /// Sends `data` to one rank, which receives as much.
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
        let (count, kind) = elements(FUNCTION, data_type, data.bytes)?;
        let send = self.nccl.symbols().send;
        // SAFETY: as in `all_reduce`.
        let code = unsafe { send(data.address, count, kind, int(to.0), self.handle, stream.0) };
        self.took(FUNCTION, code)
    }

    /// Receives from one rank, which sends as much.
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
        let (count, kind) = elements(FUNCTION, data_type, data.bytes)?;
        let receive = self.nccl.symbols().receive;
        // SAFETY: as in `all_reduce`.
        let code = unsafe { receive(data.address, count, kind, int(from.0), self.handle, stream.0) };
        self.took(FUNCTION, code)
    }

    /// Makes the calls within as one.
    pub(super) fn group<R>(&self, calls: impl FnOnce(&Self) -> Result<R, NcclError>) -> Result<R, NcclError> {
        /// NCCL's group is the thread's: it is closed on every way out.
        struct Open<'a>(&'a Nccl);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                // SAFETY: a group is open. After an error in it this one fails too, and says nothing new.
                unsafe { (self.0.symbols().group_end)() };
            }
        }
        // SAFETY: it concerns this thread alone.
        self.nccl.check("ncclGroupStart", unsafe { (self.nccl.symbols().group_start)() })?;
        let open = Open(self.nccl);
        let result = calls(self)?;
        std::mem::forget(open);
        // SAFETY: a group is open.
        let code = unsafe { (self.nccl.symbols().group_end)() };
        self.took("ncclGroupEnd", code).map(|()| result)
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

    /// Which rank of how many this is.
    pub(super) fn place(&self) -> Result<(Rank, WorldSize), NcclError> {
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

    fn took(&self, function: &'static str, code: Code) -> Result<(), NcclError> {
        if code == IN_PROGRESS {
            self.goes_on.set(Some(function));
        }
        self.nccl.check(function, code)
    }
}

/// How many elements there are, and NCCL's number of their type.
fn elements(function: &'static str, data_type: DataType, bytes: usize) -> Result<(usize, c_int), NcclError> {
    let size = data_type.size().max(1);
    // A part of an element would be left out without a word.
    same(function, bytes / size * size, bytes)?;
    let kind = match data_type {
        // Bytes are as good as any: there are none.
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

fn same(function: &'static str, expected: usize, given: usize) -> Result<(), NcclError> {
    if expected == given { Ok(()) } else { Err(NcclError::Length { function, expected, given }) }
}

/// `ncclRedOp_t`.
fn operator(how: Reduction) -> c_int {
    match how {
        Reduction::Sum => 0,
        Reduction::Product => 1,
        Reduction::Max => 2,
        Reduction::Min => 3,
        Reduction::Mean => 4,
    }
}
