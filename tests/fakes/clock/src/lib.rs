//! A wall clock (`CLOCK_REALTIME`) that is a day fast and a day slow in turn, for who has this in `LD_PRELOAD`. The
//! other clocks are the kernel's.
#![expect(unsafe_code, reason = "it stands in for a function of libc's")]

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, clockid_t, timespec};

const DAY: i64 = 24 * 3600;

static IS_FAST: AtomicBool = AtomicBool::new(false);

/// clock_gettime(2).
///
/// # Safety
/// As of libc's: `time` can be written to, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the kernel checks its arguments.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if result == 0 && clock == libc::CLOCK_REALTIME {
        let jump = if IS_FAST.fetch_xor(true, Ordering::Relaxed) { -DAY } else { DAY };
        // SAFETY: the kernel has just written there.
        unsafe { (*time).tv_sec += jump };
    }
    c_int::try_from(result).unwrap_or(-1)
}
