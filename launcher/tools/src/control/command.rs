//! `rankrun ls`, `status`, `stop` and `restart`: finds the job, asks it, and prints the answer.

use std::io;
use std::os::fd::AsFd;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::lookup::{JobNames, LookupError, find_job};
use super::pages;
use super::socket::{ControlConnection, ControlError};
use crate::explain::Style;
use rankrun_core::exit_code::{ExitStatus, NO_ANSWER};
use rankrun_core::facts::Facts;
use rankrun_core::spec::OutputFormat;
use rankrun_host::blocking::{BlockingCall, CallProgress};
use rankrun_host::control::folder::{JobFolder, RuntimeFolders};
use rankrun_host::control::protocol::Accepted;
use rankrun_host::control::protocol::{ClientRequest, JobStatus, Reply};

/// A file system that takes longer for a runtime folder hangs.
const FOLDER_TIMEOUT: Duration = Duration::from_secs(3);
/// A client that was refused tries again after this time.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
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
    /// The file system of a runtime folder does not answer.
    #[error("the file system of the runtime folder `{path}` does not answer within {} s", FOLDER_TIMEOUT.as_secs())]
    Folder {
        /// The path of the folder.
        path: String,
    },
    /// No thread is left to look for jobs.
    #[error("no thread can be started to look for jobs")]
    Thread(#[source] io::Error),
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
            Self::Folder { .. } => {
                "`kill` the launcher's pid to stop a job; XDG_RUNTIME_DIR names the folder"
            }
            Self::Thread(_) => "the limit on processes may be reached: `ulimit -u`",
            Self::Job { source: ControlError::Ended, .. } => "`rankrun ls` lists the running jobs",
            Self::Job { source: ControlError::Full, .. } => {
                "try again: a client that asks nothing is closed after 5 s; `kill` the launcher's pid to stop the job"
            }
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
            Self::Lookup(_) | Self::Folder { .. } | Self::Thread(_) | Self::Job { .. } => NO_ANSWER,
        }
    }
}

/// A job that was found, and its answer to a first request for its status.
struct FoundJob {
    folder: JobFolder,
    /// The process that listens is its child.
    launcher_pid: Option<i32>,
    status: Result<Box<JobStatus>, ControlError>,
}

impl FoundJob {
    fn answer(&self) -> Result<&JobStatus, &ControlError> {
        self.status.as_ref().map(AsRef::as_ref)
    }

