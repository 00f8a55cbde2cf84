//! Memory of devices, which is the process's own.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_uchar, c_uint, c_void};

use crate::device::{
    Answer, Device, INVALID_VALUE, OUT_OF_MEMORY, Tables, call, current, is_machine, tables,
};
use crate::faults::value;
use crate::late;
use crate::stream::{device_of, look_at};

/// Fresh memory is NaN, so that a test cannot take it for zeros.
pub(crate) const POISON: u8 = 0xff;
/// Behind each allocation, so that what is written there is seen.
const GUARD: [u8; 256] = [0xc3; 256];

/// Memory of a device. It is freed with its value.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) device: Device,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is this value's alone; the program orders the writes to it.
unsafe impl Send for Allocation {}

impl Allocation {
    fn new(device: Device, bytes: usize) -> Answer<Self> {
        let layout = layout(bytes).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: the layout has at least the guard's bytes.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: there are so many bytes.
        unsafe {
            start.write_bytes(POISON, bytes);
            start.add(bytes).copy_from(GUARD.as_ptr(), GUARD.len());
        }
        Ok(Self { device, start, bytes })
    }

    fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(GUARD.len())?, 256).ok()
}

impl Drop for Allocation {
    #[expect(clippy::print_stderr, reason = "the process ends here")]
    fn drop(&mut self) {
        let Some(layout) = layout(self.bytes) else { return };
        // SAFETY: it was allocated with this layout, and the guard is behind the bytes.
        unsafe {
            let guard = std::slice::from_raw_parts(self.start.add(self.bytes), GUARD.len());
            if guard != GUARD {
                eprintln!("fake CUDA: something was written behind {} bytes of memory", self.bytes);
                std::process::abort()
            }
            self.start.write_bytes(POISON, self.bytes);
            dealloc(self.start, layout);
        }
    }
}

/// Bytes of each device.
pub(crate) fn limit() -> usize {
    value("memory").and_then(|bytes| bytes.parse().ok()).unwrap_or(1 << 30)
}

fn used(tables: &Tables, device: Device) -> usize {
    tables.memory.values().filter(|block| block.device == device).map(|block| block.bytes).sum()
}

fn allocate(device: Device, bytes: usize) -> Answer<u64> {
    let mut tables = tables();
    if bytes > limit().saturating_sub(used(&tables, device)) {
        return Err(OUT_OF_MEMORY);
    }
    let allocation = Allocation::new(device, bytes)?;
    let address = allocation.address();
    tables.memory.insert(address, allocation);
    Ok(address)
}

fn free(address: u64) -> Answer {
    // Of no bytes.
    if address == 0 {
        return Ok(());
    }
    tables().memory.remove(&address).map(drop).ok_or(INVALID_VALUE)
}

/// The device that has this memory, all of it; where there is no machine, every device has all memory.
pub(crate) fn owner(address: u64, bytes: usize) -> Answer<Option<Device>> {
    if !is_machine() || bytes == 0 {
        return Ok(None);
    }
    let tables = tables();
    let (start, allocation) = tables.memory.range(..=address).next_back().ok_or(INVALID_VALUE)?;
    let offset = usize::try_from(address - start).unwrap_or(usize::MAX);
    let fits = offset < allocation.bytes && bytes <= allocation.bytes - offset;
    fits.then_some(Some(allocation.device)).ok_or(INVALID_VALUE)
}

/// Whether this device has the memory.
pub(crate) fn is_of(device: Device, address: u64, bytes: usize) -> bool {
    owner(address, bytes).is_ok_and(|owner| owner.is_none_or(|owner| owner == device))
}

/// Copies what does not overlap in a right program; in a wrong one it does no harm.
///
/// # Safety
/// There are so many bytes at both places.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's promise.
        unsafe { from.copy_to(to, bytes) };
    }
}

