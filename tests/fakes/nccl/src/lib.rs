//! A fake `libnccl.so.2` that is also a fake `libcuda.so.1`: as much of the driver as tells whether work on a stream is done.
//! "Device" memory is the memory of the process.
//!
//! A world of one works: what is sent comes back, and work on streams is done at once. The calls of larger worlds exchange
//! nothing, since what is tested with them is who watches over them.
//!
//! The variable `FAKE_NCCL` says what goes wrong, as words of the form `what=value` with blanks between them, read at each call:
//!
//! ```text
//! version=21700            what ncclGetVersion says
//! fail=ncclAllReduce:6     this function returns this code; `:6:3`: from its third call on
//! hang=ncclAllReduce       this function returns only when the communicator is aborted
//! freeze=ncclCommAbort     this function never returns
//! async=6                  ncclCommGetAsyncError reports this once a collective call was made
//! stuck=1                  work on streams is not done before the communicator is aborted
//! slow=2                   communicators and calls are in progress for so many looks
//! busy=1                   calls are in progress for ever
//! absent=1                 ranks that never come: a communicator stays in progress
//! together=1               ranks of other processes count as having come
//! nodevice=1               the driver shows no device
//! ```
#![expect(unsafe_code, reason = "a C library writes through its callers' pointers")]

mod driver;
mod faults;
mod world;

use std::ffi::{c_char, c_int, c_uint, c_void};

use faults::enter;
use world::{Comm, IN_PROGRESS, SUCCESS};

const INVALID_ARGUMENT: c_int = 4;

/// `ncclUniqueId`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// The beginning of `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    if let Some(code) = enter("ncclGetVersion", None) {
        return code;
    }
    let said = faults::value("version").and_then(|value| value.parse().ok()).unwrap_or(23_007);
    // SAFETY: the caller gives a place for one number.
    unsafe { version.write(said) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    if let Some(code) = enter("ncclGetUniqueId", None) {
        return code;
    }
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&world::fresh_id().to_le_bytes());
    // SAFETY: the caller gives a place for an id.
    unsafe { id.write(UniqueId(bytes)) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(_: c_int) -> *const c_char {
    c"a fake error".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_: *const Comm) -> *const c_char {
    c"fake.cc:1 the fake was told to fail\n".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut *const Comm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    if let Some(code) = enter("ncclCommInitRankConfig", None) {
        return code;
    }
    // SAFETY: the caller gives a configuration.
    let config = unsafe { &*config };
    if config.magic != 0xcafe_beef || config.version < 21_400 || config.size < size_of::<Config>() {
        return INVALID_ARGUMENT;
    }
    if config.blocking != 0 || !(0..ranks).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[..8]);
    let comm = Comm::join(u64::from_le_bytes(number), ranks, rank);
    // SAFETY: the caller gives a place for one pointer.
    unsafe { to.write(Box::into_raw(Box::new(comm))) };
    IN_PROGRESS
}

/// A communicator that was not freed.
///
/// # Safety
/// `comm` came from `ncclCommInitRankConfig` or `ncclCommSplit`; it is leaked, so that a use after its end is seen here and
/// does no harm.
unsafe fn living<'a>(comm: *const Comm) -> Option<&'a Comm> {
    // SAFETY: the caller's promise; memory of communicators is never freed.
    unsafe { comm.as_ref() }.filter(|comm| comm.is_alive())
}

