//! NCCL's library: loading, error codes and the id of a communicator.
#![expect(unsafe_code, reason = "calls into a foreign library")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::find::{LibraryEnv, LibraryPlace};
use super::symbols::{Code, Handle, ID_LEN, IN_PROGRESS, SUCCESS, Symbols, UniqueId};
use crate::cuda::SearchedPlace;
use crate::diagnostic::{Details, Diagnostic};
use crate::library;

/// The oldest supported release: the first with `ncclCommSplit`.
const MIN_VERSION: NcclVersion = NcclVersion(21_800);

/// NCCL's library, loaded. Clones share it.
#[derive(Clone)]
pub struct Nccl {
    inner: Arc<Inner>,
}

struct Inner {
    symbols: Symbols,
    path: PathBuf,
    version: NcclVersion,
}

/// A release of NCCL as `NCCL_VERSION_CODE` counts it: 2.30.7 is 23007.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub u32);

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0;
        // Up to 2.8 the code had a digit less.
        let (major, rest) =
            if code < 10_000 { (code / 1000, code % 1000) } else { (code / 10_000, code % 10_000) };
        write!(f, "{major}.{}.{}", rest / 100, rest % 100)
    }
}

/// No usable library of NCCL was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}NCCL cannot be loaded; searched:{}", Details(self), SearchList(.searched))]
pub struct NcclMissing {
    /// Every searched place with its error, in order.
    pub searched: Vec<SearchedPlace>,
}

impl NcclMissing {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "install NCCL (`pip install nvidia-nccl-cu13`), or name its file with `--nccl-lib` or RANKRUN_NCCL"
    }
}

impl Diagnostic for NcclMissing {
    fn hint(&self) -> Option<&str> {
        Some(Self::hint(self))
    }
}

struct SearchList<'a>(&'a [SearchedPlace]);

impl fmt::Display for SearchList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|searched| searched.fmt(f))
    }
}

/// A failed call of NCCL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// NCCL returned an error code.
    #[error("{}`{function}` failed: {code}{}", Details(self), ErrorDetail(.detail))]
    Call {
        /// Name of the C function.
        function: &'static str,
        /// The code that it returned.
        code: NcclCode,
        /// NCCL's text about its last error; empty if it has none.
        detail: String,
    },
    /// The call was not done in time, and the communicator was aborted.
    #[error("{}`{function}` is not done within {timeout:?}", Details(self))]
    Timeout {
        /// Name of the C function.
        function: &'static str,
        /// The exceeded limit.
        timeout: Duration,
    },
    /// The communicator was aborted before or during the call.
    #[error("`{function}` cannot be called: the communicator is aborted")]
    Aborted {
        /// Name of the C function.
        function: &'static str,
    },
    /// The loaded release lacks the function.
    #[error("{}NCCL {version} has no `{function}`", Details(self))]
    Unsupported {
        /// Name of the C function.
        function: &'static str,
        /// The loaded release.
        version: NcclVersion,
    },
    /// A buffer has the wrong length; NCCL was not called.
    #[error("`{function}` needs {expected} bytes, but the call passes {actual}")]
    Length {
        /// Name of the C function.
        function: &'static str,
        /// The required length in bytes.
        expected: usize,
        /// The given length in bytes.
        actual: usize,
    },
    /// The color is above `i32::MAX`; NCCL was not called.
    #[error("{}`ncclCommSplit` takes colors up to {}, not {color}", Details(self), i32::MAX)]
    Color {
        /// The refused color.
        color: u32,
    },
    /// The system refuses the thread that watches the call.
    #[error("`{function}` cannot start a thread")]
    NoThread {
        /// Name of the C function.
        function: &'static str,
    },
}

impl NcclError {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Call { code: NcclCode(1), .. } => {
                Some("check with `nvidia-smi` that the GPU and its driver support this NCCL")
            }
            Self::Call { code: NcclCode(2), .. } => {
                Some("check the network and the shared memory of this node; NCCL_DEBUG=INFO prints details")
            }
            Self::Call { code: NcclCode(6), .. } => {
                Some("find the rank that ended, or check the network between the nodes")
            }
            Self::Call { code: NcclCode(4 | 5), .. } => {
                Some("set NCCL_DEBUG=WARN to see which argument is invalid")
            }
            Self::Call { .. } | Self::Timeout { .. } => Some("set NCCL_DEBUG=INFO for details"),
            Self::Unsupported { .. } => Some("name a newer NCCL with `--nccl-lib` or RANKRUN_NCCL"),
            Self::Color { .. } => Some("number the colors from 0"),
            Self::Aborted { .. } | Self::Length { .. } | Self::NoThread { .. } => None,
        }
    }
}

impl Diagnostic for NcclError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

/// A result code: `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclCode(pub i32);

impl NcclCode {
    /// Its name in `nccl.h`, and its meaning.
    fn name_and_meaning(self) -> (&'static str, &'static str) {
        match self.0 {
            0 => ("ncclSuccess", "no error"),
            1 => ("ncclUnhandledCudaError", "a CUDA call failed"),
            2 => ("ncclSystemError", "a system call failed"),
            3 => ("ncclInternalError", "an internal error of NCCL"),
            4 => ("ncclInvalidArgument", "an invalid argument"),
            5 => ("ncclInvalidUsage", "an invalid usage"),
            6 => ("ncclRemoteError", "another rank ended or the network failed"),
            7 => ("ncclInProgress", "still in progress"),
            8 => ("ncclTimeout", "out of time"),
            _ => ("unknown", "an error code that this program does not know"),
        }
    }
}

