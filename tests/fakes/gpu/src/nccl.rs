//! NCCL's functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::device::{current, is_machine};
use crate::exchange::{self, Kind, Order};
use crate::faults::{self, enter};
use crate::reduce::{ReduceOp, size};
use crate::stream::device_of;
use crate::wire::{self, Wire};
use crate::world::{self, Comm, IN_PROGRESS, SUCCESS};

/// `ncclUnhandledCudaError`.
const CUDA_FAILED: c_int = 1;
/// `ncclSystemError`.
const SYSTEM_FAILED: c_int = 2;
const INVALID_ARGUMENT: c_int = 4;

/// `ncclUniqueId`: a number, and on a machine where the ranks find what they share.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId([u8; 128]);

impl UniqueId {
    fn number(&self) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(number)
    }

    fn place(&self) -> (u32, u32) {
        let half = |at: usize| {
            let mut number = [0; 4];
            number.copy_from_slice(&self.0[at..at + 4]);
            u32::from_le_bytes(number)
        };
        (half(8), half(12))
    }
}

/// The beginning of `ncclConfig_t`.
#[repr(C)]
pub(crate) struct Config {
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
    let number = faults::value("version").and_then(|value| value.parse().ok()).unwrap_or(23_007);
    // SAFETY: the caller gives a place for one number.
    unsafe { version.write(number) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    if let Some(code) = enter("ncclGetUniqueId", None) {
        return code;
    }
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&world::fresh_id().to_le_bytes());
    if is_machine() {
        let Ok((process, descriptor)) = wire::create() else { return SYSTEM_FAILED };
        bytes[8..12].copy_from_slice(&process.to_le_bytes());
        bytes[12..16].copy_from_slice(&descriptor.to_le_bytes());
    }
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
    if current().is_err() {
        return CUDA_FAILED;
    }
    let is_shared = is_machine() && ranks > 1;
    let Ok(wire) = is_shared.then(|| Wire::open(id.place(), ranks.cast_unsigned() as usize)).transpose()
    else {
        return SYSTEM_FAILED;
    };
    let comm = Comm::join(id.number(), ranks, rank, wire);
    // SAFETY: the caller gives a place for one pointer.
    unsafe { to.write(Box::into_raw(Box::new(comm))) };
    IN_PROGRESS
}

/// A communicator that was not freed.
///
/// # Safety
/// `comm` came from `ncclCommInitRankConfig` or `ncclCommSplit`; it is leaked, so that a use after its end is seen here and
/// does no harm.
unsafe fn live_comm<'a>(comm: *const Comm) -> Option<&'a Comm> {
    // SAFETY: the caller's promise; memory of communicators is never freed.
    unsafe { comm.as_ref() }.filter(|comm| comm.is_alive())
}

/// One call of a function on a communicator.
///
/// # Safety
/// As [`living`].
unsafe fn on(function: &str, comm: *const Comm, act: impl FnOnce(&Comm) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(comm) = (unsafe { live_comm(comm) }) else { world::used_after_its_end(function) };
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

/// Every rank is alone in the resulting communicator.
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
            let child = || Box::into_raw(Box::new(Comm::join(world::fresh_id(), 1, 0, None))).cast_const();
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
    let Some(comm) = (unsafe { live_comm(comm) }) else { world::used_after_its_end("ncclCommAbort") };
    comm.end();
    enter("ncclCommAbort", None).unwrap_or(SUCCESS)
}

/// A call that moves elements.
///
/// # Safety
/// As [`living`]; the order's places have as many bytes as it needs.
unsafe fn collective(function: &str, comm: *const Comm, order: Order, stream: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; communicators are leaked.
    unsafe {
        let Some(lasting) = comm.as_ref() else { return INVALID_ARGUMENT };
        on(function, comm, |comm| {
            if let Some(device) = comm.device {
                let is_right = device_of(stream).is_ok_and(|owner| owner == device);
                if !is_right || !order.is_on(device, comm.rank(), comm.size()) {
                    return exchange::fail(INVALID_ARGUMENT);
                }
            }
            let bytes = order.count * size(order.data_type);
            if comm.wire().is_some() {
                let code = exchange::put(lasting, order);
                if code != SUCCESS {
                    return code;
                }
            } else {
                alone(comm, order, bytes);
            }
            comm.put_on_a_stream();
            comm.answer()
        })
    }
}

/// What a rank does without the others: a world of one works, and in a larger one nothing is exchanged.
///
/// # Safety
/// As [`collective`].
unsafe fn alone(comm: &Comm, Order { kind, from, to, .. }: Order, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            Kind::Send(peer) if peer == comm.rank() => {
                comm.post(std::slice::from_raw_parts(from as *const u8, bytes).to_vec());
            }
            Kind::Receive(peer) if peer == comm.rank() => comm.await_post(to, bytes),
            Kind::Send(_) | Kind::Receive(_) => {}
            _ if comm.ranks == 1 && from != to => std::ptr::copy(from as *const u8, to as *mut u8, bytes),
            _ => {}
        }
    }
}

/// A rank that is given as a number.
fn peer(number: c_int) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    how: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    let Some(how) = ReduceOp::of(how) else { return INVALID_ARGUMENT };
    let kind = Kind::AllReduce(how);
    let order = Order { kind, data_type, from, to, count };
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclAllReduce", comm, order, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    root: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    let kind = Kind::Broadcast(peer(root));
    let order = Order { kind, data_type, from, to, count };
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclBroadcast", comm, order, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduce(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    how: c_int,
    root: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    let Some(how) = ReduceOp::of(how) else { return INVALID_ARGUMENT };
    let kind = Kind::Reduce(how, peer(root));
    let order = Order { kind, data_type, from, to, count };
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclReduce", comm, order, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduceScatter(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    how: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    let Some(how) = ReduceOp::of(how) else { return INVALID_ARGUMENT };
    let kind = Kind::ReduceScatter(how);
    let order = Order { kind, data_type, from, to, count };
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclReduceScatter", comm, order, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    data_type: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    let kind = Kind::AllGather;
    let order = Order { kind, data_type, from, to, count };
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclAllGather", comm, order, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    from: u64,
    count: usize,
    data_type: c_int,
    to_rank: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    let kind = Kind::Send(peer(to_rank));
    let order = Order { kind, data_type, from, to: 0, count };
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclSend", comm, order, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    to: u64,
    count: usize,
    data_type: c_int,
    from_rank: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    let kind = Kind::Receive(peer(from_rank));
    let order = Order { kind, data_type, from: 0, to, count };
    // SAFETY: the caller gives a communicator and memory.
    unsafe { collective("ncclRecv", comm, order, stream) }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    enter("ncclGroupStart", None).unwrap_or_else(|| {
        exchange::begin();
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    enter("ncclGroupEnd", None).unwrap_or_else(|| {
        world::deliver();
        exchange::end()
    })
}
