//! Error texts for exhausted file descriptors (EMFILE, ENFILE): the limit in force, and how to raise it.

use std::error::Error;
use std::io;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t};

/// The lowest limit that a hint advises: enough for about a hundred workers.
const ADVISED: rlim_t = 1024;

/// A cause as text. If the limit on open files is reached, with that limit.
#[must_use]
pub(crate) fn cause_in_words(cause: &(dyn Error + 'static)) -> String {
    match own_limit().filter(|_| is_emfile(cause)) {
        Some(limit) => with_limit(&cause.to_string(), limit),
        None => cause.to_string(),
    }
}

/// The hint for an error: how to raise the limit on open files where that is a cause of it, else the given one.
#[must_use]
pub(crate) fn hint_of(error: &dyn Error, own_hint: Option<&str>) -> Option<String> {
    let limit = own_limit().filter(|_| has_emfile(error.source()));
    limit.map(advice).or_else(|| own_hint.map(str::to_owned))
}

fn with_limit(cause: &str, limit: rlim_t) -> String {
    format!("{cause}: the limit is {limit} (`ulimit -n`)")
}

fn advice(limit: rlim_t) -> String {
    let advised = limit.saturating_mul(2).max(ADVISED);
    format!(
        "run `ulimit -n {advised}` before the launcher, in a shell with a hard limit that allows it (`ulimit -Hn`)"
    )
}

fn has_emfile(cause: Option<&(dyn Error + 'static)>) -> bool {
    cause.is_some_and(|cause| is_emfile(cause) || has_emfile(cause.source()))
}

fn is_emfile(error: &(dyn Error + 'static)) -> bool {
    let of_io = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    of_io == Some(libc::EMFILE) || error.downcast_ref::<Errno>() == Some(&Errno::EMFILE)
}

/// The limit of this process; the agent has raised it as far as it may.
fn own_limit() -> Option<rlim_t> {
    getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LaunchError;
    use crate::logs::LogError;

    #[test]
    fn open_file_limit_is_named_in_cause_and_hint() {
        let reached = "Too many open files (os error 24): the limit is 5 (`ulimit -n`)";
        assert_eq!(with_limit("Too many open files (os error 24)", 5), reached);
        assert!(advice(5).starts_with("run `ulimit -n 1024` before the launcher, "));
        assert!(advice(4096).starts_with("run `ulimit -n 8192` before the launcher, "));
    }

    #[test]
    fn open_file_limit_is_found_in_error_chain() {
        let setup = |errno| LaunchError::Setup {
            what: "start the agent",
            source: io::Error::from_raw_os_error(errno),
        };
        let few = hint_of(&setup(libc::EMFILE), None).unwrap();
        assert!(few.starts_with("run `ulimit -n "), "{few}");
        assert_eq!(hint_of(&setup(libc::EPERM), Some("other")).as_deref(), Some("other"));
        assert_eq!(hint_of(&setup(libc::EPERM), None), None);
        let pipe = LaunchError::Logs(LogError::Channel { source: Errno::EMFILE });
        assert!(hint_of(&pipe, Some("other")).is_some_and(|hint| hint.starts_with("run `ulimit -n ")));
        assert!(cause_in_words(&Errno::EMFILE).contains("Too many open files: the limit is "));
        assert_eq!(
            cause_in_words(&io::Error::from_raw_os_error(libc::EPERM)),
            "Operation not permitted (os error 1)"
        );
    }
}
