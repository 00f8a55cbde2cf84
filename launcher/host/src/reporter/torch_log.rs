//! Log lines as torchrun writes them: its texts, which people search for, and its form,
//! `<L><MMDD> <HH:MM:SS>.<mmm>000 <pid> <file>:<line>] text`. Pure.
//!
//! A text of torch's carries the place where PyTorch 2.15.0 writes it; a text of rankrun's carries `rankrun:0`.

use std::collections::BTreeMap;

use rankrun_contract::rank::LocalRank;

use super::{job_event_text, leftovers, program};
use rankrun_core::job_event::{JobEvent, WorkerEnd};
use rankrun_core::notice::Notice;
use rankrun_core::posix::{Exit, Pid, Signal, signal_name};
use rankrun_core::rendezvous::Round;
use rankrun_core::spec::{LaunchSpec, Verbosity};

/// The level of a log line, as in Python's `logging`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// An operation failed; the job may end.
    Error,
    /// An unexpected state that does not stop the job.
    Warning,
    /// A step of the job is done.
    Info,
    /// A detail of a step, for debugging.
    Debug,
}

impl Level {
    const fn letter(self) -> char {
        match self {
            Self::Error => 'E',
            Self::Warning => 'W',
            Self::Info => 'I',
            Self::Debug => 'D',
        }
    }

    fn is_shown(self, verbosity: Verbosity) -> bool {
        let least = match self {
            Self::Error => Verbosity::Error,
            Self::Warning => Verbosity::Warn,
            Self::Info => Verbosity::Info,
            Self::Debug => Verbosity::Debug,
        };
        least <= verbosity
    }
}

/// The source location that the line names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSource {
    /// The name of torchrun's source file.
    pub file: &'static str,
    /// The line number in torchrun's source file.
    pub line: u32,
}

impl LogSource {
    const fn torch(file: &'static str, line: u32) -> Self {
        Self { file, line }
    }
}

/// Lines that torch does not have: a place in our own source is of no use to a user.
pub(super) const OWN_SOURCE: LogSource = LogSource { file: "rankrun", line: 0 };
const RUN: &str = "torch/distributed/run.py";
const AGENT: &str = "torch/distributed/elastic/agent/server/api.py";
const LOCAL_AGENT: &str = "torch/distributed/elastic/agent/server/local_elastic_agent.py";
const PROCESSES: &str = "torch/distributed/elastic/multiprocessing/api.py";
const ERROR_HANDLER: &str = "torch/distributed/elastic/multiprocessing/errors/error_handler.py";

/// One message, of one line or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The level that the verbosity option filters by.
    pub level: Level,
    /// The source location that the line names.
    pub source: LogSource,
    /// The text of the line, without the prefix.
    pub text: String,
}

impl LogLine {
    /// A line that torch does not have.
    #[must_use]
    pub const fn of_ours(level: Level, text: String) -> Self {
        Self { level, source: OWN_SOURCE, text }
    }

    /// Whether it is wanted. Two of torch's modules do not ask `LOGLEVEL`: they say warnings and errors always.
    #[must_use]
    pub fn is_shown(&self, verbosity: Verbosity) -> bool {
        let asks = self.source.file != PROCESSES && self.source.file != ERROR_HANDLER;
        self.level.is_shown(if asks { verbosity } else { Verbosity::Warn })
    }

    /// The message as it is written, each line with the same beginning; `stamp` as of
    /// [`LocalTime::log_stamp`](super::local_time::LocalTime::log_stamp).
    #[must_use]
    pub fn render(&self, stamp: &str, pid: Pid) -> String {
        let LogSource { file, line } = self.source;
        let prefix = format!("{}{stamp} {pid} {file}:{line}] ", self.level.letter());
        let lines: Vec<String> = self.text.split('\n').map(|line| format!("{prefix}{line}")).collect();
        lines.join("\n")
    }
}

