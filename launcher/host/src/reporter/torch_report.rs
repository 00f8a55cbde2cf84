//! The failure report as torchrun prints it, to the byte: tools search for its lines. Pure.

use std::path::PathBuf;

use rankrun_contract::rank::{LocalRank, Rank};

use super::local_time::LocalTime;
use rankrun_core::posix::{Exit, Pid, Signal};

/// The last line of the Python traceback before torchrun's report.
const CHILD_FAILED_PREFIX: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ";
/// The same after a stop by a signal.
const SIGNAL_EXCEPTION_PREFIX: &str = "torch.distributed.elastic.multiprocessing.api.SignalException: ";
/// The message of a worker without an error file.
const NO_TRACEBACK: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
/// The rules are as wide as the longest line, but not wider.
const MAX_WIDTH: usize = 60;

/// The facts of torchrun's failure report.
#[derive(Debug, Clone)]
pub(crate) struct TorchReport {
    /// The failed script, module or program.
    pub title: String,
    /// The node, by its full name.
    pub host: String,
    /// The worker that failed first; torchrun's root cause.
    pub root_cause: FailedWorker,
    /// The other failed workers, in the order in which they were recorded.
    pub others: Vec<FailedWorker>,
}

/// One worker that failed, with torchrun's fields.
#[derive(Debug, Clone)]
pub(crate) struct FailedWorker {
    /// The rank of the worker in the job.
    pub rank: Rank,
    /// The rank of the worker on its node.
    pub local_rank: LocalRank,
    /// The process id of the worker.
    pub pid: Pid,
    /// How the worker ended: exit code or signal.
    pub exit: Exit,
    /// The local time at which the worker failed.
    pub time: LocalTime,
    /// Its error file, where that could be read.
    pub error_file: Option<PathBuf>,
    /// The error text, from the error file or the exit status.
    pub message: Message,
}

/// The text that follows `traceback :` in the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// A call stack, or a text in its place; its further lines are indented.
    Traceback(String),
    /// A text that is printed as it is.
    Text(String),
    /// Nothing: torchrun has a sentence for that.
    None,
}

/// The report, from the line that names torch's exception to the last rule.
#[must_use]
pub(crate) fn render(report: &TorchReport) -> String {
    let title = format!("{} FAILED", report.title);
    let root_cause = block(0, &report.root_cause, &report.host);
    let other_failures: Vec<String> =
        (1..).zip(&report.others).map(|(number, worker)| block(number, worker, &report.host)).collect();
    let lines = [&title, &root_cause].into_iter().chain(&other_failures).flat_map(|text| text.split('\n'));
    let width = lines.map(|line| line.chars().count()).max().unwrap_or(0).min(MAX_WIDTH);
    let (border, section) = ("=".repeat(width), "-".repeat(width));
    let other_failures = if other_failures.is_empty() {
        "  <NO_OTHER_FAILURES>".to_owned()
    } else {
        other_failures.join("\n")
    };
    format!(
        "{CHILD_FAILED_PREFIX}\n{border}\n{title}\n{section}\nFailures:\n{other_failures}\n{section}\n\
         Root Cause (first observed failure):\n{root_cause}\n{border}\n"
    )
}

/// torchrun's last line after a stop by a signal; `launcher` is the process that the user started.
#[must_use]
pub(crate) fn of_signal(signal: Signal, launcher: Pid) -> String {
    format!("{SIGNAL_EXCEPTION_PREFIX}Process {launcher} got signal: {}\n", signal as i32)
}

fn block(number: usize, worker: &FailedWorker, host: &str) -> String {
    let (code, name) = match worker.exit {
        Exit::Code(code) => (code, None),
        Exit::Signal { number, .. } => (-number, python_name(number)),
    };
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    let error_file =
        worker.error_file.as_ref().map_or_else(|| "<N/A>".to_owned(), |path| path.display().to_string());
    format!(
        "[{number}]:\n  \
         time      : {}\n  \
         host      : {host}\n  \
         rank      : {} (local_rank: {})\n  \
         exitcode  : {code} (pid: {}) {name}\n  \
         error_file: {error_file}\n  \
         traceback : {}",
        worker.time,
        worker.rank,
        worker.local_rank,
        worker.pid,
        message(worker)
    )
}

