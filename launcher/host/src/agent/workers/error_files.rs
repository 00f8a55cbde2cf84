//! Error files at the job's end: a file is removed if the report shows its text, and is named to the user
//! otherwise.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use rankrun_contract::rank::{LocalRank, Rank};

use super::WorkerGroup;
use crate::agent::failure_context;
use crate::reporter::summary::peers::{self, PeerReport, ShownTexts};
use crate::reporter::user_log::UserLog;
use rankrun_core::spec::LogDir;

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
            self.placements.get(local_rank.index()).map_or(Rank(local_rank.0), |placement| placement.rank)
        };
        peers::group(
            self.error_files.iter().map(|(local_rank, file)| (rank(*local_rank), &file.report)),
            shown,
        )
    }

    /// The error files with a text that the report shows. Names any other file to the user. Empty if the
    /// files stay, as in a folder that the user named.
    pub(in crate::agent) fn reported_error_files(
        &self,
        shown: &ShownTexts,
        user_log: &UserLog,
    ) -> Vec<PathBuf> {
        let (LogDir::ErrorFiles(folder), Some(tree)) = (&self.spec.logs.dir, &self.log_tree) else {
            return Vec::new();
        };
        let (tree, shown) = (Arc::clone(tree), shown.clone());
        let search = move || {
            let tree = tree.lock().unwrap_or_else(PoisonError::into_inner);
            let files = tree.error_files(MAX_ERROR_FILES).into_iter();
            let (reported, others): (Vec<_>, Vec<_>) =
                files.partition(|file| failure_context::is_shown(file, &shown));
            (reported, (!others.is_empty()).then(|| tree.run_folder().to_owned()))
        };
        let (reported, kept) = self.logs.calls().run(folder, search).unwrap_or_default();
        if let Some(kept) = kept {
            user_log.print_line(&format!(
                "error files that no report shows are kept in `{}`; `rankrun gc` removes them",
                kept.display()
            ));
        }
        reported
    }

    /// Removes the files once the report is written.
    pub(in crate::agent) fn remove_reported(&self, reported: Vec<PathBuf>) {
        let Some(first) = reported.first().cloned() else { return };
        // A file that stays is litter, and `rankrun gc` finds it.
        let _ = self.logs.calls().run(&first, move || reported.iter().try_for_each(fs::remove_file).ok());
    }
}
