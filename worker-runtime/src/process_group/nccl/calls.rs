//! NCCL's functions as calls that fail with words: the library, what its codes mean, and the id of a communicator.
#![expect(unsafe_code, reason = "calls into a foreign library")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::find::{Place, Surroundings};
use super::symbols::{Code, Handle, ID_LEN, IN_PROGRESS, SUCCESS, Symbols, UniqueId};
use crate::cuda::Tried;
use crate::diagnostic::{Details, Diagnostic};
use crate::library;

/// The oldest release that we use: the first one with `ncclCommSplit`.
const OLDEST: NcclVersion = NcclVersion(21_800);

/// NCCL's library, loaded. Clones are the same library.
#[derive(Clone)]
pub struct Nccl {
    inner: Arc<Inner>,
}

struct Inner {
    symbols: Symbols,
    path: PathBuf,
    version: NcclVersion,
}

/// A release of NCCL, as `NCCL_VERSION_CODE` counts: 2.30.7 is 23007.
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

/// NCCL's library cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}there is no usable NCCL; looked for{}", Details(self), Places(.tried))]
pub struct NcclMissing {
    /// Every place in the order in which it was tried.
    pub tried: Vec<Tried>,
}

impl NcclMissing {
    /// What to do about it.
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

struct Places<'a>(&'a [Tried]);

impl fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|tried| tried.fmt(f))
    }
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// NCCL says so.
    #[error("{}`{function}` failed: {code}{}", Details(self), Detail(.detail))]
    Call {
        /// The C function.
        function: &'static str,
        /// What it returned.
        code: NcclCode,
        /// The library's own words about its last error; empty where it has none.
        detail: String,
    },
    /// It is not done in time, and the communicator was aborted.
    #[error("{}`{function}` was not done within {timeout:?}", Details(self))]
    Timeout {
        /// The C function.
        function: &'static str,
        /// How long it had.
        timeout: Duration,
    },
    /// The communicator was aborted before or during the call.
    #[error("`{function}` cannot be called: the communicator was aborted")]
    Aborted {
        /// The C function.
        function: &'static str,
    },
    /// The library is too old for it.
    #[error("{}NCCL {version} has no `{function}`", Details(self))]
    Unsupported {
        /// The C function.
        function: &'static str,
        /// The library's release.
        version: NcclVersion,
    },
    /// Memory whose length does not fit the call; NCCL was not called.
    #[error("`{function}` takes {expected} bytes here, not {given}")]
    Length {
        /// The C function.
        function: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        given: usize,
    },
    /// A color that NCCL does not know; it was not called.
    #[error("{}`ncclCommSplit` takes colors up to {}, not {color}", Details(self), i32::MAX)]
    Color {
        /// The color.
        color: u32,
    },
    /// No thread could be started to watch over a call.
    #[error("`{function}` needs a thread, of which there are no more")]
    NoThread {
        /// The C function.
        function: &'static str,
    },
}

impl NcclError {
    /// What to do about it, where something is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Call { code: NcclCode(1), .. } => {
                Some("a GPU and a driver new enough for this NCCL are needed: see `nvidia-smi`")
            }
            Self::Call { code: NcclCode(2), .. } => {
                Some("the network or the shared memory of this node: NCCL_DEBUG=INFO says more")
            }
            Self::Call { code: NcclCode(6), .. } => Some("another rank ended, or the network to it failed"),
            Self::Call { code: NcclCode(4 | 5), .. } => Some("NCCL_DEBUG=WARN says which argument"),
            Self::Call { .. } | Self::Timeout { .. } => Some("NCCL_DEBUG=INFO says more"),
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

/// `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclCode(pub i32);

impl NcclCode {
    /// Its name in `nccl.h`, and in words.
    fn words(self) -> (&'static str, &'static str) {
        match self.0 {
            0 => ("ncclSuccess", "no error"),
            1 => ("ncclUnhandledCudaError", "a call of CUDA failed"),
            2 => ("ncclSystemError", "a call of the system failed"),
            3 => ("ncclInternalError", "an internal error of NCCL"),
            4 => ("ncclInvalidArgument", "an invalid argument"),
            5 => ("ncclInvalidUsage", "an invalid use"),
            6 => ("ncclRemoteError", "another rank ended or the network failed"),
            7 => ("ncclInProgress", "still in progress"),
            8 => ("ncclTimeout", "out of time"),
            _ => ("unknown", "an error that is newer than this program"),
        }
    }
}

impl fmt::Display for NcclCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, words) = self.words();
        write!(f, "{words} ({name}, {})", self.0)
    }
}

struct Detail<'a>(&'a str);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

/// What the ranks of a communicator have in common: rank 0 makes it and gives it to the others, as bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclId(pub [u8; ID_LEN]);

impl fmt::Debug for NcclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NcclId")
    }
}

