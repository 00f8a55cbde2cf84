//! A wrong wall clock (`CLOCK_REALTIME`) for a program with this in `LD_PRELOAD`: by [`SHIFT`] seconds where that
//! variable is set, else a day fast and a day slow in turn. The steady clock (`CLOCK_MONOTONIC`) leaps ahead by
//! [`LEAP_SECONDS`] while the file exists that [`LEAP`] names. The other clocks are the kernel's.
#![expect(unsafe_code, reason = "it stands in for a function of libc's")]

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, clockid_t, timespec};

/// Names the variable that holds a constant shift in seconds.
pub const SHIFT: &str = "FAKE_CLOCK_SHIFT";

const DAY: i64 = 24 * 3600;

/// Names the variable that holds the path of a file. While that exists, the steady clock has leapt.
pub const LEAP: &str = "FAKE_CLOCK_LEAP";

/// How far it leaps, in seconds.
pub const LEAP_SECONDS: i64 = 61;

static IS_FAST: AtomicBool = AtomicBool::new(false);

/// What the variable says when the process starts to look at the clock.
fn shift() -> Option<i64> {
    static SHIFTED: OnceLock<Option<i64>> = OnceLock::new();
    *SHIFTED.get_or_init(|| {
        // SAFETY: the name ends with a zero.
        let value = unsafe { libc::getenv(c"FAKE_CLOCK_SHIFT".as_ptr()) }.cast_const().cast::<c_char>();
        if value.is_null() {
            return None;
        }
        // SAFETY: the result of getenv(3) ends with a zero, and no thread changes the environment so early.
        unsafe { CStr::from_ptr(value) }.to_str().ok()?.parse().ok()
    })
}

/// Whether the steady clock has leapt.
fn has_leapt() -> bool {
    static FILE: OnceLock<Option<&'static CStr>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        // SAFETY: the name ends with a zero.
        let value = unsafe { libc::getenv(c"FAKE_CLOCK_LEAP".as_ptr()) }.cast_const().cast::<c_char>();
        // SAFETY: what getenv(3) gives ends with a zero, and these programs do not change this variable.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
    });
    // SAFETY: the path ends with a zero.
    file.is_some_and(|file| unsafe { libc::access(file.as_ptr(), libc::F_OK) } == 0)
}

/// clock_gettime(2).
///
/// # Safety
/// As of libc's: `time` can be written to, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the kernel checks its arguments.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if result == 0 && clock == libc::CLOCK_REALTIME {
        let jump = || if IS_FAST.fetch_xor(true, Ordering::Relaxed) { -DAY } else { DAY };
        // SAFETY: the kernel has just written there.
        unsafe { (*time).tv_sec += shift().unwrap_or_else(jump) };
    }
    if result == 0 && clock == libc::CLOCK_MONOTONIC && has_leapt() {
        // SAFETY: the kernel has just written there.
        unsafe { (*time).tv_sec += LEAP_SECONDS };
    }
    c_int::try_from(result).unwrap_or(-1)
}
