//! Opens shared libraries at run time: NCCL and the CUDA driver.
#![expect(unsafe_code, reason = "loads foreign libraries")]

use std::error::Error;
use std::ffi::{CStr, OsStr, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;

use libloading::Library;
use nix::libc;

/// Opens a library by its path, or by a name that the loader looks up.
///
/// # Errors
/// The loader's message.
pub(crate) fn open(name: &OsStr) -> Result<Library, String> {
    // SAFETY: NCCL and the CUDA driver may be loaded at any time; the user vouches for the content of a path.
    unsafe { Library::new(name) }.map_err(|error| error_text(&error))
}

/// The function `name` of a library as a plain pointer, valid as long as the library stays loaded.
///
/// # Safety
/// `F` is the function pointer type that the library has under this name.
///
/// # Errors
/// The loader's message.
pub(crate) unsafe fn load_function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the type is the caller's promise.
    unsafe { library.get::<F>(name) }.map(|symbol| *symbol).map_err(|error| error_text(&error))
}

/// The file of a loaded function.
pub(crate) fn library_path_of(function: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` has room for the answer, and any address may be looked up.
    if unsafe { libc::dladdr(function, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr(3) has filled it; all zeros would be a valid value too.
    let name = unsafe { info.assume_init() }.dli_fname;
    // SAFETY: the name is zero-terminated and lives as long as the library, which stays loaded.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

/// The error says only "dlopen failed"; its source has the cause.
fn error_text(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
