//! The last line of each worker and its age, while the workers run. The status notices of the agent ask for it.
//!
//! A thread of its own reads redirected files: a file server that does not answer must not delay a stop. All questions
//! share one such read.
#![expect(clippy::disallowed_methods, reason = "the age of a line is read from the clock")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::tail::{Tail, join_tails};
use super::{Logs, WorkerTail, read_end};
use crate::blocking::{BlockingCall, CallProgress, CallStep};
use rankrun_core::job_event::activity::LastOutput;
use rankrun_core::placement::WorkerId;

/// Files that take longer are not waited for.
const FILES_LIMIT: Duration = Duration::from_millis(200);

impl Tail {
    fn last_output(&self, now: Instant) -> LastOutput {
        let text = self.lines().into_iter().rev().find(|line| !line.trim().is_empty());
        match (text, self.fed_at()) {
            (Some(text), Some(at)) => LastOutput::Line { text, age: now.saturating_duration_since(at) },
            _ => LastOutput::Empty,
        }
    }
}

impl Logs {
    /// The last lines of these workers, in their order.
    #[must_use]
    pub(crate) fn last_outputs(&self, workers: &[WorkerId]) -> Vec<LastOutput> {
        self.output_reader(workers).read()
    }

    /// Reads the last lines of these workers later, and on any thread.
    #[must_use]
    pub(crate) fn output_reader(&self, workers: &[WorkerId]) -> OutputReader {
        let tails = workers.iter().map(|worker| self.workers.get(worker).cloned()).collect();
        OutputReader { tails, file_read: self.file_read.clone() }
    }
}

/// Where the last lines of some workers are found.
#[derive(Debug, Default)]
pub(crate) struct OutputReader {
    tails: Vec<Option<WorkerTail>>,
    file_read: FileRead,
}

impl OutputReader {
    /// The last lines, in the order of the workers.
    #[must_use]
    pub(crate) fn read(&self) -> Vec<LastOutput> {
        let now = Instant::now();
        let paths = |stream: fn(&WorkerTail) -> &Option<PathBuf>| {
            self.tails.iter().map(move |tail| tail.as_ref().and_then(|tail| stream(tail).clone()))
        };
        let files = paths(|tail| &tail.stdout).zip(paths(|tail| &tail.stderr)).collect();
        let of_files = self.file_read.last_lines(files);
        let captured = self.tails.iter().map(|tail| match tail {
            Some(tail) if tail.is_captured => {
                tail.captured.lock().unwrap_or_else(PoisonError::into_inner).last_output(now)
            }
            Some(_) | None => LastOutput::Unavailable,
        });
        captured.zip(of_files).map(|(captured, of_file)| captured.newer(of_file)).collect()
    }
}

type Files = Vec<(Option<PathBuf>, Option<PathBuf>)>;

/// The read of log files that has not ended, shared by all questions of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct FileRead(Arc<Mutex<FileReadState>>);

#[derive(Debug, Default)]
struct FileReadState {
    call: Option<BlockingCall<Vec<LastOutput>>>,
    is_loss_reported: bool,
}

impl FileRead {
    /// The last lines of these files, in their order; unavailable while the file system does not answer.
    fn last_lines(&self, files: Files) -> Vec<LastOutput> {
        let unseen = vec![LastOutput::Unavailable; files.len()];
        if files.iter().all(|(stdout, stderr)| stdout.is_none() && stderr.is_none()) {
            return unseen;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.call.as_ref().is_some_and(|call| matches!(call.progress(), CallProgress::Running)) {
            // A second thread would hang beside it.
            return unseen;
        }
        let read = move |_: &CallStep| {
            let last =
                |path: Option<PathBuf>| path.map_or(LastOutput::Unavailable, |path| last_line_of(&path));
            files.into_iter().map(|(stdout, stderr)| last(stdout).newer(last(stderr))).collect()
        };
        let cause = match BlockingCall::start("last-lines", read) {
            Ok(call) => match call.wait(FILES_LIMIT) {
                Some(lines) => return lines,
                None => {
                    state.call = Some(call);
                    "their file system does not answer".to_owned()
                }
            },
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut state.is_loss_reported, true) {
            tracing::warn!("the last lines of the log files are not read: {cause}");
        }
        unseen
    }
}

fn last_line_of(path: &Path) -> LastOutput {
    let (Ok(bytes), Ok(metadata)) = (read_end(path), path.symlink_metadata()) else {
        return LastOutput::Unavailable;
    };
    let text = join_tails(Vec::new(), &bytes, b"").into_iter().rev().find(|line| !line.trim().is_empty());
    let Some(text) = text else { return LastOutput::Empty };
    let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    LastOutput::Line { text, age: age.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::spec::output_stream::OutputStream;

    fn line(text: &str, seconds: u64) -> LastOutput {
        LastOutput::Line { text: text.to_owned(), age: Duration::from_secs(seconds) }
    }

    #[test]
    fn last_output_skips_blank_lines_and_keeps_last_byte_time() {
        let began = Instant::now();
        let mut tail = Tail::default();
        assert_eq!(tail.last_output(began), LastOutput::Empty);
        tail.feed_at(OutputStream::Stdout, b"one\n\x1b[31mtwo\x1b[0m\n \n", began);
        assert_eq!(tail.last_output(began + Duration::from_secs(4)), line("two", 4));
        tail.feed_at(OutputStream::Stderr, b"10%\r20%", began + Duration::from_secs(4));
        assert_eq!(tail.last_output(began + Duration::from_secs(7)), line("20%", 3));
    }

    #[test]
    fn last_output_reads_redirected_regular_file_only() {
        let folder = std::env::temp_dir().join(format!("rankrun-last-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("stdout.log");
        std::fs::write(&path, format!("{}\nlast\n\n", "x".repeat(200_000))).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(SystemTime::now() - Duration::from_secs(90))
            .unwrap();
        let found = FileRead::default().last_lines(vec![
            (Some(path.clone()), None),
            (None, None),
            (Some("/dev/null".into()), Some(folder.join("missing"))),
        ]);
        std::fs::write(&path, "").unwrap();
        let empty = last_line_of(&path);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(&found[0], LastOutput::Line { text, age } if text == "last" && age.as_secs() >= 90));
        assert_eq!(found[1..], [LastOutput::Unavailable, LastOutput::Unavailable]);
        assert_eq!(empty, LastOutput::Empty);
    }
}