/// The worker group that an event is about.
#[derive(Debug, Clone, Copy)]
pub struct EventSubject<'a> {
    /// The resolved launch specification of the job.
    pub spec: &'a LaunchSpec,
    /// The workers of the generation that was started last.
    pub pids: &'a BTreeMap<LocalRank, Pid>,
    /// The rendezvous that it lives in, where there are several nodes.
    pub round: Option<&'a Round>,
}

/// What torchrun says about one happening.
#[must_use]
pub(crate) fn lines_of(event: &JobEvent, group: EventSubject<'_>) -> Vec<LogLine> {
    match event {
        JobEvent::WorkerFailed { live, .. } => closing_signal_lines(live, Signal::SIGTERM, group),
        JobEvent::GroupFailed { cause } => vec![failed_line(cause, group)],
        JobEvent::ExternalWorkerStarted { local_rank, pid } => {
            let text = job_event_text::external_worker_started(*local_rank, *pid);
            vec![LogLine::of_ours(Level::Warning, text)]
        }
        JobEvent::Uninterruptible { live, .. } => {
            let dstate = dstate_line(event, group);
            dstate.into_iter().chain(closing_signal_lines(live, Signal::SIGTERM, group)).collect()
        }
        JobEvent::Stopping { signal, worker_signal, live, .. } => {
            stopping((*signal, *worker_signal), live, group)
        }
        JobEvent::NotJoined { .. }
        | JobEvent::Hang { .. }
        | JobEvent::NoProgress { .. }
        | JobEvent::TimeIsShort { .. }
        | JobEvent::TimeIsUp { .. }
        | JobEvent::RankTable(_) => of_limits(event, group),
        JobEvent::Changed { .. }
        | JobEvent::Rejoined { .. }
        | JobEvent::EndedElsewhere { .. }
        | JobEvent::Settling
        | JobEvent::FinishedBeforeLoss { .. } => of_nodes(event, group),
        JobEvent::SomeFinished { finished, live, waited: since } => {
            // torchrun is silent here.
            let text = job_event_text::some_finished(finished, live, *since, group.round);
            vec![LogLine::of_ours(Level::Info, text)]
        }
        JobEvent::Killing { local_ranks, ignored_signal } => match ignored_signal {
            Some(signal) => killing(local_ranks, *signal, group),
            None => closing_signal_lines(local_ranks, Signal::SIGKILL, group),
        },
        JobEvent::AwaitingGroups { .. } | JobEvent::KillingGroups { .. } => {
            warning(job_event_text::group_event_text(event))
        }
        JobEvent::CannotEnd { local_ranks } => local_ranks
            .iter()
            .filter_map(|rank| group.pids.get(rank))
            .map(|pid| dstate_worker_line(*pid))
            .collect(),
        JobEvent::AwaitingLeftovers { .. } | JobEvent::LeftoversSurvive { .. } => {
            warning(leftovers::event_text(event))
        }
        // A job under this name has no control socket.
        JobEvent::RestartRequested { .. } | JobEvent::RestartedByRequest => Vec::new(),
        JobEvent::Restarting { used } => vec![restarting(used.0, group)],
        JobEvent::LookingForProgress
        | JobEvent::ProgressUnknown
        | JobEvent::CauseRecurs { .. }
        | JobEvent::RestartRefused(_)
        | JobEvent::CalledSuccess { .. }
        | JobEvent::Waiting { .. } => warning(job_event_text::policy_event_text(event, group.spec)),
        JobEvent::CheckingDevices
        | JobEvent::DevicesUnchecked { .. }
        | JobEvent::DeviceWarning(_)
        | JobEvent::DeviceDead(_)
        | JobEvent::NoRestart { .. }
        | JobEvent::DevicesReassigned { .. } => warning(job_event_text::device_event_text(event, group.spec)),
    }
}