fn message(worker: &FailedWorker) -> String {
    match (&worker.message, worker.exit) {
        (Message::Traceback(text), _) => text.replace('\n', "\n  "),
        (Message::Text(text), _) => text.clone(),
        (Message::None, Exit::Code(_)) => NO_TRACEBACK.to_owned(),
        (Message::None, Exit::Signal { number, .. }) => {
            let name = python_name(number).unwrap_or_else(|| "<N/A>".to_owned());
            format!("Signal {number} ({name}) received by PID {}", worker.pid)
        }
    }
}

/// A signal's name in Python, which also names the first and the last real-time signal.
fn python_name(number: i32) -> Option<String> {
    if number == libc::SIGRTMIN() {
        Some("SIGRTMIN".to_owned())
    } else if number == libc::SIGRTMAX() {
        Some("SIGRTMAX".to_owned())
    } else {
        Signal::try_from(number).ok().map(|signal| signal.as_str().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::local_time::EXAMPLE;

    fn worker(rank: u32, pid: i32, exit: Exit) -> FailedWorker {
        FailedWorker {
            rank: Rank(rank),
            local_rank: LocalRank(rank),
            pid: Pid::from_raw(pid),
            exit,
            time: EXAMPLE,
            error_file: None,
            message: Message::None,
        }
    }

    fn report(root_cause: FailedWorker, others: Vec<FailedWorker>) -> TorchReport {
        TorchReport { title: "train.py".to_owned(), host: "localhost".to_owned(), root_cause, others }
    }

    fn signal(number: i32) -> Exit {
        Exit::Signal { number, core_dumped: false }
    }

    #[test]
    fn report_matches_torchrun_bytes() {
        let report = report(worker(1, 9448, Exit::Code(3)), vec![worker(0, 9447, signal(15))]);
        let plain_code = "  exitcode  : 3 (pid: 9448) \n";
        assert_eq!(
            render(&report),
            "\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_22:02:16
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 9447)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 9447
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_22:02:16
  host      : localhost
  rank      : 1 (local_rank: 1)
"
            .to_owned()
                + plain_code
                + "  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"
        );
    }

    #[test]
    fn report_rulers_are_as_wide_as_longest_line() {
        let text = render(&report(worker(0, 7, signal(9)), vec![]));
        let longest = "  traceback : Signal 9 (SIGKILL) received by PID 7".len();
        assert!(text.contains(&format!("\n{}\ntrain.py FAILED\n", "=".repeat(longest))), "{text}");
        assert!(text.contains("\nFailures:\n  <NO_OTHER_FAILURES>\n---"), "{text}");
        let text = render(&TorchReport { title: "é".repeat(52), ..report(worker(0, 7, signal(9)), vec![]) });
        assert!(text.contains(&format!("\n{}\n", "=".repeat(59))), "letters are counted, not bytes\n{text}");
    }

    #[test]
    fn call_stack_lines_are_indented_and_text_lines_are_not() {
        let mut failed = worker(0, 7, Exit::Code(1));
        failed.error_file = Some("/logs/0/error.json".into());
        failed.message = Message::Traceback("Traceback:\n  line 1\nValueError: x\n".to_owned());
        let text = render(&report(failed.clone(), vec![]));
        let expected =
            "  error_file: /logs/0/error.json\n  traceback : Traceback:\n    line 1\n  ValueError: x\n  \n=";
        assert!(text.contains(expected), "{text}");
        failed.message = Message::Text("a\nb".to_owned());
        assert!(render(&report(failed, vec![])).contains("  traceback : a\nb\n="));
    }

    #[test]
    fn unnamed_signal_is_shown_as_not_available() {
        let text = render(&report(worker(0, 7, signal(40)), vec![]));
        assert!(text.contains("  exitcode  : -40 (pid: 7) \n"), "{text}");
        assert!(text.contains("  traceback : Signal 40 (<N/A>) received by PID 7\n"), "{text}");
        assert!(render(&report(worker(0, 7, signal(64)), vec![])).contains("  (SIGRTMAX)\n"));
    }
}
