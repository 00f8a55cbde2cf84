//! Gathers the evidence of a failure: the ends, the error file, the last lines.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rankrun_contract::rank::{LocalRank, Rank, RestartCount};
use rankrun_contract::report::{self, ErrorReport};

use crate::agent::message::Failure;
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
        report: folder.and_then(|folder| error_report(&folder.join(ERROR_FILE))),
        files: folder.map(files_in).unwrap_or_default(),
        tail: evidence.tail,
        others: failure
            .others
            .iter()
            .map(|end| OtherEnd { rank: rank(end.local_rank), exit: end.exit })
            .collect(),
    }
}

fn hostname() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    FILES.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect()
}

/// The worker's own words; a file that cannot be read is as good as none, but is mentioned.
fn error_report(path: &Path) -> Option<ErrorReport> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(report::MAX_LEN).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    report::parse(&bytes)
        .inspect_err(|error| tracing::warn!("`{}` is left out: {error}", path.display()))
        .ok()
}
