//! The running jobs of this user, with their answers to a request for their status.
#![expect(clippy::disallowed_methods, reason = "the age of a job is read from the clock")]

use std::cmp::Reverse;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime};

use super::command::CommandError;
use super::lookup::JobNames;
use super::pages::ListedJob;
use super::socket::{ControlConnection, ControlError, answer_deadline};
use rankrun_host::control::folder::{FolderRefusal, JobFolder, RuntimeFolders};
use rankrun_host::control::protocol::{ClientRequest, JobStatus, Reply};

/// A job that was found, and its answer to a first request for its status.
pub(super) struct FoundJob {
    pub(super) folder: JobFolder,
    /// The process that listens is its child.
    pub(super) launcher_pid: Option<i32>,
    pub(super) status: Result<Box<JobStatus>, ControlError>,
}

impl FoundJob {
    pub(super) fn answer(&self) -> Result<&JobStatus, &ControlError> {
        self.status.as_ref().map(AsRef::as_ref)
    }

    pub(super) fn listed(&self) -> ListedJob<'_> {
        ListedJob { job: &self.folder.job, launcher_pid: self.launcher_pid, status: self.answer() }
    }

    /// Time since the start of the job, or of a silent one since its socket was made.
    fn age(&self, now: SystemTime) -> Duration {
        let by_folder = || self.folder.modified().and_then(|made| now.duration_since(made).ok());
        let uptime = self.answer().ok().map(|status| status.uptime_seconds);
        uptime.and_then(|age| Duration::try_from_secs_f64(age).ok()).or_else(by_folder).unwrap_or_default()
    }

    pub(super) fn names(&self) -> JobNames {
        let (run_id, launcher_pid) = match &self.status {
            Ok(status) => (Ok(status.run_id.clone()), Some(status.launcher_pid)),
            Err(error) => (Err(error.to_string()), self.launcher_pid),
        };
        JobNames { job: self.folder.job.clone(), run_id, launcher_pid }
    }
}

/// The jobs of this user, and the first runtime folder that is refused.
pub(super) struct Jobs {
    pub(super) found: Vec<FoundJob>,
    pub(super) refused: Option<FolderRefusal>,
    /// The jobs answer by then. A request to a job that has not is not waited for any longer.
    pub(super) deadline: Instant,
}

/// Finds all jobs, or only the one with this job id: a silent job does not delay a question about another one.
pub(super) fn find_jobs(places: RuntimeFolders, job: Option<&str>) -> Result<Jobs, CommandError> {
    let folders = places.find_job_folders()?;
    let named = folders.jobs.iter().find(|folder| Some(folder.job.as_str()) == job).cloned();
    let deadline = answer_deadline();
    let found = ask_jobs(named.map_or(folders.jobs, |named| vec![named]), deadline);
    Ok(Jobs { found, refused: folders.refused.into_iter().next(), deadline })
}

/// The oldest job first.
pub(super) fn sort_by_start(jobs: &mut [FoundJob]) {
    let now = SystemTime::now();
    jobs.sort_by_cached_key(|job| (Reverse(job.age(now)), job.folder.job.clone()));
}

/// Asks all jobs for their status, at the same time, and removes the folders of dead ones.
fn ask_jobs(folders: Vec<JobFolder>, deadline: Instant) -> Vec<FoundJob> {
    std::thread::scope(|scope| {
        let ask = |folder: JobFolder| {
            let copy = folder.clone();
            // Without a thread the jobs are asked one after the other.
            Builder::new()
                .spawn_scoped(scope, move || ask_status(copy, deadline))
                .map_err(|_| ask_status(folder, deadline))
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
fn ask_status(folder: JobFolder, deadline: Instant) -> Option<FoundJob> {
    let opened = ControlConnection::open(&folder, deadline);
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

/// Removes the folder of a dead job; false if the job lives.
pub(super) fn remove_if_dead(folder: &JobFolder) -> bool {
    let is_dead = folder.is_dead();
    if is_dead {
        // `rankrun gc` says why it cannot be removed.
        let _ = folder.remove();
    }
    is_dead
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::control::command::JobVerb;
    use crate::control::job_request::act;
    use crate::control::test_place::Place;
    use crate::explain::Style;
    use rankrun_core::spec::OutputFormat;
    use rankrun_host::blocking::CallStep;

    #[test]
    fn job_named_by_its_id_is_asked_alone() {
        let place = Place::new("named");
        // Neither answers: the other one would not even be accepted.
        let (named, other) = (place.job(), place.job());
        drop(named.1);
        let found = find_jobs(place.folders(), Some(&named.0.job)).unwrap().found;
        assert!(found.is_empty(), "a dead job is none");
        assert!(other.0.path.exists() && !named.0.path.exists());
    }

    #[test]
    fn jobs_are_listed_in_order_of_their_start() {
        let place = Place::new("order");
        let job = |id: &str, uptime_seconds: Option<f64>| {
            let folder = JobFolder { job: id.to_owned(), path: place.0.clone() };
            let status = uptime_seconds
                .map(|uptime_seconds| Box::new(JobStatus { uptime_seconds, ..JobStatus::default() }));
            FoundJob { folder, launcher_pid: None, status: status.ok_or(ControlError::Silent) }
        };
        // The folder of the silent job was made just now.
        let mut jobs =
            [job("a", Some(5_000.0)), job("b", None), job("c", Some(7_000.0)), job("d", Some(5_000.0))];
        sort_by_start(&mut jobs);
        assert_eq!(jobs.map(|job| job.folder.job), ["c", "a", "d", "b"]);
    }

    /// Its queue takes connections, and no process reads them.
    #[test]
    fn silent_job_costs_one_deadline() {
        let place = Place::new("silent");
        let (folder, listener) = place.job();
        let Jobs { mut found, deadline, .. } = find_jobs(place.folders(), Some(&folder.job)).unwrap();
        let status = found.remove(0).status;
        assert!(matches!(status, Err(ControlError::Silent)), "{status:?}");
        for verb in [JobVerb::Stop, JobVerb::StopAndWait, JobVerb::Restart] {
            let asked = (verb, OutputFormat::Text);
            let answer = act(
                asked,
                (&folder, Err(ControlError::Silent)),
                Style::Plain,
                deadline,
                &CallStep::default(),
            );
            assert!(matches!(answer, Err(ControlError::Silent)), "{answer:?}");
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_ok());
        assert!(listener.accept().is_err(), "the job is asked a second time");
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
            let found = find_jobs(place.folders(), None).unwrap().found;
            let answers: Vec<_> = found.iter().map(|job| job.answer().unwrap_err().to_string()).collect();
            assert_eq!(answers, vec!["the job refuses: seen"; 3]);
            let ids: Vec<_> = found.iter().map(|job| job.folder.job.clone()).collect();
            assert!(ids.is_sorted(), "{ids:?}");
        });
    }
}
