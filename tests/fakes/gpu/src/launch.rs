//! Modules of kernels, and their launch.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr::without_provenance_mut;

use libloading::Library;

use crate::compile::memory_file;
use crate::device::{
    Answer, Device, ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, call, current,
    fresh_handle, tables,
};
use crate::memory;
use crate::nvrtc::MAGIC;
use crate::stream::device_of;

type Launcher = unsafe extern "C" fn(*const [c_uint; 3], *const [c_uint; 3], *mut *mut c_void);

/// A kernel on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) device: Device,
    launch: Launcher,
    /// A bit for each argument.
    pointers: u64,
}

/// `CUmodule` points to it. It is leaked, since functions of it may still run.
struct Module {
    device: Device,
    library: Library,
}

/// The shared object of a "PTX".
///
/// # Safety
/// The image is one of NVRTC's, or begins with a C string.
unsafe fn object<'a>(image: *const u8) -> Option<&'a [u8]> {
    // SAFETY: a byte is read where all before it were those of an image, the last of which says how many there are.
    unsafe {
        if (0..MAGIC.len()).any(|at| image.add(at).read() != MAGIC[at]) {
            return None;
        }
        let (mut at, mut length) = (MAGIC.len(), 0_usize);
        loop {
            let byte = image.add(at).read();
            at += 1;
            match byte {
                b'0'..=b'9' => length = length.checked_mul(10)?.checked_add(usize::from(byte - b'0'))?,
                b'\n' => return Some(std::slice::from_raw_parts(image.add(at), length)),
                _ => return None,
            }
        }
    }
}

fn load(object: &[u8]) -> Option<Library> {
    let file = memory_file(c"module").ok()?;
    let mut file = std::fs::File::from(file);
    file.write_all(object).ok()?;
    // SAFETY: kernels have no initialisers.
    let library = unsafe { Library::new(format!("/proc/self/fd/{}", file.as_raw_fd())) }.ok()?;
    // The loader would take another file under the same name for this one.
    std::mem::forget(file);
    Some(library)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut *mut Module, image: *const c_void) -> c_int {
    call("cuModuleLoadData", || {
        let device = current()?;
        // SAFETY: the caller gives an image.
        let library = unsafe { object(image.cast()) }.and_then(load).ok_or(INVALID_IMAGE)?;
        // SAFETY: the caller gives a place for one pointer.
        unsafe { module.write(Box::into_raw(Box::new(Module { device, library }))) };
        Ok(())
    })
}

/// Its functions are no longer to be used.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: *const Module) -> c_int {
    call("cuModuleUnload", || {
        // SAFETY: the caller's module is one that was loaded; modules are leaked.
        let module = unsafe { module.as_ref() }.ok_or(INVALID_HANDLE)?;
        let device = current()?;
        (device == module.device).then_some(()).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *const Module,
    name: *const c_char,
) -> c_int {
    call("cuModuleGetFunction", || {
        // SAFETY: the caller's module is one that was loaded; modules are leaked.
        let Module { device, library } = unsafe { module.as_ref() }.ok_or(INVALID_HANDLE)?;
        // SAFETY: the caller gives a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
        // SAFETY: the compiler gave both symbols these types.
        let (launch, pointers) = unsafe {
            let launch = library.get::<Launcher>(format!("fake_launch_{name}").as_str());
            let pointers = library.get::<*const u64>(format!("fake_pointers_{name}").as_str());
            (*launch.map_err(|_| NOT_FOUND)?, **pointers.map_err(|_| NOT_FOUND)?)
        };
        let handle = fresh_handle();
        tables().functions.insert(handle, Function { device: *device, launch, pointers });
        // SAFETY: the caller gives a place for one pointer.
        unsafe { function.write(without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Whether a device takes a launch of this size.
fn check([grid, block]: [[c_uint; 3]; 2], shared: c_uint) -> Answer {
    let threads: u64 = block.iter().map(|&count| u64::from(count)).product();
    let fits = grid[0] <= 0x7fff_ffff && grid[1..].iter().all(|&count| count <= 65_535);
    let is_some = grid.iter().all(|&count| count > 0) && threads > 0;
    (fits && is_some && threads <= 1024 && block[2] <= 64 && shared <= 49_152)
        .then_some(())
        .ok_or(INVALID_VALUE)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: *mut c_void,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    call("cuLaunchKernel", || {
        let device = device_of(stream)?;
        let function = tables().functions.get(&function.addr()).copied().ok_or(INVALID_HANDLE)?;
        if function.device != device || current()? != device {
            return Err(INVALID_HANDLE);
        }
        let [grid, block] = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        check([grid, block], shared)?;
        if !extra.is_null() {
            return Err(INVALID_VALUE);
        }
        for at in (0..64).filter(|at| function.pointers >> at & 1 == 1) {
            // SAFETY: the caller gives a place for each argument of the kernel, and this one is a pointer.
            let address = unsafe { arguments.add(at).read().cast::<u64>().read() };
            if address != 0 && !memory::is_of(device, address, 1) {
                return Err(ILLEGAL_ADDRESS);
            }
        }
        // SAFETY: the launcher was made for the kernel, and the caller vouches for the arguments.
        unsafe { (function.launch)(&raw const grid, &raw const block, arguments) };
        Ok(())
    })
}
