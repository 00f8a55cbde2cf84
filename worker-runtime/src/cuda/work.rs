//! Contexts, streams, events and memory: what orders work on a device, and tells whether it is done.
#![expect(unsafe_code, reason = "calls into the driver's library")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::driver::{CudaMissing, Driver, SUCCESS};
use crate::process_group::DeviceMemory;

const NOT_READY: c_int = 600;
const CAPTURED: c_int = 907;
/// An event does not time anything: it is cheaper then.
const DISABLE_TIMING: c_uint = 2;

/// Whether work on a stream is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Query {
    /// It is.
    Done,
    /// Not yet.
    Pending,
}

/// A context of a thread, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: a context is the driver's own handle, which any thread may make its current one.
unsafe impl Send for Context {}

/// A mark on a stream. Owned: it is destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Event {
    driver: &'static Driver,
    handle: *mut c_void,
}

// SAFETY: the driver's calls on events may come from any thread, and we make one at a time.
unsafe impl Send for Event {}

/// A stream of our own, beside those of the program. Owned: when it is dropped, what is on it is still done.
#[derive(Debug)]
pub(crate) struct OwnStream {
    driver: &'static Driver,
    handle: *mut c_void,
}

// SAFETY: the driver's calls on streams may come from any thread.
unsafe impl Send for OwnStream {}

/// A few bytes of device memory. They are never freed: that would wait for all work of the device, for ever where it hangs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

impl Driver {
    /// The current context of this thread.
    pub(crate) fn context(&self) -> Result<Context, CudaMissing> {
        let mut context = ptr::null_mut();
        // SAFETY: the pointer lives through the call.
        let code = unsafe { (self.calls.get_context)(&raw mut context) };
        self.check("cuCtxGetCurrent", code).map(|()| Context(context))
    }

    /// The current context of this thread, which there must be.
    pub(crate) fn current_context(&self) -> Result<Context, CudaMissing> {
        let context = self.context()?;
        if context.0.is_null() { Err(CudaMissing::NoContext) } else { Ok(context) }
    }

    /// Lets this thread look at events while another one captures a stream (CUDA graphs), which a look would spoil otherwise.
    pub(crate) fn relax_captures(&self) {
        const RELAXED: c_int = 2;
        if let Some(exchange) = self.calls.exchange_capture_mode {
            let mut mode = RELAXED;
            // SAFETY: the number lives through the call. It fails only where there is no context, and then nothing is captured.
            unsafe { exchange(&raw mut mode) };
        }
    }

    /// Makes it the current one of this thread; without one the libraries choose as in a fresh thread.
    pub(crate) fn enter(&self, context: Context) -> Result<(), CudaMissing> {
        if context.0.is_null() {
            return Ok(());
        }
        // SAFETY: the handle came from the driver; a context that is gone since is an error, and no more.
        self.check("cuCtxSetCurrent", unsafe { (self.calls.set_context)(context.0) })
    }

    /// An event in the current context of this thread.
    pub(crate) fn event(&'static self) -> Result<Event, CudaMissing> {
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer lives through the call.
        let code = unsafe { (self.calls.create_event)(&raw mut handle, DISABLE_TIMING) };
        self.check("cuEventCreate", code).map(|()| Event { driver: self, handle })
    }

    /// A stream in the current context of this thread, which waits for no other one.
    pub(crate) fn stream(&'static self) -> Result<OwnStream, CudaMissing> {
        const NON_BLOCKING: c_uint = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer lives through the call.
        let code = unsafe { (self.calls.create_stream)(&raw mut handle, NON_BLOCKING) };
        self.check("cuStreamCreate", code).map(|()| OwnStream { driver: self, handle })
    }

    /// Puts zeros into memory, in the order of a stream.
    ///
    /// # Safety
    /// The memory is the caller's until the stream has done it; `stream` is a stream of this process that is still there.
    pub(crate) unsafe fn zero(&self, memory: DeviceMemory, stream: *mut c_void) -> Result<(), CudaMissing> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.calls.fill)(memory.address, 0, memory.bytes, stream) };
        self.check("cuMemsetD8Async", code)
    }

    /// Some bytes of the device, whatever is in them.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Scratch, CudaMissing> {
        let mut address = 0;
        // SAFETY: the number lives through the call.
        let code = unsafe { (self.calls.allocate)(&raw mut address, bytes) };
        self.check("cuMemAlloc", code).map(|()| Scratch { address, bytes })
    }

    /// Whether all work on a stream is done.
    ///
    /// # Safety
    /// `stream` is a stream of this process that is still there.
    pub(crate) unsafe fn query_stream(&self, stream: *mut c_void) -> Result<Query, CudaMissing> {
        // SAFETY: the stream is the caller's promise.
        self.query("cuStreamQuery", unsafe { (self.calls.query_stream)(stream) })
    }

    fn query(&self, function: &'static str, code: i32) -> Result<Query, CudaMissing> {
        match code {
            SUCCESS => Ok(Query::Done),
            NOT_READY => Ok(Query::Pending),
            // What is being captured is not under way; the graph is its owner's to watch.
            CAPTURED => Ok(Query::Done),
            code => self.check(function, code).map(|()| Query::Done),
        }
    }
}

impl Event {
    /// Marks what is on the stream now.
    ///
    /// # Safety
    /// `stream` is a stream of the context of the event that is still there.
    pub(crate) unsafe fn record(&self, stream: *mut c_void) -> Result<(), CudaMissing> {
        // SAFETY: the event is ours, the stream the caller's promise.
        let code = unsafe { (self.driver.calls.record_event)(self.handle, stream) };
        self.driver.check("cuEventRecord", code)
    }

    /// Lets a stream wait until what was marked last is done: all that is put on it from now on comes after that.
    ///
    /// # Safety
    /// As [`record`](Self::record).
    pub(crate) unsafe fn hold(&self, stream: *mut c_void) -> Result<(), CudaMissing> {
        // SAFETY: the event is ours, the stream the caller's promise.
        let code = unsafe { (self.driver.calls.wait_event)(stream, self.handle, 0) };
        self.driver.check("cuStreamWaitEvent", code)
    }

    /// Whether what was marked last is done.
    pub(crate) fn query(&self) -> Result<Query, CudaMissing> {
        // SAFETY: the event is ours.
        self.driver.query("cuEventQuery", unsafe { (self.driver.calls.query_event)(self.handle) })
    }
}

impl OwnStream {
    pub(crate) fn raw(&self) -> *mut c_void {
        self.handle
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: the stream is ours and not used again; one with work on it is destroyed once that is done.
        unsafe { (self.driver.calls.destroy_stream)(self.handle) };
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is ours and not used again; one that is pending is destroyed once it is done.
        unsafe { (self.driver.calls.destroy_event)(self.handle) };
    }
}
