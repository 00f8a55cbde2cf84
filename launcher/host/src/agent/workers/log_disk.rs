//! Checks after a failure whether the disk of the worker's logs was full (`logs::space`), and keeps the answer for the
//! failure report.

use rankrun_contract::rank::LocalRank;

use super::WorkerGroup;
use crate::logs::space::{DiskShortage, FullLogFolder};
use crate::reporter::log_space::LogDisk;
use rankrun_core::log_route::streams_of_rank;
use rankrun_core::spec::{LogDir, Streams};

impl WorkerGroup {
    /// Examines the disk when a worker with a log file has failed: at the job's end there may be space again.
    pub(super) fn check_log_disk(&mut self, local_rank: LocalRank) {
        let Some(attempt) = &self.attempt else { return };
        let folder = match &self.spec.logs.dir {
            LogDir::At(folder) | LogDir::Temporary(folder) => folder,
            LogDir::ErrorFiles(_) | LogDir::Off => return,
        };
        let [teed, redirected] = self.kept_streams(local_rank);
        if self.full_log_folder.is_none() && (has_any(teed) || has_any(redirected)) {
            let place = attempt.folder().to_owned();
            let shortage = self.logs.calls().run(folder, move || DiskShortage::at(&place)).flatten();
            let full = |shortage| FullLogFolder { folder: folder.clone(), shortage };
            self.full_log_folder = shortage.map(full);
        }
    }

    /// The disk of this worker's logs, if it was full.
    pub(super) fn log_disk(&self, local_rank: LocalRank) -> Option<LogDisk> {
        let full = self.full_log_folder.clone()?;
        let [teed, redirected] = self.kept_streams(local_rank);
        // A stream that is also copied to the console is a pipe, and the launcher writes the file.
        let is_written_by_worker = redirected.stdout && !teed.stdout || redirected.stderr && !teed.stderr;
        (has_any(teed) || has_any(redirected)).then_some(LogDisk { full, is_written_by_worker })
    }

    fn kept_streams(&self, local_rank: LocalRank) -> [Streams; 2] {
        let logs = &self.spec.logs;
        [streams_of_rank(&logs.tee, local_rank), streams_of_rank(&logs.redirects, local_rank)]
    }
}

const fn has_any(streams: Streams) -> bool {
    streams.stdout || streams.stderr
}
