//! The driver's functions for devices, contexts and errors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::device::{
    CONTEXT_IS_DESTROYED, Device, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE,
    INVALID_IMAGE, INVALID_VALUE, NO_DEVICE, NOT_FOUND, NOT_READY, OUT_OF_MEMORY, call, current,
    current_handle, set_current, visible,
};
use crate::faults::value;
use crate::memory;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    call(
        "cuInit",
        || {
            if value("nodevice").is_some() || visible().is_empty() { Err(NO_DEVICE) } else { Ok(()) }
        },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller gives a place for one number.
    unsafe { version.write(13_000) };
    call("cuDriverGetVersion", || Ok(()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller gives a place for one number.
    unsafe { count.write(visible().len() as c_int) };
    call("cuDeviceGetCount", || Ok(()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    call("cuDeviceGet", || {
        Device::of_ordinal(ordinal)?;
        // SAFETY: the caller gives a place for one number.
        unsafe { device.write(ordinal) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> c_int {
    call("cuDeviceGetName", || {
        let text = format!("Fake GPU {}\0", Device::of_ordinal(device)?.number());
        if usize::try_from(room).is_ok_and(|room| room < text.len()) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller gives `room` bytes.
        unsafe { text.as_ptr().copy_to(name.cast(), text.len()) };
        Ok(())
    })
}

/// The UUID is the device's number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int {
    call("cuDeviceGetUuid_v2", || {
        let number = Device::of_ordinal(device)?.number() as u128;
        // SAFETY: the caller gives a place for a UUID.
        unsafe { uuid.write(number.to_be_bytes()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(to: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    call("cuDeviceGetAttribute", || {
        Device::of_ordinal(device)?;
        let found = match attribute {
            // The most threads of a block, the threads of a warp, and the number of multiprocessors.
            1 => 1024,
            10 => 32,
            16 => 132,
            // The compute capability.
            75 => 9,
            76 => 0,
            // Whether there are memory pools.
            115 => i32::from(value("pools").is_none_or(|pools| pools != "0")),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller gives a place for one number.
        unsafe { to.write(found) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> c_int {
    call("cuDeviceTotalMem_v2", || {
        Device::of_ordinal(device)?;
        // SAFETY: the caller gives a place for one number.
        unsafe { bytes.write(memory::limit()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", || {
        let device = Device::of_ordinal(device)?;
        device.retain();
        // SAFETY: the caller gives a place for one pointer.
        unsafe { context.write(std::ptr::without_provenance_mut(device.context())) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRelease_v2", || Device::of_ordinal(device)?.release())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { context.write(std::ptr::without_provenance_mut(current_handle())) };
    call("cuCtxGetCurrent", || Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    call("cuCtxSetCurrent", || set_current(context.addr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    call("cuCtxGetDevice", || {
        // SAFETY: the caller gives a place for one number.
        unsafe { device.write(current()?.0 as c_int) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(_flags: c_uint) -> c_int {
    call("cuCtxSetFlags", || current().map(drop))
}

const fn words(code: c_int) -> (&'static CStr, &'static CStr) {
    match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        INVALID_IMAGE => (c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        ILLEGAL_ADDRESS => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        CONTEXT_IS_DESTROYED => (c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
        _ => (c"CUDA_ERROR_UNKNOWN", c"a fake error of CUDA"),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { to.write(words(code).0.as_ptr()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { to.write(words(code).1.as_ptr()) };
    0
}
