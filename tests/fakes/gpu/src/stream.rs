//! Streams and events. Work is done when it is put on a stream, so they have nothing to order; an event stands for
//! all that is on any of them.

use std::ffi::{c_float, c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;
use std::time::Duration;

use crate::device::{
    Answer, Device, INVALID_HANDLE, NOT_READY, call, current, fresh_handle, is_machine, tables,
};
use crate::late;
use crate::world::streams_are_done;

/// The default stream of the current context, and its two names.
const DEFAULT: [usize; 3] = [0, 1, 2];

/// The device of a stream; one of a stream that is gone may crash the real driver.
#[expect(clippy::print_stderr, reason = "the process ends here")]
pub(crate) fn device_of(stream: *mut c_void) -> Answer<Device> {
    let stream = stream.addr();
    if tables().gone.contains(&stream) {
        eprintln!("fake CUDA: a stream is used after its end");
        std::process::abort()
    }
    if DEFAULT.contains(&stream) || !is_machine() {
        return current();
    }
    tables().streams.get(&stream).copied().ok_or(INVALID_HANDLE)
}

pub(crate) fn look_at(stream: *mut c_void) -> Answer {
    device_of(stream).map(drop)
}

fn state() -> Answer {
    if streams_are_done() { Ok(()) } else { Err(NOT_READY) }
}

/// Of one stream, or of all.
fn state_of(stream: Option<*mut c_void>) -> Answer {
    state().inspect(|()| late::complete_copies(stream.map(<*mut c_void>::addr)))
}

fn wait(stream: Option<*mut c_void>) {
    while state_of(stream).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn create(to: *mut *mut c_void) -> Answer {
    let (device, handle) = (current()?, fresh_handle());
    tables().streams.insert(handle, device);
    // SAFETY: the caller of the driver gives a place for one pointer.
    unsafe { to.write(without_provenance_mut(handle)) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
    call("cuStreamCreate", || create(stream))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut *mut c_void,
    _flags: c_uint,
    _priority: c_int,
) -> c_int {
    call("cuStreamCreateWithPriority", || create(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    call("cuStreamDestroy_v2", || {
        look_at(stream)?;
        let mut tables = tables();
        tables.streams.remove(&stream.addr());
        tables.gone.insert(stream.addr());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: *mut c_void) -> c_int {
    call("cuStreamQuery", || {
        look_at(stream)?;
        state_of(Some(stream))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> c_int {
    call("cuStreamSynchronize", || {
        look_at(stream)?;
        wait(Some(stream));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> c_int {
    call("cuCtxSynchronize", || {
        current()?;
        wait(None);
        Ok(())
    })
}

/// Any stream may wait for an event of any device.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) -> c_int {
    call("cuStreamWaitEvent", || {
        look_at(stream)?;
        place_of(event).map(drop)
    })
}

fn place_of(event: *mut c_void) -> Answer<Device> {
    tables().events.get(&event.addr()).copied().ok_or(INVALID_HANDLE)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    call("cuEventCreate", || {
        let (device, handle) = (current()?, fresh_handle());
        tables().events.insert(handle, device);
        // SAFETY: the caller gives a place for one pointer.
        unsafe { event.write(without_provenance_mut(handle)) };
        Ok(())
    })
}

/// An event is recorded on streams of its own device.
#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
    call("cuEventRecord", || {
        let (stream, event) = (device_of(stream)?, place_of(event)?);
        (stream == event).then_some(()).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: *mut c_void) -> c_int {
    call("cuEventQuery", || place_of(event).and_then(|_| state_of(None)))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: *mut c_void) -> c_int {
    call("cuEventSynchronize", || {
        place_of(event)?;
        wait(None);
        Ok(())
    })
}

/// Nothing takes any time.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(to: *mut c_float, start: *mut c_void, end: *mut c_void) -> c_int {
    call("cuEventElapsedTime_v2", || {
        place_of(start).and_then(|_| place_of(end))?;
        // SAFETY: the caller gives a place for one number.
        unsafe { to.write(0.0) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    call("cuEventDestroy_v2", || tables().events.remove(&event.addr()).map(drop).ok_or(INVALID_HANDLE))
}
