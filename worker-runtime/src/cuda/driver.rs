//! The CUDA driver's library, with the few functions that the runtime needs. cudarc is not used:
//! it panics if one is missing.
#![expect(unsafe_code, reason = "calls into the driver's library")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use crate::diagnostic::{Details, Diagnostic};
use crate::library;

/// Names for the loader: the driver's package installs the first, a toolkit's stub only the second.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

pub(super) const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;

/// One place where a library was searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedPlace {
    /// A name for the loader, or a path.
    pub place: String,
    /// Why the library could not be used.
    pub reason: String,
}

impl fmt::Display for SearchedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n  `{}`: {}", self.place, self.reason)
    }
}

/// Why there is no usable CUDA device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaMissing {
    /// The driver's library cannot be opened; every tried name.
    #[error("{}the CUDA driver cannot be loaded; searched:{}", Details(self), DriverSearchList(.0))]
    NoLibrary(Vec<SearchedPlace>),
    /// The library lacks a function: it is too old, or not a CUDA driver.
    #[error("{}the CUDA driver `{}` has no `{function}`: {message}", Details(self), path.display())]
    NoFunction {
        /// Name of the C function.
        function: &'static str,
        /// Path of the library.
        path: PathBuf,
        /// The loader's message.
        message: String,
    },
    /// A call of the driver returned an error.
    #[error("{}the CUDA driver `{}` refused `{function}`: {message} (error {code})", Details(self), path.display())]
    Refused {
        /// Name of the C function.
        function: &'static str,
        /// The returned `CUresult`.
        code: i32,
        /// The driver's text for the code.
        message: String,
        /// Path of the library.
        path: PathBuf,
    },
    /// The machine has no device, or `CUDA_VISIBLE_DEVICES` hides all.
    #[error("{}the CUDA driver `{}` shows no device", Details(self), path.display())]
    NoDevice {
        /// Path of the library.
        path: PathBuf,
    },
    /// There are devices, but not this one.
    #[error("{}CUDA device {ordinal} does not exist: the driver shows {devices}", Details(self))]
    NoSuchDevice {
        /// The requested ordinal.
        ordinal: usize,
        /// Number of visible devices.
        devices: usize,
    },
    /// No device is current in this thread.
    #[error("{}this thread has no current CUDA device", Details(self))]
    NoContext,
    /// The library was loaded, but cudarc does not find it under the names that it tries.
    #[error("{}cudarc does not find the CUDA driver `{}`", Details(self), path.display())]
    Unnamed {
        /// Path of the library.
        path: PathBuf,
    },
}

impl CudaMissing {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoLibrary(_) | Self::Unnamed { .. } => {
                "install NVIDIA's driver, and in a container pass its libraries in (`--gpus`)"
            }
            Self::NoContext => {
                "make a device current first, with `cuda_context` or a first tensor of your framework; a group for host memory \
                 needs another backend than `nccl` (check RANKRUN_BACKEND)"
            }
            Self::NoFunction { .. } => "install a newer driver",
            Self::Refused { .. } => "check that `nvidia-smi` works as this user",
            Self::NoDevice { .. } | Self::NoSuchDevice { .. } => {
                "check CUDA_VISIBLE_DEVICES, which hides devices"
            }
        }
    }
}

impl Diagnostic for CudaMissing {
    fn hint(&self) -> Option<&str> {
        Some(Self::hint(self))
    }
}

struct DriverSearchList<'a>(&'a [SearchedPlace]);

impl fmt::Display for DriverSearchList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|searched| searched.fmt(f))
    }
}

/// The loaded and initialised driver.
pub(crate) struct Driver {
    path: PathBuf,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    error: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    #[cfg(feature = "nccl")]
    pub(super) calls: DriverCalls,
}