impl fmt::Display for NcclCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, meaning) = self.name_and_meaning();
        write!(f, "{meaning} ({name}, {})", self.0)
    }
}

struct ErrorDetail<'a>(&'a str);

impl fmt::Display for ErrorDetail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

/// The id that all ranks of a communicator share: rank 0 makes it and sends it to the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclId(pub [u8; ID_LEN]);

impl fmt::Debug for NcclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NcclId")
    }
}

impl Nccl {
    /// Finds and loads the library. It searches, in order: the file `explicit` or, without it, the file in
    /// `RANKRUN_NCCL` (no other place is tried then); the loader's path; the PyPI wheel of the active Python
    /// environment (`VIRTUAL_ENV`, `CONDA_PREFIX`, the `python3` and `python` in `PATH`).
    ///
    /// # Errors
    /// Every searched place, each with its error.
    pub fn load(explicit: Option<&Path>) -> Result<Self, NcclMissing> {
        let mut searched = Vec::new();
        for place in LibraryEnv::from_process().search_places(explicit) {
            match Self::open(&place) {
                Ok(nccl) => return Ok(nccl),
                Err(reason) => searched.push(SearchedPlace { place: place.to_string(), reason }),
            }
        }
        Err(NcclMissing { searched })
    }

    fn open(place: &LibraryPlace) -> Result<Self, String> {
        let name: &OsStr = match place {
            LibraryPlace::Loader(name) => name.as_ref(),
            LibraryPlace::NoWheel { .. } => {
                return Err("no wheel `nvidia-nccl-*` is installed there".to_owned());
            }
            // The loader would open a pipe and wait for its writer.
            LibraryPlace::Named { file, .. } | LibraryPlace::Wheel(file)
                if file.exists() && !file.is_file() =>
            {
                return Err("not a file".to_owned());
            }
            // The loader would search its path for a name without a slash.
            LibraryPlace::Named { file, .. } if !file.exists() => {
                return Err("there is no such file".to_owned());
            }
            LibraryPlace::Named { file, .. } | LibraryPlace::Wheel(file) => file.as_os_str(),
        };
        let absolute = std::path::absolute(name).unwrap_or_else(|_| PathBuf::from(name));
        let is_path = !matches!(place, LibraryPlace::Loader(_));
        let library = library::open(if is_path { absolute.as_os_str() } else { name })?;
        let symbols = Symbols::of(&library)
            .map_err(|(function, reason)| format!("it has no `{function}`, so it is not NCCL: {reason}"))?;
        let mut version = 0;
        // SAFETY: the number lives through the call.
        let code = unsafe { (symbols.get_version)(&raw mut version) };
        let version = NcclVersion(u32::try_from(version).unwrap_or(0));
        if code != SUCCESS {
            return Err(format!("`ncclGetVersion` failed: {}", NcclCode(code)));
        }
        if version < MIN_VERSION {
            return Err(format!("NCCL {version} is too old: {MIN_VERSION} is the oldest supported release"));
        }
        // Its threads keep running, so it cannot be unloaded.
        std::mem::forget(library);
        let path = library::library_path_of(symbols.get_version as *const c_void).unwrap_or(absolute);
        Ok(Self { inner: Arc::new(Inner { symbols, path, version }) })
    }

    /// The release of the library.
    #[must_use]
    pub fn version(&self) -> NcclVersion {
        self.inner.version
    }

    /// Path of the loaded file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Makes a new id for one communicator. It needs no GPU.
    ///
    /// # Errors
    /// NCCL finds no network interface.
    pub fn unique_id(&self) -> Result<NcclId, NcclError> {
        let mut id = UniqueId([0; ID_LEN]);
        // SAFETY: the id lives through the call.
        let code = unsafe { (self.symbols().get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", code).map(|()| NcclId(id.0))
    }

    pub(super) fn symbols(&self) -> &Symbols {
        &self.inner.symbols
    }

    /// Returns NCCL's error for `code`. A call in progress has not failed.
    pub(super) fn check(&self, function: &'static str, code: Code) -> Result<(), NcclError> {
        if matches!(code, SUCCESS | IN_PROGRESS) { Ok(()) } else { Err(self.error(function, code)) }
    }

    /// NCCL's error for a call that returned `code`.
    pub(super) fn error(&self, function: &'static str, code: Code) -> NcclError {
        let none: Handle = ptr::null_mut();
        // SAFETY: the handle may be null; NCCL does not look at it.
        let last = self.symbols().get_last_error.map_or(ptr::null(), |last| unsafe { last(none) });
        let detail = single_line_text(last);
        // The library may know a code that this table does not.
        let detail = if detail.is_empty() && NcclCode(code).name_and_meaning().0 == "unknown" {
            // SAFETY: any code may be asked about.
            single_line_text(unsafe { (self.symbols().get_error_string)(code) })
        } else {
            detail
        };
        NcclError::Call { function, code: NcclCode(code), detail }
    }
}

/// The text at a pointer that NCCL returned, on one line.
fn single_line_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: NCCL returns constant texts, or one of its buffers that always holds an end.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} from `{}`", self.version(), self.path().display())
    }
}

impl fmt::Display for LibraryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named { by, file } => write!(f, "{} (named by {by})", file.display()),
            Self::Loader(name) => f.write_str(name),
            Self::Wheel(file) => write!(f, "{}", file.display()),
            Self::NoWheel { of, prefix } => write!(f, "{} ({of})", prefix.display()),
        }
    }
}