/// One call of a function on a communicator.
///
/// # Safety
/// As [`living`].
unsafe fn on(function: &str, comm: *const Comm, act: impl FnOnce(&Comm) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(comm) = (unsafe { living(comm) }) else { world::used_after_its_end(function) };
    let _inside = comm.inside(function);
    enter(function, Some(comm)).unwrap_or_else(|| act(comm))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(comm: *const Comm, state: *mut c_int) -> c_int {
    // SAFETY: the caller gives a communicator and a place for one number.
    unsafe {
        on("ncclCommGetAsyncError", comm, |comm| {
            state.write(comm.state());
            SUCCESS
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(comm: *const Comm, count: *mut c_int) -> c_int {
    // SAFETY: the caller gives a communicator and a place for one number.
    unsafe {
        on("ncclCommCount", comm, |comm| {
            count.write(comm.ranks);
            SUCCESS
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(comm: *const Comm, rank: *mut c_int) -> c_int {
    // SAFETY: the caller gives a communicator and a place for one number.
    unsafe {
        on("ncclCommUserRank", comm, |comm| {
            rank.write(comm.rank);
            SUCCESS
        })
    }
}

/// Every rank is alone in what comes of it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommSplit(
    comm: *const Comm,
    color: c_int,
    _key: c_int,
    to: *mut *const Comm,
    _config: *const Config,
) -> c_int {
    // SAFETY: the caller gives a communicator and a place for one pointer.
    unsafe {
        on("ncclCommSplit", comm, |_| {
            let child = || Box::into_raw(Box::new(Comm::join(world::fresh_id(), 1, 0))).cast_const();
            to.write(if color < 0 { std::ptr::null() } else { child() });
            IN_PROGRESS
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommFinalize(comm: *const Comm) -> c_int {
    // SAFETY: the caller gives a communicator.
    unsafe { on("ncclCommFinalize", comm, |_| IN_PROGRESS) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(comm: *const Comm) -> c_int {
    // SAFETY: the caller gives a communicator.
    unsafe {
        on("ncclCommDestroy", comm, |comm| {
            comm.end();
            SUCCESS
        })
    }
}

/// The only function that may come while another one is inside.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(comm: *const Comm) -> c_int {
    // SAFETY: the caller gives a communicator.
    let Some(comm) = (unsafe { living(comm) }) else { world::used_after_its_end("ncclCommAbort") };
    comm.end();
    enter("ncclCommAbort", None).unwrap_or(SUCCESS)
}

/// A call that moves `bytes` from one place to another.
///
/// # Safety
/// As [`living`]; both places have so many bytes, and may be the same.
unsafe fn collective(function: &str, comm: *const Comm, (from, to): (u64, u64), bytes: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on(function, comm, |comm| {
            if comm.ranks == 1 && from != to {
                std::ptr::copy(from as *const u8, to as *mut u8, bytes);
            }
            comm.put_on_a_stream();
            comm.answer()
        })
    }
}

/// Bytes of an element.
fn size(data_type: c_int) -> usize {
    match data_type {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        _ => 8,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    _how: c_int,
    comm: *const Comm,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclAllReduce", comm, (from, to), count * size(data_type)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    _root: c_int,
    comm: *const Comm,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclBroadcast", comm, (from, to), count * size(data_type)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduce(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    _how: c_int,
    _root: c_int,
    comm: *const Comm,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclReduce", comm, (from, to), count * size(data_type)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduceScatter(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    _how: c_int,
    comm: *const Comm,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclReduceScatter", comm, (from, to), count * size(data_type)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    comm: *const Comm,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclAllGather", comm, (from, to), count * size(data_type)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    from: u64,
    count: usize,
    data_type: c_int,
    peer: c_int,
    comm: *const Comm,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a communicator and memory.
    unsafe {
        on("ncclSend", comm, |comm| {
            if peer == comm.rank {
                let bytes = std::slice::from_raw_parts(from as *const u8, count * size(data_type));
                comm.post(bytes.to_vec());
            }
            comm.put_on_a_stream();
            comm.answer()
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    to: u64,
    count: usize,
    data_type: c_int,
    peer: c_int,
    comm: *const Comm,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a communicator and memory.
    unsafe {
        on("ncclRecv", comm, |comm| {
            if peer == comm.rank {
                comm.await_post(to, count * size(data_type));
            }
            comm.put_on_a_stream();
            comm.answer()
        })
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    enter("ncclGroupStart", None).unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    enter("ncclGroupEnd", None).unwrap_or_else(|| {
        world::deliver();
        SUCCESS
    })
}
