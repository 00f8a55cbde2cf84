//! Tunes the agent's own heap: its size stays the same after one restart and after thousands.
#![expect(unsafe_code, reason = "mallopt has no safe wrapper")]

/// Blocks of this size or more are mapped, and unmapped when they are free.
///
/// Every generation needs a few for a moment: the stack of a child until `execve`, the entries of a folder. In the
/// heap, a small block that is put into the gap which one of them left, and stays, would make the next one need another
/// place.
const MMAP_THRESHOLD: libc::c_int = 32 * 1024;

/// One heap for the main thread and one for all others: each thread that waits for a lock of a heap would make another
/// one, as large as the first.
const MAX_ARENAS: libc::c_int = 2;

/// Keeps blocks that come and go out of the heap, and bounds the number of heaps, for the rest of the process. Before it
/// has another thread.
pub fn tune_heap() {
    for (parameter, value) in [(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD), (libc::M_ARENA_MAX, MAX_ARENAS)] {
        // SAFETY: without another thread no allocation runs meanwhile; the parameters and their ranges are mallopt(3)'s.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}
