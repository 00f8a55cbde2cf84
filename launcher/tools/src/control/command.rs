//! `rankrun ls`, `status`, `stacks`, `stop` and `restart`: finds the job, asks it, and prints the answer.

use std::borrow::Cow;

use super::interrupt::report_interrupts;
use super::job_request::{Answer, act};
use super::jobs::{FoundJob, Jobs, find_jobs, sort_by_start};
use super::lookup::{JobNames, LookupError, find_job};
use super::pages;
use super::socket::ControlError;
use crate::explain::Style;
use rankrun_core::exit_code::{ExitStatus, LAUNCHER_FAILED, NO_ANSWER};
use rankrun_core::facts::Facts;
use rankrun_core::spec::OutputFormat;
use rankrun_host::blocking::CallStep;
use rankrun_host::control::folder::{FolderRefusal, RuntimeFolders, SearchError};
use rankrun_host::reporter;

/// What a command waits for whose answer is not read.
const READER: &str = "a reader of its answer";
/// `rankrun status --check`: the job exists and does not run well.
pub(super) const UNHEALTHY: u8 = 1;

/// What the user asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlCommand {
    /// The word behind `rankrun`.
    pub verb: ControlVerb,
    /// The job, as the user names it.
    pub job: Option<String>,
    /// The form of the answer.
    pub format: OutputFormat,
}

/// The word behind `rankrun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlVerb {
    /// `ls`: all jobs.
    List,
    /// Of one job.
    Job(JobVerb),
}

/// What is asked of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobVerb {
    /// `status`: one job.
    Status,
    /// `status --check`: the exit status alone.
    Check,
    /// `stop`
    Stop,
    /// `stop --wait`: returns after the end of the job.
    StopAndWait,
    /// `restart`
    Restart,
    /// `stacks`: of all ranks of this node, or of one.
    Stacks(Option<u32>),
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No single job has this name.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The runtime folders cannot be searched.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// No such job is found, and a runtime folder is refused.
    #[error("no job{} is found, and not all runtime folders can be searched", name_of(job.as_deref()))]
    Unsearched {
        /// The job, as the user names it.
        job: Option<String>,
        /// The first such folder.
        source: FolderRefusal,
    },
    /// The job gives no answer.
    #[error("the request to job {job} failed")]
    Job {
        /// The job id.
        job: String,
        /// The pid of its launcher, if it is known.
        launcher_pid: Option<i32>,
        /// The failure of the request.
        source: ControlError,
    },
}

fn name_of(job: Option<&str>) -> String {
    job.map_or_else(String::new, |job| format!(" `{job}`"))
}

impl CommandError {
    /// One thing to do about it.
    #[must_use]
    pub fn hint(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Lookup(error) => error.hint(),
            Self::Search(error) => error.hint(),
            Self::Unsearched { source, .. } => source.hint(),
            Self::Job { source: ControlError::Ended, .. } => "`rankrun ls` lists the running jobs",
            Self::Job { source: ControlError::Refused(_), .. } => {
                "`rankrun status` shows what the job does now"
            }
            Self::Job { source, launcher_pid, .. } => {
                let advice = match source {
                    ControlError::Full => "try again: a client that asks nothing is closed after 5 s",
                    _ => "its agent may be stopped (SIGSTOP, a debugger)",
                };
                let pid =
                    launcher_pid.map_or_else(|| "` the launcher's pid".to_owned(), |pid| format!(" {pid}`"));
                return Cow::Owned(format!("{advice}; `kill{pid} to stop the job"));
            }
        })
    }

    /// The exit status of the command.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Job { source: ControlError::Refused(_), .. } => UNHEALTHY,
            Self::Lookup(_) | Self::Search(_) | Self::Unsearched { .. } | Self::Job { .. } => NO_ANSWER,
        }
    }
}

/// Prints an answer; false if it cannot be written, which is reported.
pub type WriteAnswer<'a> = &'a dyn Fn(&str) -> bool;

/// Runs the command; `write` prints its answer.
///
/// # Errors
/// There is no such job, or it gives no answer.
pub fn run(
    command: &ControlCommand,
    facts: &Facts,
    style: Style,
    write: WriteAnswer<'_>,
) -> Result<ExitStatus, CommandError> {
    let places = RuntimeFolders::of_environment(facts.environment());
    let searched = places.display();
    let step = CallStep::only("an answer of the jobs");
    report_interrupts(&step, reporter::print_message);
    let Jobs { mut found, refused, deadline } = find_jobs(places, command.job.as_deref())?;
    let unsearched = refused.map(|source| CommandError::Unsearched { job: command.job.clone(), source });
    let ControlVerb::Job(verb) = command.verb else {
        if let Some(error) = unsearched.filter(|_| found.is_empty()) {
            return Err(error);
        }
        sort_by_start(&mut found);
        let listed: Vec<_> = found.iter().map(FoundJob::listed).collect();
        step.set(READER.to_owned());
        return Ok(status_of_output(write(&match command.format {
            OutputFormat::Text => pages::render_list(&listed, &searched, style),
            OutputFormat::Json => pages::list_json(&listed),
        })));
    };
    let names: Vec<JobNames> = found.iter().map(FoundJob::names).collect();
    let at = find_job(&names, command.job.as_deref(), &searched).map_err(|error| match error {
        LookupError::NoJobs { .. } | LookupError::NoMatch { .. } => unsearched.unwrap_or(error.into()),
        error => error.into(),
    })?;
    let launcher_pid = names[at].launcher_pid;
    let FoundJob { folder, status, .. } = found.swap_remove(at);
    let job = folder.job.clone();
    step.set(format!("the answer of job {job}"));
    let answer = act((verb, command.format), (&folder, status), style, deadline, &step);
    step.set(READER.to_owned());
    match answer.map_err(|source| CommandError::Job { job, launcher_pid, source })? {
        Answer::Text(text) => Ok(status_of_output(write(&text))),
        Answer::Status(status) => Ok(status),
    }
}

const fn status_of_output(is_written: bool) -> ExitStatus {
    if is_written { ExitStatus::SUCCESS } else { ExitStatus::Code(LAUNCHER_FAILED) }
}
