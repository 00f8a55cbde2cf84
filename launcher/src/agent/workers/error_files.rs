//! Error files at the job's end: a file is removed if the report shows its text, and is named to the user
//! otherwise.

use std::fs;
use std::path::PathBuf;

use rankrun_contract::rank::{LocalRank, Rank};

use super::WorkerGroup;
use crate::agent::failure_context;
use crate::logs::tree::LogTree;
use crate::reporter::summary::peers::{self, PeerReport, ShownTexts};
use crate::reporter::user_log::UserLog;
use crate::spec::LogDir;

/// At most this many error files are compared with the report; thousands of restarts may leave more.
const MAX_ERROR_FILES: usize = 4096;

impl WorkerGroup {
    /// Error reports of the last generation's workers, on a node where none failed first; adds the shown
    /// texts to `shown`. Empty if the files stay.
    pub(in crate::agent) fn peer_reports(&self, shown: &mut ShownTexts) -> Vec<PeerReport> {
        if !matches!(self.spec.logs.dir, LogDir::ErrorFiles(_)) {
            return Vec::new();
        }
        let rank = |local_rank: LocalRank| {
            self.placements.get(local_rank.index()).map_or(Rank(local_rank.0), |seat| seat.rank)
        };
        peers::group(
            self.error_files.iter().map(|(local_rank, file)| (rank(*local_rank), &file.report)),
            shown,
        )
    }

    /// The error files with a text that the report shows. Names any other file to the user. Empty if the
    /// files stay, as in a folder that the user named.
    pub(in crate::agent) fn reported_error_files(&self, shown: &ShownTexts, voice: &UserLog) -> Vec<PathBuf> {
        let (LogDir::ErrorFiles(_), Some(tree)) = (&self.spec.logs.dir, &self.log_tree) else {
            return Vec::new();
        };
        let files = LogTree::error_files(tree, MAX_ERROR_FILES);
        let (reported, others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| failure_context::is_shown(file, shown));
        if !others.is_empty() {
            voice.print_line(&format!(
                "error files that no report shows are kept in `{}`; `rankrun gc` removes them",
                tree.run_folder().display()
            ));
        }
        reported
    }
}

/// Removes the files once the report is written.
pub(in crate::agent) fn remove(reported: &[PathBuf]) {
    for file in reported {
        // A file that stays is litter, and `rankrun gc` finds it.
        let _ = fs::remove_file(file);
    }
}
