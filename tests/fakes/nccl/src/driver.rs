//! As much of the CUDA driver as a communicator needs.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::{enter, value};
use crate::world::streams_are_done;

const NOT_READY: c_int = 600;
const NO_DEVICE: c_int = 100;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    enter("cuInit", None).unwrap_or(if value("nodevice").is_some() { NO_DEVICE } else { 0 })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller gives a place for one number.
    unsafe { count.write(1) };
    enter("cuDeviceGetCount", None).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_code: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { to.write(c"a fake error of CUDA".as_ptr()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { context.write(std::ptr::without_provenance_mut(1)) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(_context: *mut c_void) -> c_int {
    enter("cuCtxSetCurrent", None).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { event.write(std::ptr::without_provenance_mut(1)) };
    enter("cuEventCreate", None).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { stream.write(Box::into_raw(Box::new(0_u64)).cast()) };
    enter("cuStreamCreate", None).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: *mut c_void, _event: *mut c_void, _flags: c_uint) -> c_int {
    look_at(stream);
    enter("cuStreamWaitEvent", None).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: *mut c_void) -> c_int {
    look_at(stream);
    // SAFETY: the caller gives memory of so many bytes.
    unsafe { (address as *mut u8).write_bytes(byte, bytes) };
    enter("cuMemsetD8Async", None).unwrap_or(0)
}

/// Streams that are gone.
static GONE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn gone() -> MutexGuard<'static, Vec<usize>> {
    GONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    gone().push(stream.addr());
    0
}

/// What the real driver may crash of.
#[expect(clippy::print_stderr, reason = "the process ends here")]
fn look_at(stream: *mut c_void) {
    if gone().contains(&stream.addr()) {
        eprintln!("fake CUDA: a stream is used after its end");
        std::process::abort()
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(_event: *mut c_void, stream: *mut c_void) -> c_int {
    look_at(stream);
    enter("cuEventRecord", None).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(_event: *mut c_void) -> c_int {
    enter("cuEventQuery", None).unwrap_or_else(state)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(_event: *mut c_void) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: *mut c_void) -> c_int {
    look_at(stream);
    enter("cuStreamQuery", None).unwrap_or_else(state)
}

fn state() -> c_int {
    if streams_are_done() { 0 } else { NOT_READY }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    let memory = Box::leak(vec![0_u64; bytes.div_ceil(8)].into_boxed_slice());
    // SAFETY: the caller gives a place for one number.
    unsafe { address.write(memory.as_mut_ptr() as u64) };
    enter("cuMemAlloc_v2", None).unwrap_or(0)
}