fn stopping(
    (signal, worker_signal): (Signal, Signal),
    live: &[LocalRank],
    group: EventSubject<'_>,
) -> Vec<LogLine> {
    // An interrupt that is not among the signals to handle ends torchrun as an exception, without this line.
    let is_handled = signal == worker_signal || group.spec.options.stop_signal.is_some();
    let received = is_handled.then(|| LogLine {
        level: Level::Warning,
        source: LogSource::torch(AGENT, 752),
        text: format!("Received {} death signal, shutting down workers", signal as i32),
    });
    received.into_iter().chain(closing_signal_lines(live, worker_signal, group)).collect()
}

fn warning(text: Option<String>) -> Vec<LogLine> {
    text.map(|text| LogLine::of_ours(Level::Warning, text)).into_iter().collect()
}

fn killing(local_ranks: &[LocalRank], signal: Signal, group: EventSubject<'_>) -> Vec<LogLine> {
    let line = |pid: &Pid| LogLine {
        level: Level::Warning,
        source: LogSource::torch(PROCESSES, 1047),
        text: format!(
            "Unable to shutdown process {pid} via {}, forcefully exiting via {}",
            signal as i32,
            libc::SIGKILL
        ),
    };
    local_ranks.iter().filter_map(|rank| group.pids.get(rank)).map(line).collect()
}

/// torchrun says nothing of other nodes: the fact in our words, the signals in its own.
fn of_nodes(event: &JobEvent, group: EventSubject<'_>) -> Vec<LogLine> {
    let own_lines = job_event_text::node_event_text(event, group.spec);
    let message = own_lines.map(|text| LogLine::of_ours(Level::Warning, text));
    let signal_lines = match event {
        JobEvent::Changed { live, .. } | JobEvent::EndedElsewhere { live, .. } => {
            closing_signal_lines(live, Signal::SIGTERM, group)
        }
        _ => Vec::new(),
    };
    message.into_iter().chain(signal_lines).collect()
}

/// torchrun has no such limits: the fact in our words, the signals in its own. It has no table of ranks.
fn of_limits(event: &JobEvent, group: EventSubject<'_>) -> Vec<LogLine> {
    let own_lines = job_event_text::limit_event_text(event, group.spec);
    let message = own_lines.map(|text| LogLine::of_ours(Level::Warning, text));
    let signal_lines = match event {
        JobEvent::NotJoined { live, .. } | JobEvent::Hang { live, .. } | JobEvent::TimeIsUp { live, .. } => {
            closing_signal_lines(live, Signal::SIGTERM, group)
        }
        _ => Vec::new(),
    };
    message.into_iter().chain(signal_lines).collect()
}

fn closing_signal_lines(local_ranks: &[LocalRank], signal: Signal, group: EventSubject<'_>) -> Vec<LogLine> {
    let signal = group.spec.options.signal_of_stop(signal);
    local_ranks
        .iter()
        .filter_map(|rank| group.pids.get(rank))
        .map(|pid| LogLine {
            level: Level::Warning,
            source: LogSource::torch(PROCESSES, 1028),
            text: format!("Sending process {pid} closing signal {signal}"),
        })
        .collect()
}

fn failed_line(cause: &WorkerEnd, group: EventSubject<'_>) -> LogLine {
    let code = match cause.exit {
        Exit::Code(code) => code,
        Exit::Signal { number, .. } => -number,
    };
    let program = program::in_log_line(&group.spec.entrypoint);
    let text =
        format!("failed (exitcode: {code}) local_rank: {} (pid: {}) {program}", cause.local_rank, cause.pid);
    LogLine { level: Level::Error, source: LogSource::torch(PROCESSES, 1002), text }
}

fn dstate_line(event: &JobEvent, group: EventSubject<'_>) -> Option<LogLine> {
    let JobEvent::Uninterruptible { worker: uninterruptible, blocked_for, limit, .. } = event else {
        return None;
    };
    let text = format!(
        "[{}] Worker pid={} stuck in uninterruptible sleep (D-state) for {:.1}s (>= {:.1}s); marking worker \
         group UNHEALTHY and disabling restarts.",
        group.spec.role,
        uninterruptible.pid,
        blocked_for.as_secs_f64(),
        limit.as_secs_f64()
    );
    Some(LogLine { level: Level::Error, source: LogSource::torch(LOCAL_AGENT, 568), text })
}

