//! NCCL's C interface: types, and a table of functions from one library.
//!
//! Types and values are those of `nccl.h` 2.30. Enums are plain integers, since a newer library may return
//! codes that this table does not know.
#![expect(unsafe_code, reason = "a foreign library")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::library;

/// `ncclComm_t`.
pub(crate) type Handle = *mut c_void;
/// `ncclResult_t`.
pub(crate) type Code = c_int;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(crate) type RawStream = *mut c_void;

/// `NCCL_UNIQUE_ID_BYTES`.
pub(crate) const ID_LEN: usize = 128;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const IN_PROGRESS: Code = 7;

/// `ncclUniqueId`, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; ID_LEN]);

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOR: c_int = -1;

/// `ncclConfig_t` of 2.18. NCCL copies `size` bytes and fills in the rest, so that this
/// layout works with all later versions.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once and are polled.
    pub(crate) fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

macro_rules! symbols {
    (
        required { $($field:ident: $name:literal ($($argument:ty),*) -> $result:ty,)* }
        optional { $($extra:ident: $extra_name:literal ($($extra_argument:ty),*) -> $extra_result:ty,)* }
    ) => {
        /// The functions of one library, valid as long as it stays loaded.
        pub(crate) struct Symbols {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(crate) $extra: Option<unsafe extern "C" fn($($extra_argument),*) -> $extra_result>,)*
        }

        impl Symbols {
            /// Looks up every function in the library.
            ///
            /// # Errors
            /// The missing function and the loader's message.
            pub(crate) fn of(library: &Library) -> Result<Self, (&'static str, String)> {
                // SAFETY: each type is that of `nccl.h` for this name.
                unsafe {
                    Ok(Self {
                        $($field: library::load_function(library, $name).map_err(|reason| ($name, reason))?,)*
                        $($extra: library::load_function(library, $extra_name).ok(),)*
                    })
                }
            }
        }
    };
}

symbols! {
    required {
    get_version: "ncclGetVersion" (*mut c_int) -> Code,
    get_unique_id: "ncclGetUniqueId" (*mut UniqueId) -> Code,
    get_error_string: "ncclGetErrorString" (Code) -> *const c_char,
    init: "ncclCommInitRankConfig" (*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Code,
    finalize: "ncclCommFinalize" (Handle) -> Code,
    destroy: "ncclCommDestroy" (Handle) -> Code,
    abort: "ncclCommAbort" (Handle) -> Code,
    get_async_error: "ncclCommGetAsyncError" (Handle, *mut Code) -> Code,
    all_reduce: "ncclAllReduce" (u64, u64, usize, c_int, c_int, Handle, RawStream) -> Code,
    broadcast: "ncclBroadcast" (u64, u64, usize, c_int, c_int, Handle, RawStream) -> Code,
    reduce: "ncclReduce" (u64, u64, usize, c_int, c_int, c_int, Handle, RawStream) -> Code,
    reduce_scatter: "ncclReduceScatter" (u64, u64, usize, c_int, c_int, Handle, RawStream) -> Code,
    all_gather: "ncclAllGather" (u64, u64, usize, c_int, Handle, RawStream) -> Code,
    send: "ncclSend" (u64, usize, c_int, c_int, Handle, RawStream) -> Code,
    receive: "ncclRecv" (u64, usize, c_int, c_int, Handle, RawStream) -> Code,
    count: "ncclCommCount" (Handle, *mut c_int) -> Code,
    user_rank: "ncclCommUserRank" (Handle, *mut c_int) -> Code,
    group_start: "ncclGroupStart" () -> Code,
    group_end: "ncclGroupEnd" () -> Code,
    }
    optional {
    get_last_error: "ncclGetLastError" (Handle) -> *const c_char,
    split: "ncclCommSplit" (Handle, c_int, c_int, *mut Handle, *mut Config) -> Code,
    }
}
