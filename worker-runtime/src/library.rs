//! Shared libraries that are opened at run time: NCCL and the CUDA driver.
#![expect(unsafe_code, reason = "loads foreign libraries")]

use std::error::Error;
use std::ffi::{CStr, OsStr, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;

use libloading::Library;
use nix::libc;

/// Opens a library by its name, which the loader looks up, or by its path.
///
/// # Errors
/// The loader's own words.
pub(crate) fn open(name: &OsStr) -> Result<Library, String> {
    // SAFETY: NCCL and the CUDA driver may be loaded anywhere and at any time; a path is that of such a library by the
    // word of the user who names it.
    unsafe { Library::new(name) }.map_err(|error| words(&error))
}

/// The function `name` of a library, as a plain pointer: it is good as long as the library stays loaded.
///
/// # Safety
/// `F` is the function pointer type that the library has under this name.
///
/// # Errors
/// The loader's own words.
pub(crate) unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the type is the caller's promise.
    unsafe { library.get::<F>(name) }.map(|symbol| *symbol).map_err(|error| words(&error))
}

/// The file in which a function of a loaded library lies.
pub(crate) fn file_of(function: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` has room for the answer, and any address may be asked about.
    if unsafe { libc::dladdr(function, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr(3) has filled it; all zeros would be a valid value too.
    let name = unsafe { info.assume_init() }.dli_fname;
    // SAFETY: a name that is there ends with a zero, and lives as long as the library, which stays loaded.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

/// An error says "dlopen failed", and its source why.
fn words(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
