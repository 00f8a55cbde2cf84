//! The destination of each stream of a worker. Pure.
//!
//! | redirect | tee | file | console | console of a rank that is filtered out |
//! |---|---|---|---|---|
//! | no | no | – | as it is | no |
//! | yes | no | yes | no | no |
//! | any | yes | yes | with prefix | no |
//!
//! `--log-dir /dev/null` (contract 1.9, 8.27): under the name torchrun neither option has any effect; under our own,
//! redirects go nowhere and tee'd streams to the console alone. If the log tree cannot be made although the user did
//! not switch it off, no output is lost: streams that would have had a file go to the console, except those of
//! filtered ranks.

use std::path::{Path, PathBuf};

use rankrun_contract::rank::{LocalRank, LocalWorldSize, Rank};

use crate::spec::output_stream::OutputStream;
use crate::spec::{CliFlavor, LogDir, LogSpec, StreamMap, Streams};
use crate::template::substitute;

#[cfg(test)]
mod tests;

/// The destination of unwanted output: redirected without a log tree, or of a rank that is filtered out.
const DEV_NULL: &str = "/dev/null";

/// The destination of one stream of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The worker inherits the launcher's stream.
    Inherit,
    /// The worker has the file itself.
    File(PathBuf),
    /// The worker has a pipe or pseudo-terminal, which we copy to the console.
    Capture {
        /// The log file: a byte-exact copy.
        file: Option<PathBuf>,
        /// The prefix of each console line, if the stream is tee'd.
        prefix: Option<String>,
    },
}

impl Route {
    /// The log file of the stream, if it has one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Capture { file, .. } => file.as_deref(),
            Self::Inherit => None,
        }
    }
}

/// The destinations of a worker's two streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// The destination of the standard output.
    pub stdout: Route,
    /// The destination of the standard error.
    pub stderr: Route,
    /// The prefix of rewritten lines, such as progress bars. Under the name torchrun lines keep every byte.
    pub label: Option<RowLabel>,
    /// A person at the terminal answers this worker's prompts.
    pub can_prompt: bool,
}

impl Routes {
    pub const fn of(&self, stream: OutputStream) -> &Route {
        match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        }
    }
}

/// The prefix of rewritten lines, and the streams that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowLabel {
    /// The prefix.
    pub text: String,
    /// Also a stream without `--tee`, on a terminal: several workers share it.
    pub is_shared: bool,
}

/// The identity of a worker in its output's prefix and file names.
#[derive(Debug, Clone, Copy)]
pub struct StreamOwner<'a> {
    /// The command name: rankrun or torchrun.
    pub cli_flavor: CliFlavor,
    /// The role of the worker (`--role`).
    pub role: &'a str,
    /// The worker in the whole job.
    pub rank: Rank,
    /// The index of the worker on this node.
    pub local_rank: LocalRank,
    /// How many workers this node has.
    pub local_world: LocalWorldSize,
    /// The short name of this machine; asked for only where a prefix has it.
    pub hostname: fn() -> String,
}

/// The routes of one worker; `folder` is its own in the log tree.
#[must_use]
pub fn routes(spec: &LogSpec, owner: StreamOwner<'_>, folder: Option<&Path>) -> Routes {
    let redirects = streams_of_rank(&spec.redirects, owner.local_rank);
    let tee = streams_of_rank(&spec.tee, owner.local_rank);
    let audience = match &spec.console {
        Some(console_ranks) if !console_ranks.contains(&owner.local_rank) => Audience::Hidden,
        Some(_) | None => Audience::Console,
    };
    let place = match (folder, &spec.dir) {
        (Some(folder), _) => LogFolder::Folder(folder),
        (None, LogDir::Off) => LogFolder::Off,
        (None, LogDir::Temporary(_) | LogDir::ErrorFiles(_) | LogDir::At(_)) => LogFolder::Missing,
    };
    let worker = WorkerRoute { owner, template: spec.prefix.as_deref(), audience, log_folder: place };
    Routes {
        stdout: worker.route("stdout.log", StreamMode::of(redirects.stdout, tee.stdout)),
        stderr: worker.route("stderr.log", StreamMode::of(redirects.stderr, tee.stderr)),
        label: worker.label(),
        can_prompt: false,
    }
}

