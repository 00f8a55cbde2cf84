//! Copies between host and device that are done late, as real ones may be: only a wait for their stream completes them.

use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::value;
use crate::memory::POISON;

/// Pending copies, with their streams.
static UNDER_WAY: Mutex<Vec<(usize, Copy)>> = Mutex::new(Vec::new());

/// What is copied, and the place in memory of the host. What is on the device then is known when the copy is put on its stream.
enum Copy {
    ToHost { to: usize, bytes: Vec<u8> },
    FromHost { from: usize, bytes: Vec<u8> },
}

fn pending_copies() -> MutexGuard<'static, Vec<(usize, Copy)>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_late() -> bool {
    value("late").is_some()
}

/// Copies to the host: at once, or when the program waits for the stream. Until then NaN is there.
///
/// # Safety
/// There are so many bytes at both places, at the host's until the program waits for the stream.
pub(crate) unsafe fn to_host(to: *mut u8, from: *const u8, bytes: usize, stream: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if is_late() {
            let copied = slice::from_raw_parts(from, bytes).to_vec();
            to.write_bytes(POISON, bytes);
            pending_copies().push((stream, Copy::ToHost { to: to.expose_provenance(), bytes: copied }));
        } else {
            from.copy_to(to, bytes);
        }
    }
}

/// Copies from the host. Its memory must stay unchanged until the program has waited for the stream.
///
/// # Safety
/// As [`to_host`].
pub(crate) unsafe fn from_host(to: *mut u8, from: *const u8, bytes: usize, stream: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if is_late() {
            let bytes = slice::from_raw_parts(from, bytes).to_vec();
            pending_copies().push((stream, Copy::FromHost { from: from.expose_provenance(), bytes }));
        }
        from.copy_to(to, bytes);
    }
}

/// Completes the pending copies of a stream; without a stream, those of all streams.
#[expect(clippy::print_stderr, reason = "the process ends here")]
pub(crate) fn complete_copies(stream: Option<usize>) {
    for (_, copy) in pending_copies().extract_if(.., |(of, _)| stream.is_none_or(|stream| stream == *of)) {
        // SAFETY: the memory of the host is there until now, in a right program.
        unsafe {
            match copy {
                Copy::ToHost { to, bytes } => {
                    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
                    to.copy_from(bytes.as_ptr(), bytes.len());
                }
                Copy::FromHost { from, bytes } => {
                    let from = std::ptr::with_exposed_provenance::<u8>(from);
                    if slice::from_raw_parts(from, bytes.len()) != bytes {
                        eprintln!(
                            "fake CUDA: memory of the host has changed while {} bytes of it were copied",
                            bytes.len()
                        );
                        std::process::abort()
                    }
                }
            }
        }
    }
}
