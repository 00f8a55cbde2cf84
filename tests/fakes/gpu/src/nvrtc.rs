//! NVRTC. Its "PTX" is a line with a length, and a shared object of this length.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::compile::compile;
use crate::faults::enter;

const SUCCESS: c_int = 0;
const INVALID_INPUT: c_int = 3;
const INVALID_PROGRAM: c_int = 4;
const COMPILATION: c_int = 6;

/// How the PTX begins.
pub(crate) const MAGIC: &[u8] = b"fake ptx ";

/// What was compiled in this process: each device asks for the same again.
static COMPILED: LazyLock<Mutex<HashMap<String, Compiled>>> = LazyLock::new(Mutex::default);

/// A shared object, or the compiler's log.
type Compiled = Result<Vec<u8>, String>;

/// `nvrtcProgram` points to it.
struct Program {
    source: String,
    ptx: Option<Vec<u8>>,
    /// With the end of a C string.
    log: Vec<u8>,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    // SAFETY: the caller gives places for two numbers.
    unsafe {
        major.write(13);
        minor.write(0);
    }
    enter("nvrtcVersion", None).unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(code: c_int) -> *const c_char {
    match code {
        SUCCESS => c"NVRTC_SUCCESS",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"a fake error of NVRTC",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut *mut Program,
    source: *const c_char,
    _name: *const c_char,
    headers: c_int,
    _texts: *const *const c_char,
    _includes: *const *const c_char,
) -> c_int {
    if let Some(code) = enter("nvrtcCreateProgram", None) {
        return code;
    }
    if source.is_null() || headers != 0 {
        return INVALID_INPUT;
    }
    // SAFETY: the caller gives a C string, and a place for one pointer.
    unsafe {
        let source = CStr::from_ptr(source).to_string_lossy().into_owned();
        program.write(Box::into_raw(Box::new(Program { source, ptx: None, log: vec![0] })));
    }
    SUCCESS
}

/// Options are for the real compiler.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut Program,
    _count: c_int,
    _options: *const *const c_char,
) -> c_int {
    if let Some(code) = enter("nvrtcCompileProgram", None) {
        return code;
    }
    // SAFETY: the caller's program is one that was created and not destroyed.
    let Some(program) = (unsafe { program.as_mut() }) else { return INVALID_PROGRAM };
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    match compiled.entry(program.source.clone()).or_insert_with(|| compile(&program.source)) {
        Ok(object) => {
            program.ptx = Some([MAGIC, format!("{}\n", object.len()).as_bytes(), object].concat());
            SUCCESS
        }
        Err(log) => {
            program.log = [log.as_bytes(), b"\0"].concat();
            COMPILATION
        }
    }
}

/// Tells how long a text of a program is, or copies it.
///
/// # Safety
/// The program was created and not destroyed; `act` writes where the caller gave room.
unsafe fn text(function: &str, program: *const Program, act: impl FnOnce(&Program) -> c_int) -> c_int {
    enter(function, None).unwrap_or_else(|| {
        // SAFETY: the caller's promise.
        unsafe { program.as_ref() }.map_or(INVALID_PROGRAM, act)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTXSize(program: *const Program, size: *mut usize) -> c_int {
    // SAFETY: the caller gives a program and a place for one number.
    unsafe {
        text("nvrtcGetPTXSize", program, |program| {
            let Some(ptx) = &program.ptx else { return INVALID_PROGRAM };
            size.write(ptx.len());
            SUCCESS
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTX(program: *const Program, to: *mut c_char) -> c_int {
    // SAFETY: the caller gives a program, and as much room as its PTX has bytes.
    unsafe {
        text("nvrtcGetPTX", program, |program| {
            let Some(ptx) = &program.ptx else { return INVALID_PROGRAM };
            ptx.as_ptr().copy_to(to.cast(), ptx.len());
            SUCCESS
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLogSize(program: *const Program, size: *mut usize) -> c_int {
    // SAFETY: the caller gives a program and a place for one number.
    unsafe {
        text("nvrtcGetProgramLogSize", program, |program| {
            size.write(program.log.len());
            SUCCESS
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLog(program: *const Program, to: *mut c_char) -> c_int {
    // SAFETY: the caller gives a program, and as much room as its log has bytes.
    unsafe {
        text("nvrtcGetProgramLog", program, |program| {
            program.log.as_ptr().copy_to(to.cast(), program.log.len());
            SUCCESS
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Program) -> c_int {
    // SAFETY: the caller gives the place of a program that was created and not destroyed.
    let program = unsafe { program.as_ref() }.copied().filter(|program| !program.is_null());
    let Some(program) = program else { return INVALID_PROGRAM };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(program) });
    enter("nvrtcDestroyProgram", None).unwrap_or(SUCCESS)
}