/// The facts that both streams of a worker share.
struct WorkerRoute<'a> {
    owner: StreamOwner<'a>,
    template: Option<&'a str>,
    audience: Audience,
    log_folder: LogFolder<'a>,
}

/// Whether a worker is heard on the console.
#[derive(Clone, Copy)]
enum Audience {
    Console,
    Hidden,
}

#[derive(Clone, Copy)]
enum LogFolder<'a> {
    Folder(&'a Path),
    Off,
    Missing,
}

/// The options' request for one stream.
#[derive(Clone, Copy)]
enum StreamMode {
    Default,
    Redirect,
    Tee,
}

impl StreamMode {
    const fn of(redirect: bool, tee: bool) -> Self {
        match (redirect, tee) {
            (_, true) => Self::Tee,
            (true, false) => Self::Redirect,
            (false, false) => Self::Default,
        }
    }
}

impl WorkerRoute<'_> {
    fn route(&self, name: &str, mode: StreamMode) -> Route {
        if matches!(self.log_folder, LogFolder::Off) && self.owner.cli_flavor == CliFlavor::Torchrun {
            return self.console_only();
        }
        match (mode, self.audience, self.log_folder) {
            (StreamMode::Tee, Audience::Console, LogFolder::Folder(folder)) => {
                self.tee(Some(folder.join(name)))
            }
            (StreamMode::Tee, Audience::Console, LogFolder::Off)
            | (StreamMode::Tee, _, LogFolder::Missing) => self.tee(None),
            (StreamMode::Tee | StreamMode::Redirect, _, LogFolder::Folder(folder)) => {
                Route::File(folder.join(name))
            }
            (StreamMode::Redirect, _, LogFolder::Missing) | (StreamMode::Default, Audience::Console, _) => {
                self.console_only()
            }
            (StreamMode::Default, Audience::Hidden, _)
            | (StreamMode::Tee | StreamMode::Redirect, _, LogFolder::Off) => Route::File(DEV_NULL.into()),
        }
    }

    fn tee(&self, file: Option<PathBuf>) -> Route {
        Route::Capture { file, prefix: Some(self.prefix()) }
    }

    fn console_only(&self) -> Route {
        match self.owner.cli_flavor {
            CliFlavor::Torchrun => Route::Inherit,
            CliFlavor::Rankrun => Route::Capture { file: None, prefix: None },
        }
    }

    fn label(&self) -> Option<RowLabel> {
        let is_shared = self.owner.local_world.get() > 1;
        (self.owner.cli_flavor == CliFlavor::Rankrun).then(|| RowLabel { text: self.prefix(), is_shared })
    }

    fn prefix(&self) -> String {
        let StreamOwner { role, rank, local_rank, hostname, .. } = self.owner;
        let Some(template) = self.template else { return format!("[{role}{local_rank}]:") };
        let value = |name: &str| match name {
            "role_name" => Some(role.to_owned()),
            "local_rank" => Some(local_rank.to_string()),
            "rank" => Some(rank.to_string()),
            "hostname" => Some(hostname()),
            _ => None,
        };
        String::from_utf8_lossy(&substitute(template.as_bytes(), value)).into_owned()
    }
}

pub fn streams_of_rank(map: &StreamMap, local_rank: LocalRank) -> Streams {
    match map {
        StreamMap::All(streams) => *streams,
        StreamMap::Ranks(ranks) => ranks
            .iter()
            .rev()
            .find(|(rank, _)| *rank == local_rank)
            .map_or_else(Streams::default, |(_, streams)| *streams),
    }
}