    fn names(&self) -> JobNames {
        let (run_id, launcher_pid) = match &self.status {
            Ok(status) => (Ok(status.run_id.clone()), Some(status.launcher_pid)),
            Err(error) => (Err(error.to_string()), self.launcher_pid),
        };
        JobNames { job: self.folder.job.clone(), run_id, launcher_pid }
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
    let places = RuntimeFolders::of_environment(facts.environment());
    let searched = places.display();
    let mut found = find_jobs(places, command.job.as_deref())?;
    let ControlVerb::Job(verb) = command.verb else {
        let listed: Vec<_> = found.iter().map(|found| (found.folder.job.as_str(), found.answer())).collect();
        write(&match command.format {
            OutputFormat::Text => pages::render_list(&listed, &searched, style),
            OutputFormat::Json => pages::list_json(&listed),
        });
        return Ok(ExitStatus::SUCCESS);
    };
    let names: Vec<JobNames> = found.iter().map(FoundJob::names).collect();
    let FoundJob { folder, status, .. } =
        found.swap_remove(find_job(&names, command.job.as_deref(), &searched)?);
    let job = folder.job.clone();
    act((verb, command.format), (&folder, status), style, write)
        .map_err(|source| CommandError::Job { job, source })
}

/// Finds all jobs, or only the one with this job id: a silent job does not delay a question about another one. A
/// runtime folder may be on a file system that does not answer.
fn find_jobs(places: RuntimeFolders, job: Option<&str>) -> Result<Vec<FoundJob>, CommandError> {
    let call = BlockingCall::start("jobs", move |step| places.find_job_folders(step));
    let call = call.map_err(CommandError::Thread)?;
    let until = PollTimeout::try_from(FOLDER_TIMEOUT).unwrap_or(PollTimeout::MAX);
    let _ = poll(&mut [PollFd::new(call.as_fd(), PollFlags::POLLIN)], until);
    match call.progress() {
        CallProgress::Returned(folders) => {
            let named = folders.iter().find(|folder| Some(folder.job.as_str()) == job).cloned();
            Ok(ask_jobs(named.map_or(folders, |named| vec![named])))
        }
        CallProgress::Running | CallProgress::Lost => Err(CommandError::Folder { path: call.step() }),
    }
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
                OutputFormat::Text => pages::render_status(&status, style),
                OutputFormat::Json => pages::status_json(&status),
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
            stop_and_wait(folder, status.ok().map(|status| status.launcher_pid))?;
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

/// Returns after the end of the launcher: its agent closes the socket a moment before.
fn stop_and_wait(folder: &JobFolder, launcher_pid: Option<i32>) -> Result<(), ControlError> {
    let mut connection = ControlConnection::open(folder)?;
    let mut launcher = launcher_pid.and_then(|pid| connection.launcher(pid));
    match request(&mut connection, ClientRequest::Stop) {
        Ok(accepted) => {
            launcher = launcher.or_else(|| connection.launcher(accepted.launcher_pid));
            wait_for_end(connection, folder)?;
        }
        // Killed before its answer.
        Err(ControlError::Ended) if remove_if_dead(folder) => {}
        Err(error) => return Err(error),
    }
    if let Some(launcher) = launcher {
        let mut ended = [PollFd::new(launcher.as_fd(), PollFlags::POLLIN)];
        while poll(&mut ended, PollTimeout::NONE) == Err(Errno::EINTR) {}
    }
    Ok(())
}

fn request(connection: &mut ControlConnection, request: ClientRequest) -> Result<Accepted, ControlError> {
    match connection.ask(request)? {
        Reply::Accepted(accepted) => Ok(accepted),
        other => Err(ControlError::Answer(format!("{other:?}"))),
    }
}

/// Reads the events of the job until their end. A reader that was refused, or too slow, connects again.
fn wait_for_end(mut connection: ControlConnection, folder: &JobFolder) -> Result<(), ControlError> {
    loop {
        connection.wait_without_limit()?;
        let mut reply = connection.ask(ClientRequest::Events).map(Some);
        while let Ok(Some(_)) = reply {
            reply = connection.next_reply();
        }
        match ControlConnection::open(folder) {
            Ok(again) => {
                if reply.is_err() {
                    std::thread::sleep(REFUSED_PAUSE);
                }
                connection = again;
            }
            Err(ControlError::Ended) => {
                // The agent closes the socket first, and may have been killed.
                remove_if_dead(folder);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Removes the folder of a dead job; false if the job lives.
fn remove_if_dead(folder: &JobFolder) -> bool {
    let is_dead = folder.is_dead();
    if is_dead {
        // `rankrun gc` says why it cannot be removed.
        let _ = folder.remove();
    }
    is_dead
}

/// Asks all jobs for their status, at the same time, and removes the folders of dead ones.
fn ask_jobs(folders: Vec<JobFolder>) -> Vec<FoundJob> {
    std::thread::scope(|scope| {
        let ask = |folder: JobFolder| {
            let copy = folder.clone();
            // Without a thread the jobs are asked one after the other.
            Builder::new().spawn_scoped(scope, move || ask_status(copy)).map_err(|_| ask_status(folder))
        };
        let answers: Vec<_> = folders.into_iter().map(ask).collect();
        let answer = |asked| match asked {
            Ok(thread) => ScopedJoinHandle::join(thread).ok().flatten(),
            Err(answer) => answer,
        };
        answers.into_iter().filter_map(answer).collect()
    })
}

/// `None` if the job is dead.
fn ask_status(folder: JobFolder) -> Option<FoundJob> {
    let opened = ControlConnection::open(&folder);
    let launcher_pid = opened.as_ref().ok().and_then(ControlConnection::launcher_pid);
    let status = opened.and_then(|mut connection| match connection.ask(ClientRequest::Status)? {
        Reply::Status(status) => Ok(status),
        other => Err(ControlError::Answer(format!("{other:?}"))),
    });
    if matches!(status, Err(ControlError::Ended)) {
        remove_if_dead(&folder);
        return None;
    }
    Some(FoundJob { folder, launcher_pid, status })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use rankrun_contract::rank::JobId;

    use super::*;

    /// A place of its own, removed at the end.
    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rankrun-command-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn folders(&self) -> RuntimeFolders {
            RuntimeFolders::of(Some(self.0.as_os_str()), None, 4_000_000_000)
        }

        fn job(&self) -> (JobFolder, UnixListener) {
            JobFolder::make(&self.folders(), &JobId(uuid::Uuid::new_v4().to_string())).unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a pause is at least so long")]
    fn wait_for_end_pauses_where_its_stream_is_refused() {
        let place = Place::new("refused");
        let (folder, listener) = place.job();
        let client = ControlConnection::open(&folder).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for stream in listener.incoming().take(3).map(Result::unwrap) {
                    BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                    let refusal = Reply::Error("too many clients read events; try again".to_owned());
                    (&stream).write_all(refusal.to_line().as_bytes()).unwrap();
                }
                drop(listener);
            });
            wait_for_end(client, &folder).unwrap();
        });
        // None after the last: the job has ended.
        assert!(began.elapsed() >= 2 * REFUSED_PAUSE, "{:?}", began.elapsed());
        assert!(!folder.path.exists());
    }

    #[test]
    fn stop_that_waits_succeeds_where_the_job_dies_before_its_answer() {
        for (name, is_dead) in [("dead", true), ("alive", false)] {
            let place = Place::new(name);
            let (folder, listener) = place.job();
            let stop = || {
                let asked = (JobVerb::StopAndWait, OutputFormat::Text);
                act(asked, (&folder, Err(ControlError::Silent)), Style::Plain, &|_| ())
            };
            let end_without_answer = || {
                let (stream, _) = listener.accept().unwrap();
                BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                // Of a job that lives, the listener goes on.
                (!is_dead).then_some(listener)
            };
            let result = std::thread::scope(|scope| {
                let job = scope.spawn(end_without_answer);
                let result = stop();
                drop(job.join().unwrap());
                result
            });
            assert_eq!(result.is_ok(), is_dead, "{result:?}");
        }
    }

    #[test]
    fn job_named_by_its_id_is_asked_alone() {
        let place = Place::new("named");
        // Neither answers: the other one would not even be accepted.
        let (named, other) = (place.job(), place.job());
        drop(named.1);
        let found = find_jobs(place.folders(), Some(&named.0.job)).unwrap();
        assert!(found.is_empty(), "a dead job is none");
        assert!(other.0.path.exists() && !named.0.path.exists());
    }

    /// No job answers before all are asked.
    #[test]
    fn jobs_are_asked_at_the_same_time() {
        let place = Place::new("at-once");
        let jobs: Vec<_> = (0..3).map(|_| place.job()).collect();
        std::thread::scope(|scope| {
            let listeners: Vec<_> = jobs.iter().map(|(_, listener)| listener).collect();
            scope.spawn(move || {
                let clients: Vec<_> = listeners.iter().map(|listener| listener.accept().unwrap().0).collect();
                for mut client in clients {
                    let refusal = Reply::Error("seen".to_owned());
                    client.write_all(refusal.to_line().as_bytes()).unwrap();
                }
            });
            let found = find_jobs(place.folders(), None).unwrap();
            let answers: Vec<_> = found.iter().map(|job| job.answer().unwrap_err().to_string()).collect();
            assert_eq!(answers, vec!["the job refuses: seen"; 3]);
            let ids: Vec<_> = found.iter().map(|job| job.folder.job.clone()).collect();
            assert!(ids.is_sorted(), "{ids:?}");
        });
    }
}