fn dstate_worker_line(pid: Pid) -> LogLine {
    let text = format!(
        "Process {pid} did not exit after {} within 5s; abandoning and continuing teardown. Worker may be in \
         uninterruptible kernel sleep (e.g. wedged on GPU/NIC); host may need to be recycled.",
        signal_name(libc::SIGKILL)
    );
    LogLine { level: Level::Error, source: LogSource::torch(PROCESSES, 1061), text }
}

fn restarting(used: u32, group: EventSubject<'_>) -> LogLine {
    let all = group.spec.max_restarts.0;
    let remaining = all.saturating_sub(used.saturating_sub(1));
    let text = format!(
        "[{}] Worker group FAILED. {remaining}/{all} attempts left; will restart worker group",
        group.spec.role
    );
    LogLine { level: Level::Info, source: LogSource::torch(AGENT, 941), text }
}

/// A failed worker has an error file, and the parent process asked for none.
#[must_use]
pub(crate) fn no_parent_file(error_file: &str) -> LogLine {
    let text = format!("no error file defined for parent, to copy child error file ({error_file})");
    LogLine { level: Level::Error, source: LogSource::torch(ERROR_HANDLER, 194), text }
}

/// An error file with a plain text message has no place for the exit code.
#[must_use]
pub(crate) fn no_place_for_code(error_file: &str) -> LogLine {
    let text =
        format!("child error file ({error_file}) has a new message format. \nskipping error code override");
    LogLine { level: Level::Warning, source: LogSource::torch(ERROR_HANDLER, 154), text }
}

/// The error file that the parent asked for existed already.
#[must_use]
pub(crate) fn replaced(path: &str, contents: &str) -> LogLine {
    let text = format!("{path} already exists and will be overwritten. Original contents:\n{contents}");
    LogLine { level: Level::Warning, source: LogSource::torch(ERROR_HANDLER, 205), text }
}

