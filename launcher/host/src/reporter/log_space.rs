//! A log folder without room, in a failure report. Pure.

use crate::logs::space::{DiskShortage, FREE_SPACE_HINT, FullLogFolder};
use crate::reporter::causes::is_exception;
use crate::reporter::summary::FailureReport;
use rankrun_core::posix::Exit;

/// The texts of `ENOSPC` in a program's output.
const NO_SPACE: [&str; 3] = ["No space left on device", "[Errno 28]", "(os error 28)"];

/// The known facts of the disk with the failed worker's logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogDisk {
    /// The log folder on the full disk.
    pub full: FullLogFolder,
    /// Whether the worker itself writes its log file (`--redirects`), and fails with the write.
    pub is_written_by_worker: bool,
}

/// A row of a failure report: name and value.
#[must_use]
pub(crate) fn row(failure: &FailureReport) -> Option<(&'static str, String)> {
    let disk = failure.log_disk.as_ref()?;
    let is_named = is_named_in(texts(failure));
    Some(match is_cause(failure, disk) {
        true if is_named => ("cause", format!("a full disk: {}", disk.full)),
        true => ("cause", format!("probably a full disk: {}", disk.full)),
        false => ("disk", disk.full.to_string()),
    })
}

/// The hint for a full log disk, if the worker has probably failed of it or has written nothing.
#[must_use]
pub(crate) fn hint(failure: &FailureReport) -> Option<String> {
    let disk = failure.log_disk.as_ref()?;
    let is_silent = failure.report.is_none() && failure.tail.is_empty();
    (matches!(failure.exit, Exit::Code(_)) && (is_cause(failure, disk) || is_silent))
        .then(|| FREE_SPACE_HINT.to_owned())
}

/// The cause for the other nodes, of a worker without a report and with these last lines.
#[must_use]
pub(crate) fn cause_of(disk: &LogDisk, tail: &[String]) -> Option<String> {
    let has_other_error = tail.iter().any(|line| is_exception(line));
    let is_cause = may_be_cause(disk) && (!has_other_error || is_named_in(tail.iter()));
    is_cause.then(|| format!("probably a full disk: {}", disk.full))
}

/// A visible error of Python that names no full disk has another cause.
fn is_cause(failure: &FailureReport, disk: &LogDisk) -> bool {
    let has_other_error = failure.error_texts().next().is_some() && !is_named_in(texts(failure));
    may_be_cause(disk) && !has_other_error
}

const fn may_be_cause(disk: &LogDisk) -> bool {
    disk.is_written_by_worker && matches!(disk.full.shortage, DiskShortage::Space { .. })
}

fn texts(failure: &FailureReport) -> impl Iterator<Item = &String> {
    let report = failure.report.iter().flat_map(|report| [Some(&report.message), report.callstack.as_ref()]);
    report.flatten().chain(&failure.tail)
}

fn is_named_in<'a>(mut texts: impl Iterator<Item = &'a String>) -> bool {
    texts.any(|text| NO_SPACE.iter().any(|pattern| text.contains(pattern)))
}

#[cfg(test)]
mod tests {
    use rankrun_contract::report::ErrorReport;

    use super::*;
    use crate::reporter::summary::tests::example_failure;
    use crate::reporter::summary::{self, ProgramKind, render};

    fn on(shortage: DiskShortage, is_written_by_worker: bool) -> FailureReport {
        let full = FullLogFolder { folder: "/logs".into(), shortage };
        let log_disk = Some(LogDisk { full, is_written_by_worker });
        FailureReport {
            exit: Exit::Code(1),
            program: ProgramKind::Python,
            log_disk,
            tail: Vec::new(),
            ..example_failure()
        }
    }

    const FULL: DiskShortage = DiskShortage::Space { free: 0, total: 1 << 20 };

    #[test]
    fn full_disk_is_probable_cause_if_worker_writes_log() {
        let silent = on(FULL, true);
        let row = "\n  cause     probably a full disk: the log folder `/logs` has no space left (0 B free of 1.0 MiB)\n";
        assert!(render(&silent).contains(row), "{}", render(&silent));
        assert_eq!(summary::hint(&silent).as_deref(), Some(FREE_SPACE_HINT), "and no hint at `@record`");
        let other = "ValueError: own error".to_owned();
        assert_eq!(cause_of(silent.log_disk.as_ref().unwrap(), std::slice::from_ref(&other)), None);
        let other = FailureReport { tail: vec![other], ..silent.clone() };
        assert!(render(&other).contains("\n  disk      the log folder"), "{}", render(&other));
        assert_eq!(hint(&other), None);
        let message = "OSError: [Errno 28] No space left on device".to_owned();
        let report = Some(ErrorReport { message, callstack: None, unix_seconds: None, lost_rank: None });
        let with_message = FailureReport { report, ..silent };
        assert!(
            render(&with_message).contains("\n  cause     a full disk: the log folder"),
            "{}",
            render(&with_message)
        );
    }

    #[test]
    fn full_disk_is_only_reported_if_launcher_writes_log() {
        let teed = on(FULL, false);
        let row = "\n  disk      the log folder `/logs` has no space left (0 B free of 1.0 MiB)\n";
        assert!(render(&teed).contains(row), "{}", render(&teed));
        let inodes = on(DiskShortage::Inodes { total: 8 }, true);
        let row = "\n  disk      the log folder `/logs` has no room for another file (0 inodes free of 8)\n";
        assert!(render(&inodes).contains(row), "{}", render(&inodes));
        let speaks = FailureReport { tail: vec!["ValueError".to_owned()], ..teed };
        assert_eq!(hint(&speaks), None);
    }
}
