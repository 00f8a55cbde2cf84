//! `rankrun ls`, `status`, `stop` and `restart`: finds the job, asks it, and prints the answer.

use super::folder::{JobFolder, RuntimeFolders};
use super::lookup::{JobNames, LookupError, find_job};
use super::protocol::{ClientRequest, JobStatus, Reply};
use super::socket::{ControlConnection, ControlError};
use crate::exit_code::{ExitStatus, NO_ANSWER};
use crate::explain::Style;
use crate::facts::Facts;
use crate::inspect::jobs;
use crate::spec::OutputFormat;

/// `rankrun status --check`: the job exists and does not run well.
const UNHEALTHY: u8 = 1;

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
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No single job has this name.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The job gives no answer.
    #[error("the request to job {job} failed")]
    Job {
        /// The job id.
        job: String,
        /// The failure of the request.
        source: ControlError,
    },
}

impl CommandError {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Lookup(error) => error.hint(),
            Self::Job { source: ControlError::Ended, .. } => "`rankrun ls` lists the running jobs",
            Self::Job { source: ControlError::Refused(_), .. } => {
                "`rankrun status` shows what the job does now"
            }
            Self::Job { .. } => {
                "its agent may be stopped (SIGSTOP, a debugger); `kill` the launcher's pid to stop the job"
            }
        }
    }

    /// The exit status of the command.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Job { source: ControlError::Refused(_), .. } => UNHEALTHY,
            Self::Lookup(_) | Self::Job { .. } => NO_ANSWER,
        }
    }
}

/// A job that was found, and its answer to a first request for its status.
struct FoundJob {
    folder: JobFolder,
    status: Result<Box<JobStatus>, ControlError>,
}

impl FoundJob {
    fn answer(&self) -> Result<&JobStatus, &ControlError> {
        self.status.as_ref().map(AsRef::as_ref)
    }

    fn names(&self) -> JobNames {
        let status = self.status.as_ref().ok();
        JobNames {
            job: self.folder.job.clone(),
            run_id: status.map(|status| status.run_id.clone()),
            launcher_pid: status.map(|status| status.launcher_pid),
        }
    }
}

/// Runs the command; `write` prints a part of the answer.
///
/// # Errors
/// There is no such job, or it gives no answer.
pub fn run(
    command: &ControlCommand,
    facts: &Facts,
    style: Style,
    write: &dyn Fn(&str),
) -> Result<ExitStatus, CommandError> {
    let mut found = find_jobs(&RuntimeFolders::of_environment(facts.environment()));
    let ControlVerb::Job(verb) = command.verb else {
        let listed: Vec<_> = found.iter().map(|found| (found.folder.job.as_str(), found.answer())).collect();
        write(&match command.format {
            OutputFormat::Text => jobs::render_list(&listed, style),
            OutputFormat::Json => jobs::list_json(&listed),
        });
        return Ok(ExitStatus::SUCCESS);
    };
    let names: Vec<JobNames> = found.iter().map(FoundJob::names).collect();
    let FoundJob { folder, status } = found.swap_remove(find_job(&names, command.job.as_deref())?);
    let job = folder.job.clone();
    act((verb, command.format), (&folder, status), style, write)
        .map_err(|source| CommandError::Job { job, source })
}

fn act(
    (verb, format): (JobVerb, OutputFormat),
    (folder, status): (&JobFolder, Result<Box<JobStatus>, ControlError>),
    style: Style,
    write: &dyn Fn(&str),
) -> Result<ExitStatus, ControlError> {
    match verb {
        JobVerb::Status => {
            let status = status?;
            write(&match format {
                OutputFormat::Text => jobs::render_status(&status, style),
                OutputFormat::Json => jobs::status_json(&status),
            });
            Ok(ExitStatus::SUCCESS)
        }
        JobVerb::Check => {
            let is_healthy = status?.state.is_healthy();
            Ok(if is_healthy { ExitStatus::SUCCESS } else { ExitStatus::Code(UNHEALTHY) })
        }
        JobVerb::Stop => {
            request(&mut ControlConnection::open(folder)?, ClientRequest::Stop)?;
            write(&format!("job {} is told to stop\n", folder.job));
            Ok(ExitStatus::SUCCESS)
        }
        JobVerb::StopAndWait => {
            let mut connection = ControlConnection::open(folder)?;
            request(&mut connection, ClientRequest::Stop)?;
            wait_for_end(connection, folder)?;
            write(&format!("job {} has ended\n", folder.job));
            Ok(ExitStatus::SUCCESS)
        }
        JobVerb::Restart => {
            request(&mut ControlConnection::open(folder)?, ClientRequest::Restart)?;
            write(&format!("job {} starts its workers again\n", folder.job));
            Ok(ExitStatus::SUCCESS)
        }
    }
}

fn request(connection: &mut ControlConnection, request: ClientRequest) -> Result<(), ControlError> {
    match connection.ask(request)? {
        Reply::Accepted(_) => Ok(()),
        other => Err(ControlError::Answer(format!("{other:?}"))),
    }
}

/// Reads the events of the job until their end. A reader that was too slow connects again.
fn wait_for_end(mut connection: ControlConnection, folder: &JobFolder) -> Result<(), ControlError> {
    loop {
        connection.wait_without_limit()?;
        let mut reply = connection.ask(ClientRequest::Events).map(Some);
        while let Ok(Some(_)) = reply {
            reply = connection.next_reply();
        }
        match ControlConnection::open(folder) {
            Ok(again) => connection = again,
            Err(ControlError::Ended) => {
                // The agent closes the socket first, and may have been killed.
                if folder.is_dead() {
                    let _ = folder.remove();
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Asks every job for its status, and removes the folders of dead ones.
fn find_jobs(places: &RuntimeFolders) -> Vec<FoundJob> {
    let mut found = Vec::new();
    for folder in places.job_folders() {
        let status = ControlConnection::open(&folder).and_then(|mut connection| {
            match connection.ask(ClientRequest::Status)? {
                Reply::Status(status) => Ok(status),
                other => Err(ControlError::Answer(format!("{other:?}"))),
            }
        });
        if matches!(status, Err(ControlError::Ended)) {
            if folder.is_dead() {
                // `rankrun gc` says why it cannot be removed.
                let _ = folder.remove();
            }
            continue;
        }
        found.push(FoundJob { folder, status });
    }
    found
}