/// The line of a notice before the start; torch's own one has stars around it.
#[must_use]
pub(crate) fn of_notice(notice: &Notice) -> LogLine {
    match notice {
        Notice::SingleOmpThread => {
            let stars = "*".repeat(41);
            let text = format!("\n{stars}\n{notice}. \n{stars}");
            LogLine { level: Level::Warning, source: LogSource::torch(RUN, 982), text }
        }
        Notice::Detail { text, torch_line: Some(line) } => {
            LogLine { level: Level::Info, source: LogSource::torch(RUN, *line), text: text.clone() }
        }
        Notice::Detail { text, .. } => LogLine::of_ours(Level::Info, text.clone()),
        _ => LogLine::of_ours(Level::Warning, notice.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_contract::rank::RestartCount;
    use rankrun_core::spec::fake::example;
    use std::time::{Duration, SystemTime};

    /// The texts of an event's lines, without their prefix; rank n has pid 100 + n.
    fn rendered_lines(event: &JobEvent) -> Vec<String> {
        let spec = LaunchSpec { max_restarts: RestartCount(3), ..example() };
        let pids = [0, 1, 2].map(|rank| (LocalRank(rank), Pid::from_raw(100 + i32::try_from(rank).unwrap())));
        let pids = pids.into_iter().collect();
        let lines = lines_of(event, EventSubject { spec: &spec, pids: &pids, round: None });
        lines.into_iter().map(|line| format!("{}{}", line.level.letter(), line.text)).collect()
    }

    fn end(exit: Exit) -> WorkerEnd {
        let (local_rank, pid, at) = (LocalRank(1), Pid::from_raw(101), SystemTime::UNIX_EPOCH);
        WorkerEnd { local_rank, pid, exit, at, error_file_info: None, foreign_kill: None }
    }

    #[test]
    fn log_prefix_is_on_each_line_of_message() {
        let notice = Notice::SingleOmpThread;
        let text = of_notice(&notice).render("1121 19:11:52.657000", Pid::from_raw(18245));
        let prefix = "W1121 19:11:52.657000 18245 torch/distributed/run.py:982] ";
        let lines: Vec<&str> = text.split('\n').map(|line| line.strip_prefix(prefix).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!((lines[0], lines[1], lines[3]), ("", "*".repeat(41).as_str(), lines[1]));
        assert!(lines[2].starts_with("Setting OMP_NUM_THREADS ") && lines[2].ends_with("as needed. "));
    }

    #[test]
    fn log_texts_match_torchrun() {
        let ranks = || vec![LocalRank(0), LocalRank(2)];
        let grace = Duration::from_secs(30);
        assert_eq!(
            rendered_lines(&JobEvent::WorkerFailed { end: end(Exit::Code(3)), live: ranks(), grace }),
            ["WSending process 100 closing signal SIGTERM", "WSending process 102 closing signal SIGTERM"]
        );
        assert_eq!(
            rendered_lines(&JobEvent::GroupFailed { cause: end(Exit::Code(3)) }),
            ["Efailed (exitcode: 3) local_rank: 1 (pid: 101) of binary: true"]
        );
        let (signal, live) = (Signal::SIGINT, vec![LocalRank(0)]);
        assert_eq!(
            rendered_lines(&JobEvent::Stopping { signal, worker_signal: signal, live: live.clone(), grace }),
            ["WReceived 2 death signal, shutting down workers", "WSending process 100 closing signal SIGINT"]
        );
        assert_eq!(
            rendered_lines(&JobEvent::Stopping { signal, worker_signal: Signal::SIGTERM, live, grace }),
            ["WSending process 100 closing signal SIGTERM"]
        );
        let ignored_signal = Some(Signal::SIGINT);
        assert_eq!(
            rendered_lines(&JobEvent::Killing { local_ranks: vec![LocalRank(2)], ignored_signal }),
            ["WUnable to shutdown process 102 via 2, forcefully exiting via 9"]
        );
        assert_eq!(
            rendered_lines(&JobEvent::Restarting { used: RestartCount(1) }),
            ["I[default] Worker group FAILED. 3/3 attempts left; will restart worker group"]
        );
        let uninterruptible = rankrun_core::job_event::UninterruptibleWorker {
            local_rank: LocalRank(0),
            pid: Pid::from_raw(100),
        };
        let (blocked_for, limit) = (Duration::from_millis(2_040), Duration::from_secs(2));
        assert_eq!(
            rendered_lines(&JobEvent::Uninterruptible {
                worker: uninterruptible,
                blocked_for,
                limit,
                live: vec![],
                grace
            }),
            [
                "E[default] Worker pid=100 stuck in uninterruptible sleep (D-state) for 2.0s (>= 2.0s); marking \
              worker group UNHEALTHY and disabling restarts."
            ]
        );
    }

    #[test]
    fn finished_ranks_are_logged_at_info_level() {
        let (finished, live) = (vec![LocalRank(1)], vec![LocalRank(0)]);
        let since = Duration::from_secs(60);
        assert_eq!(
            rendered_lines(&JobEvent::SomeFinished { finished, live, waited: since }),
            ["Irank 1 has exited with 0, and rank 0 still runs 60 s later"]
        );
    }

    #[test]
    fn verbosity_hides_lower_levels() {
        assert!(Level::Error.is_shown(Verbosity::Error) && !Level::Warning.is_shown(Verbosity::Error));
        assert!(Level::Warning.is_shown(Verbosity::Warn) && !Level::Info.is_shown(Verbosity::Warn));
        assert!(no_parent_file("f").is_shown(Verbosity::Error), "its module does not ask");
        assert!(!of_notice(&Notice::SingleOmpThread).is_shown(Verbosity::Error));
    }
}