fn at(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    call("cuMemAlloc_v2", || {
        let device = current()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller gives a place for one number.
        unsafe { address.write(allocate(device, bytes)?) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: *mut c_void) -> c_int {
    call("cuMemAllocAsync", || {
        let device = device_of(stream)?;
        // SAFETY: the caller gives a place for one number.
        unsafe { address.write(if bytes == 0 { 0 } else { allocate(device, bytes)? }) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    call("cuMemFree_v2", || current().and_then(|_| free(address)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: *mut c_void) -> c_int {
    call("cuMemFreeAsync", || {
        look_at(stream)?;
        free(address)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(unused: *mut usize, total: *mut usize) -> c_int {
    call("cuMemGetInfo_v2", || {
        let device = current()?;
        // SAFETY: the caller gives places for two numbers.
        unsafe {
            total.write(limit());
            unused.write(limit().saturating_sub(used(&tables(), device)));
        }
        Ok(())
    })
}

/// Memory of the host that stays where it is.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    call("cuMemHostAlloc", || {
        current()?;
        let layout = layout(bytes).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: the layout has at least the guard's bytes.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: there are so many bytes, and the caller gives a place for one pointer.
        unsafe {
            start.write_bytes(POISON, bytes);
            address.write(start.cast());
        }
        tables().pinned.insert(start.addr(), layout);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> c_int {
    call("cuMemFreeHost", || {
        let layout = tables().pinned.remove(&address.addr()).ok_or(INVALID_VALUE)?;
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(address.cast(), layout) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    call("cuMemcpyHtoD_v2", || {
        current()?;
        owner(to, bytes)?;
        // SAFETY: the device has so many bytes there, and the host by the caller's promise.
        unsafe { copy(from.cast(), at(to), bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    call("cuMemcpyHtoDAsync_v2", || {
        look_at(stream)?;
        owner(to, bytes)?;
        // SAFETY: as in `cuMemcpyHtoD_v2`.
        unsafe { late::from_host(at(to), from.cast(), bytes, stream.addr()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    call("cuMemcpyDtoH_v2", || {
        current()?;
        owner(from, bytes)?;
        // SAFETY: as in `cuMemcpyHtoD_v2`.
        unsafe { copy(at(from), to.cast(), bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    call("cuMemcpyDtoHAsync_v2", || {
        look_at(stream)?;
        owner(from, bytes)?;
        // SAFETY: as in `cuMemcpyHtoD_v2`.
        unsafe { late::to_host(to.cast(), at(from), bytes, stream.addr()) };
        Ok(())
    })
}

/// Between memory of any devices.
fn between(to: u64, from: u64, bytes: usize) -> Answer {
    owner(from, bytes)?;
    owner(to, bytes)?;
    // SAFETY: devices have so many bytes at both places.
    unsafe { copy(at(from), at(to), bytes) };
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> c_int {
    call("cuMemcpyDtoD_v2", || current().and_then(|_| between(to, from, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> c_int {
    call("cuMemcpyDtoDAsync_v2", || {
        look_at(stream)?;
        between(to, from, bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: *mut c_void,
    from: u64,
    from_context: *mut c_void,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    call("cuMemcpyPeerAsync", || {
        look_at(stream)?;
        for (address, context) in [(to, to_context), (from, from_context)] {
            let is_there = owner(address, bytes)?.is_none_or(|device| device.context() == context.addr());
            is_there.then_some(()).ok_or(INVALID_VALUE)?;
        }
        between(to, from, bytes)
    })
}

fn fill(to: u64, with: u8, bytes: usize, device: Device) -> Answer {
    if !is_of(device, to, bytes) {
        return Err(INVALID_VALUE);
    }
    if bytes > 0 {
        // SAFETY: the device has so many bytes there.
        unsafe { at(to).write_bytes(with, bytes) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, with: c_uchar, bytes: usize) -> c_int {
    call("cuMemsetD8_v2", || fill(to, with, bytes, current()?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, with: c_uchar, bytes: usize, stream: *mut c_void) -> c_int {
    call("cuMemsetD8Async", || fill(to, with, bytes, device_of(stream)?))
}