impl Nccl {
    /// Finds and loads the library: the file `explicit` if one is given, else the one that `RANKRUN_NCCL` names, else by
    /// its name wherever the loader looks, else in the PyPI wheel of the active Python environment (`VIRTUAL_ENV`,
    /// `CONDA_PREFIX`, the `python3` and `python` in `PATH`).
    ///
    /// # Errors
    /// Every place where it was looked, and why it was of no use there.
    pub fn load(explicit: Option<&Path>) -> Result<Self, NcclMissing> {
        let mut tried = Vec::new();
        for place in Surroundings::of_this_process().places(explicit) {
            match Self::open(&place) {
                Ok(nccl) => return Ok(nccl),
                Err(reason) => tried.push(Tried { place: place.to_string(), reason }),
            }
        }
        Err(NcclMissing { tried })
    }

    fn open(place: &Place) -> Result<Self, String> {
        let name: &OsStr = match place {
            Place::Loader(name) => name.as_ref(),
            Place::NoWheel { .. } => return Err("no wheel `nvidia-nccl-*` is installed there".to_owned()),
            // The loader opens whatever it is given, and would wait for the writer of a pipe.
            Place::Named { file, .. } | Place::Wheel(file) if file.exists() && !file.is_file() => {
                return Err("not a file".to_owned());
            }
            // Without a slash the loader would look it up elsewhere.
            Place::Named { file, .. } if !file.exists() => return Err("there is no such file".to_owned()),
            Place::Named { file, .. } | Place::Wheel(file) => file.as_os_str(),
        };
        let absolute = std::path::absolute(name).unwrap_or_else(|_| PathBuf::from(name));
        let is_path = !matches!(place, Place::Loader(_));
        let library = library::open(if is_path { absolute.as_os_str() } else { name })?;
        let symbols = Symbols::of(&library)
            .map_err(|(function, words)| format!("it has no `{function}`, so it is no NCCL: {words}"))?;
        let mut version = 0;
        // SAFETY: the number lives through the call.
        let code = unsafe { (symbols.get_version)(&raw mut version) };
        let version = NcclVersion(u32::try_from(version).unwrap_or(0));
        if code != SUCCESS {
            return Err(format!("`ncclGetVersion` failed: {}", NcclCode(code)));
        }
        if version < OLDEST {
            return Err(format!("it is NCCL {version}, and {OLDEST} is the oldest that is supported"));
        }
        // It has threads of its own, under which it cannot be unloaded.
        std::mem::forget(library);
        let path = library::file_of(symbols.get_version as *const c_void).unwrap_or(absolute);
        Ok(Self { inner: Arc::new(Inner { symbols, path, version }) })
    }

    /// The release of the library.
    #[must_use]
    pub fn version(&self) -> NcclVersion {
        self.inner.version
    }

    /// The file it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// A new id, for one communicator. No GPU is needed.
    ///
    /// # Errors
    /// NCCL finds no network to be found by.
    pub fn unique_id(&self) -> Result<NcclId, NcclError> {
        let mut id = UniqueId([0; ID_LEN]);
        // SAFETY: the id lives through the call.
        let code = unsafe { (self.symbols().get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", code).map(|()| NcclId(id.0))
    }

    pub(super) fn symbols(&self) -> &Symbols {
        &self.inner.symbols
    }

    /// Fails with what NCCL says about `code`. Something that goes on is no failure.
    pub(super) fn check(&self, function: &'static str, code: Code) -> Result<(), NcclError> {
        if matches!(code, SUCCESS | IN_PROGRESS) { Ok(()) } else { Err(self.error(function, code)) }
    }

    /// The error of a call that returned `code`.
    pub(super) fn error(&self, function: &'static str, code: Code) -> NcclError {
        let none: Handle = ptr::null_mut();
        // SAFETY: the handle may be null; NCCL does not look at it.
        let last = self.symbols().get_last_error.map_or(ptr::null(), |last| unsafe { last(none) });
        let detail = text(last);
        // A code that is new to us is not to the library.
        let detail = if detail.is_empty() && NcclCode(code).words().0 == "unknown" {
            // SAFETY: any code may be asked about.
            text(unsafe { (self.symbols().get_error_string)(code) })
        } else {
            detail
        };
        NcclError::Call { function, code: NcclCode(code), detail }
    }
}

/// The words at a pointer that NCCL returned, on one line.
fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: NCCL returns constant texts, or one of its buffers that always holds an end.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} from `{}`", self.version(), self.path().display())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named { by, file } => write!(f, "{} (named by {by})", file.display()),
            Self::Loader(name) => f.write_str(name),
            Self::Wheel(file) => write!(f, "{}", file.display()),
            Self::NoWheel { of, prefix } => write!(f, "{} ({of})", prefix.display()),
        }
    }
}
