//! Contexts, streams, events and memory of the driver: they order work on a device
//! and tell whether it is done.
#![expect(unsafe_code, reason = "calls into the driver's library")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::driver::{CudaMissing, Driver, SUCCESS};
use crate::process_group::DeviceMemory;

const NOT_READY: c_int = 600;
const CAPTURED: c_int = 907;
/// Events without timing are cheaper.
const DISABLE_TIMING: c_uint = 2;

/// State of work on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Query {
    /// All work is done.
    Done,
    /// Some work is not done.
    Pending,
}

/// The context of a thread, which may be null.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: a context is a handle of the driver, and any thread may make it current.
unsafe impl Send for Context {}

/// A mark on a stream, destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Event {
    driver: &'static Driver,
    handle: *mut c_void,
}

// SAFETY: any thread may call the driver with an event, and the owner makes one call at a time.
unsafe impl Send for Event {}

/// A stream beside those of the program, destroyed when dropped; its work is still done.
#[derive(Debug)]
pub(crate) struct OwnStream {
    driver: &'static Driver,
    handle: *mut c_void,
}

// SAFETY: any thread may call the driver with a stream.
unsafe impl Send for OwnStream {}

/// A few bytes of device memory. They are never freed: that would wait for all work
/// of the device, which may hang.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

impl Driver {
    /// The context of this thread, which may be null.
    pub(crate) fn context(&self) -> Result<Context, CudaMissing> {
        let mut context = ptr::null_mut();
        // SAFETY: the pointer lives through the call.
        let code = unsafe { (self.calls.get_context)(&raw mut context) };
        self.check("cuCtxGetCurrent", code).map(|()| Context(context))
    }

    /// The context of this thread; an error if it is null.
    pub(crate) fn current_context(&self) -> Result<Context, CudaMissing> {
        let context = self.context()?;
        if context.0.is_null() { Err(CudaMissing::NoContext) } else { Ok(context) }
    }

    /// Lets this thread query events while another one captures a stream (CUDA graphs); otherwise
    /// the query would invalidate the capture.
    pub(crate) fn relax_captures(&self) {
        const RELAXED: c_int = 2;
        if let Some(exchange) = self.calls.exchange_capture_mode {
            let mut mode = RELAXED;
            // SAFETY: the number lives through the call. It fails without a context, and then nothing is
            // captured.
            unsafe { exchange(&raw mut mode) };
        }
    }

    /// Makes the context current in this thread, unless it is null.
    pub(crate) fn enter(&self, context: Context) -> Result<(), CudaMissing> {
        if context.0.is_null() {
            return Ok(());
        }
        // SAFETY: the handle came from the driver, which returns an error for a destroyed context.
        self.check("cuCtxSetCurrent", unsafe { (self.calls.set_context)(context.0) })
    }

    /// Makes an event in the current context of this thread.
    pub(crate) fn event(&'static self) -> Result<Event, CudaMissing> {
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer lives through the call.
        let code = unsafe { (self.calls.create_event)(&raw mut handle, DISABLE_TIMING) };
        self.check("cuEventCreate", code).map(|()| Event { driver: self, handle })
    }

    /// Makes a stream in the current context of this thread that does not wait for the default stream.
    pub(crate) fn stream(&'static self) -> Result<OwnStream, CudaMissing> {
        const NON_BLOCKING: c_uint = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer lives through the call.
        let code = unsafe { (self.calls.create_stream)(&raw mut handle, NON_BLOCKING) };
        self.check("cuStreamCreate", code).map(|()| OwnStream { driver: self, handle })
    }

    /// Enqueues zeroing of memory on a stream.
    ///
    /// # Safety
    /// No other code uses the memory until the stream has done it; `stream` is
    /// a valid stream of this process.
    pub(crate) unsafe fn zero(&self, memory: DeviceMemory, stream: *mut c_void) -> Result<(), CudaMissing> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.calls.fill)(memory.address, 0, memory.bytes, stream) };
        self.check("cuMemsetD8Async", code)
    }

    /// Allocates device memory with undefined content.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Scratch, CudaMissing> {
        let mut address = 0;
        // SAFETY: the number lives through the call.
        let code = unsafe { (self.calls.allocate)(&raw mut address, bytes) };
        self.check("cuMemAlloc", code).map(|()| Scratch { address, bytes })
    }

    /// Whether all work on a stream is done.
    ///
    /// # Safety
    /// `stream` is a valid stream of this process.
    pub(crate) unsafe fn query_stream(&self, stream: *mut c_void) -> Result<Query, CudaMissing> {
        // SAFETY: the stream is the caller's promise.
        self.query("cuStreamQuery", unsafe { (self.calls.query_stream)(stream) })
    }

    fn query(&self, function: &'static str, code: i32) -> Result<Query, CudaMissing> {
        match code {
            SUCCESS => Ok(Query::Done),
            NOT_READY => Ok(Query::Pending),
            // Captured work is not under way; the owner of the graph waits for it.
            CAPTURED => Ok(Query::Done),
            code => self.check(function, code).map(|()| Query::Done),
        }
    }
}

impl Event {
    /// Marks the current end of the stream.
    ///
    /// # Safety
    /// `stream` is a valid stream of the context of the event.
    pub(crate) unsafe fn record(&self, stream: *mut c_void) -> Result<(), CudaMissing> {
        // SAFETY: this value owns the event; the stream is the caller's promise.
        let code = unsafe { (self.driver.calls.record_event)(self.handle, stream) };
        self.driver.check("cuEventRecord", code)
    }

    /// Makes a stream wait for the last mark before its next work.
    ///
    /// # Safety
    /// As [`record`](Self::record).
    pub(crate) unsafe fn hold(&self, stream: *mut c_void) -> Result<(), CudaMissing> {
        // SAFETY: this value owns the event; the stream is the caller's promise.
        let code = unsafe { (self.driver.calls.wait_event)(stream, self.handle, 0) };
        self.driver.check("cuStreamWaitEvent", code)
    }

    /// Whether the last mark is reached.
    pub(crate) fn query(&self) -> Result<Query, CudaMissing> {
        // SAFETY: this value owns the event.
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
        // SAFETY: this value owns the stream; the driver destroys it after its work is done.
        unsafe { (self.driver.calls.destroy_stream)(self.handle) };
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this value owns the event; the driver destroys a pending one after it is done.
        unsafe { (self.driver.calls.destroy_event)(self.handle) };
    }
}