/// Functions for communicators and for gradients that are reduced during backward.
#[cfg(feature = "nccl")]
pub(super) struct DriverCalls {
    pub(super) get_context: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    pub(super) set_context: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) create_event: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int,
    pub(super) record_event: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    pub(super) query_event: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) destroy_event: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) query_stream: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    pub(super) create_stream: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int,
    pub(super) destroy_stream: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) wait_event: unsafe extern "C" fn(*mut c_void, *mut c_void, c_uint) -> c_int,
    pub(super) fill: unsafe extern "C" fn(u64, c_uchar, usize, *mut c_void) -> c_int,
    pub(super) exchange_capture_mode: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
}

/// The driver of this process, loaded and initialised by the first call.
///
/// # Errors
/// As [`cuda_available`](super::cuda_available).
pub(crate) fn driver() -> Result<&'static Driver, CudaMissing> {
    static DRIVER: OnceLock<Result<Driver, CudaMissing>> = OnceLock::new();
    DRIVER.get_or_init(Driver::open).as_ref().map_err(Clone::clone)
}

impl Driver {
    fn open() -> Result<Self, CudaMissing> {
        let mut searched = Vec::new();
        for name in NAMES {
            match library::open(OsStr::new(name)) {
                Ok(library) => return Self::load(library, name),
                Err(reason) => searched.push(SearchedPlace { place: name.to_owned(), reason }),
            }
        }
        Err(CudaMissing::NoLibrary(searched))
    }

    fn load(library: libloading::Library, name: &str) -> Result<Self, CudaMissing> {
        // Function pointers and the driver's threads need it for the rest of the process.
        let library: &'static _ = Box::leak(Box::new(library));
        // SAFETY: any function identifies the file; it is not called through this pointer.
        let any = unsafe { library::load_function::<*const c_void>(library, "cuInit") };
        let path = any.ok().and_then(library::library_path_of).unwrap_or_else(|| PathBuf::from(name));
        macro_rules! function {
            ($name:literal) => {
                library::load_function(library, $name).map_err(|message| CudaMissing::NoFunction {
                    function: $name,
                    path: path.clone(),
                    message,
                })?
            };
        }
        // SAFETY: each type is that of the driver's header for this name, with ints for its enums.
        let (init, driver): (unsafe extern "C" fn(c_uint) -> c_int, _) = unsafe {
            let init = function!("cuInit");
            let count = function!("cuDeviceGetCount");
            let error = function!("cuGetErrorString");
            #[cfg(feature = "nccl")]
            let calls = DriverCalls {
                get_context: function!("cuCtxGetCurrent"),
                set_context: function!("cuCtxSetCurrent"),
                create_event: function!("cuEventCreate"),
                record_event: function!("cuEventRecord"),
                query_event: function!("cuEventQuery"),
                destroy_event: function!("cuEventDestroy_v2"),
                query_stream: function!("cuStreamQuery"),
                allocate: function!("cuMemAlloc_v2"),
                create_stream: function!("cuStreamCreate"),
                destroy_stream: function!("cuStreamDestroy_v2"),
                wait_event: function!("cuStreamWaitEvent"),
                fill: function!("cuMemsetD8Async"),
                exchange_capture_mode: library::load_function(library, "cuThreadExchangeStreamCaptureMode")
                    .ok(),
            };
            let driver = Self {
                path: path.clone(),
                count,
                error,
                #[cfg(feature = "nccl")]
                calls,
            };
            (init, driver)
        };
        // SAFETY: the flags must be 0.
        match unsafe { init(0) } {
            NO_DEVICE => Err(CudaMissing::NoDevice { path }),
            code => driver.check("cuInit", code).map(|()| driver),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of CUDA devices that this process sees.
    pub(crate) fn device_count(&self) -> Result<usize, CudaMissing> {
        let mut count = 0;
        // SAFETY: the number lives through the call.
        self.check("cuDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn check(&self, function: &'static str, code: c_int) -> Result<(), CudaMissing> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: the pointer lives through the call.
        let answer = unsafe { (self.error)(code, &raw mut text) };
        let message = if answer == SUCCESS && !text.is_null() {
            // SAFETY: it is the driver's own constant text.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "an error without a description".to_owned()
        };
        Err(CudaMissing::Refused { function, code, message, path: self.path.clone() })
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the CUDA driver `{}`", self.path.display())
    }
}
