//! Becoming another program: the process keeps its pid, descriptors and signal mask.
#![expect(unsafe_code, reason = "the action of a signal is set before the exec")]

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::signal::{SigHandler, Signal, signal};

/// Executes the file in place of this program; `argv` begins with its name, and `environment` is all of its variables. Returns only if that fails.
///
/// # Errors
/// The kernel's refusal, or a text with a NUL byte.
pub fn become_program(
    path: &Path,
    argv: &[OsString],
    environment: &[(OsString, OsString)],
) -> io::Result<Infallible> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let argv: Vec<CString> =
        argv.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?;
    let variable = |(name, value): &(OsString, OsString)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let environment: Vec<CString> = environment.iter().map(variable).collect::<Result<_, _>>()?;
    // Rust's runtime ignores SIGPIPE, and an ignored signal would stay ignored.
    // SAFETY: no handler of ours runs.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    Ok(nix::unistd::execve(&path, &argv, &environment)?)
}
