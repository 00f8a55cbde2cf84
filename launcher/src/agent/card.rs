//! Gathers the evidence of a failure: the ends, the error file, the last lines.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rankrun_contract::rank::{LocalRank, Rank, RestartCount};
use rankrun_contract::report::{self, ErrorReport, ReportError};

use crate::agent::failure::{Failure, Testimony};
use crate::placement::{Device, Placement};
use crate::reporter::summary::{FailureCard, OtherEnd};

/// What the worker group knows beside the ends.
pub(super) struct WorkerEvidence<'a> {
    /// Who sat where.
    pub(super) placements: &'a [Placement],
    /// When the generation was started.
    pub(super) started: SystemTime,
    /// The budget.
    pub(super) max_restarts: RestartCount,
    /// The folder of the worker that failed first, if there is one.
    pub(super) folder: Option<PathBuf>,
    /// Its last lines.
    pub(super) tail: Vec<String>,
}

/// What a worker may leave in its folder.
const FILES: [&str; 3] = ["stdout.log", "stderr.log", ERROR_FILE];
const ERROR_FILE: &str = "error.json";

/// The card of one failure.
pub(super) fn card(failure: &Failure, evidence: WorkerEvidence<'_>) -> FailureCard {
    let first = failure.first;
    let seat = |local_rank: LocalRank| evidence.placements.get(local_rank.index());
    let rank = |local_rank: LocalRank| seat(local_rank).map_or(Rank(local_rank.0), |seat| seat.rank);
    let folder = evidence.folder.as_deref();
    FailureCard {
        rank: rank(first.local_rank),
        local_rank: first.local_rank,
        pid: first.pid,
        device: seat(first.local_rank).map_or(Device::Cpu(first.local_rank.0), |seat| seat.device),
        host: hostname(),
        exit: first.exit,
        started: evidence.started,
        ended: first.at,
        restarts: (failure.restart_count, evidence.max_restarts),
        report: folder.and_then(|folder| Some(read_report(&folder.join(ERROR_FILE)).ok()?.0)),
        files: folder.map(files_in).unwrap_or_default(),
        tail: evidence.tail,
        others: failure
            .others
            .iter()
            .map(|other| OtherEnd { rank: rank(other.end.local_rank), exit: other.end.exit })
            .collect(),
    }
}

/// The short name of this machine.
pub(super) fn hostname() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    FILES.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect()
}

/// Why an error file says nothing.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    #[error("it is no plain file")]
    NoFile,
    #[error(transparent)]
    NoReport(#[from] ReportError),
}

/// What the error file in a worker's folder says about the order of things. A file that cannot be read is as good
/// as none, but is mentioned.
pub(super) fn testimony(folder: &Path) -> Option<Testimony> {
    let path = folder.join(ERROR_FILE);
    match read_report(&path) {
        // On one node the global and the local rank are one number.
        Ok((report, written)) => {
            Some(Testimony { written, lost: report.lost_rank.map(|rank| LocalRank(rank.0)) })
        }
        Err(Unread::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("`{}` is left out: {error}", path.display());
            None
        }
    }
}

/// The worker's own words, and when it wrote them.
///
/// Whatever a worker has put there, nothing waits for it: a FIFO or a device is no report.
fn read_report(path: &Path) -> Result<(ErrorReport, SystemTime), Unread> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unread::NoFile);
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(report::MAX_LEN).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok((report::parse(&bytes)?, metadata.modified()?))
}
