//! The external worker, which a person starts: `--leave-out`, and the words by which its script calls the launcher.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::error::{CliError, Origin, SettingError};
use super::settings::{Setting, Settings};
use rankrun_host::process::attach::ATTACH;

/// What the wrapper of an external worker needs: the launcher's socket, and the command of the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attach {
    /// The path at which the launcher listens.
    pub socket: String,
    /// Program and arguments of the worker.
    pub command: Vec<OsString>,
}

pub(super) fn parse_attach(words: &[OsString]) -> Option<Attach> {
    let (first, command) = words.split_first()?;
    let socket = first.as_bytes().strip_prefix(ATTACH.as_bytes())?;
    Some(Attach { socket: OsStr::from_bytes(socket).to_str()?.to_owned(), command: command.to_vec() })
}

/// The worker that the launcher does not start.
pub(super) fn resolve_external_worker(
    settings: &Settings<'_>,
    workers: LocalWorldSize,
) -> Result<Option<LocalRank>, CliError> {
    let Some(Setting { origin, value }) = settings.get(&settings.args.leave_out) else { return Ok(None) };
    Ok(Some(local_rank_in(origin, value, workers)?))
}

/// A number as one of the workers' local ranks.
pub(super) fn local_rank_in(
    origin: Origin,
    rank: i128,
    workers: LocalWorldSize,
) -> Result<LocalRank, SettingError> {
    let exists = u32::try_from(rank).ok().filter(|rank| *rank < workers.get());
    exists.map(LocalRank).ok_or_else(|| SettingError::no_such_rank(origin, rank, workers.get()))
}
