//! The requests to one job, and the wait for its end.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::command::{JobVerb, UNHEALTHY};
use super::jobs::remove_if_dead;
use super::pages;
use super::socket::{ControlConnection, ControlError, answer_deadline};
use crate::explain::Style;
use rankrun_core::exit_code::ExitStatus;
use rankrun_core::spec::OutputFormat;
use rankrun_core::stacks::WorkerStacks;
use rankrun_host::blocking::CallStep;
use rankrun_host::control::folder::JobFolder;
use rankrun_host::control::protocol::{Accepted, ClientRequest, JobStatus, Reply};
use rankrun_host::reporter::stacks::{render_folded, render_worker};

const NO_WORKERS: &str = "no worker of this node has been started";

/// The server closes a client that asks nothing for 5 s.
const SILENCE: Duration = Duration::from_secs(3);

/// The answer of one job.
#[derive(Debug)]
pub(super) enum Answer {
    Text(String),
    Status(ExitStatus),
}

/// Asks the job for what the command wants. Its answer to a request for its status is known.
///
/// # Errors
/// No answer, or a refusal.
pub(super) fn act(
    (verb, format): (JobVerb, OutputFormat),
    (folder, status): (&JobFolder, Result<Box<JobStatus>, ControlError>),
    style: Style,
    deadline: Instant,
    step: &CallStep,
) -> Result<Answer, ControlError> {
    // A job that has answered has not used up the time in which a silent one was waited for.
    let deadline = if status.is_ok() { answer_deadline() } else { deadline };
    let send = |sent| request(&mut ControlConnection::open(folder, deadline)?, sent);
    Ok(Answer::Text(match verb {
        JobVerb::Status => match format {
            OutputFormat::Text => pages::render_status(&*status?, style),
            OutputFormat::Json => pages::status_json(&*status?),
        },
        JobVerb::Check => {
            let is_healthy = status?.state.is_healthy();
            let status = if is_healthy { ExitStatus::SUCCESS } else { ExitStatus::Code(UNHEALTHY) };
            return Ok(Answer::Status(status));
        }
        JobVerb::Stacks(rank) => {
            let workers = stacks(&mut ControlConnection::open(folder, deadline)?, rank)?;
            match (format, &workers[..]) {
                (OutputFormat::Json, workers) => pages::stacks_json(workers),
                (OutputFormat::Text, [worker]) if rank.is_some() => render_worker(worker),
                (OutputFormat::Text, []) => format!("{NO_WORKERS}\n"),
                (OutputFormat::Text, workers) => render_folded(workers, usize::MAX),
            }
        }
        JobVerb::Stop => {
            send(ClientRequest::Stop)?;
            format!("job {} is told to stop\n", folder.job)
        }
        JobVerb::StopAndWait => {
            let connection = ControlConnection::open(folder, deadline)?;
            stop_and_wait(connection, folder, step, status.ok().map(|status| status.launcher_pid))?;
            format!("job {} has ended\n", folder.job)
        }
        JobVerb::Restart => {
            send(ClientRequest::Restart)?;
            format!("job {} starts its workers again\n", folder.job)
        }
    }))
}

/// The stacks of all ranks of this node, or of one.
fn stacks(connection: &mut ControlConnection, rank: Option<u32>) -> Result<Vec<WorkerStacks>, ControlError> {
    let workers = match connection.ask(ClientRequest::Stacks)? {
        Reply::Stacks(workers) => workers,
        other => return Err(ControlError::Answer(format!("{other:?}"))),
    };
    let Some(rank) = rank else { return Ok(workers) };
    let ranks: Vec<String> = workers.iter().map(|worker| worker.rank.to_string()).collect();
    let found: Vec<_> = workers.into_iter().filter(|worker| worker.rank == rank).collect();
    if ranks.is_empty() {
        return Err(ControlError::Refused(NO_WORKERS.to_owned()));
    }
    if found.is_empty() {
        let ranks = ranks.join(", ");
        return Err(ControlError::Refused(format!("no rank {rank} is on this node; its ranks are {ranks}")));
    }
    Ok(found)
}

/// Returns after the end of the launcher.
fn stop_and_wait(
    mut connection: ControlConnection,
    folder: &JobFolder,
    step: &CallStep,
    launcher_pid: Option<i32>,
) -> Result<(), ControlError> {
    let launcher = launcher_pid.and_then(|pid| connection.launcher(pid));
    let launcher = match request(&mut connection, ClientRequest::Stop) {
        Ok(accepted) => {
            step.set(format!("the end of job {}, which is told to stop", folder.job));
            launcher.or_else(|| connection.launcher(accepted.launcher_pid))
        }
        // Killed before its answer.
        Err(ControlError::Ended) if folder.is_dead() => launcher,
        Err(error) => return Err(error),
    };
    if let Some(launcher) = &launcher {
        let mut ended = [PollFd::new(launcher.as_fd(), PollFlags::POLLIN)];
        while poll(&mut ended, PollTimeout::NONE) == Err(Errno::EINTR) {}
    }
    // The agent of a launcher that was killed ends a moment later.
    let waited = connection.wait_for_end(folder, SILENCE);
    if launcher.is_none() {
        waited?;
    }
    // The processes of the job may have been killed together.
    remove_if_dead(folder);
    Ok(())
}

fn request(connection: &mut ControlConnection, request: ClientRequest) -> Result<Accepted, ControlError> {
    match connection.ask(request)? {
        Reply::Accepted(accepted) => Ok(accepted),
        other => Err(ControlError::Answer(format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};

    use super::*;
    use crate::control::test_place::Place;
    use rankrun_host::control::folder::ANSWER_TIMEOUT;

    /// As for a job in another pid namespace.
    #[test]
    fn connection_is_renewed_until_the_job_has_ended() {
        let place = Place::new("renewed");
        let (folder, listener) = place.job();
        let client = ControlConnection::open(&folder, answer_deadline()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A client that was suspended is closed.
                drop(listener.accept().unwrap());
                let (stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert_eq!(line, ClientRequest::Status.to_line());
                (&stream).write_all(Reply::Status(Box::default()).to_line().as_bytes()).unwrap();
            });
            client.wait_for_end(&folder, Duration::from_millis(10)).unwrap();
        });
        assert!(folder.is_dead());
    }

    #[test]
    fn wait_for_the_end_of_a_full_job_is_an_error() {
        let place = Place::new("full");
        let (folder, listener) = place.job();
        let client = ControlConnection::open(&folder, answer_deadline()).unwrap();
        let refusal = "{\"version\":1,\"kind\":\"too_many_clients\",\"error\":\"e\"}\n";
        listener.accept().unwrap().0.write_all(refusal.as_bytes()).unwrap();
        let result = client.wait_for_end(&folder, Duration::from_secs(20));
        assert!(matches!(result, Err(ControlError::Full)), "{result:?}");
    }

    /// As beside a job that was waited for until the deadline.
    #[test]
    fn job_that_has_answered_has_a_deadline_of_its_own_for_a_request() {
        for (name, verb) in [("fresh-stop", JobVerb::Stop), ("fresh-restart", JobVerb::Restart)] {
            let place = Place::new(name);
            let (folder, listener) = place.job();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let (stream, _) = listener.accept().unwrap();
                    BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                    let accepted = Reply::Accepted(Accepted { launcher_pid: 1 });
                    (&stream).write_all(accepted.to_line().as_bytes()).unwrap();
                });
                let job = (&folder, Ok(Box::default()));
                let expired = answer_deadline() - ANSWER_TIMEOUT;
                let step = CallStep::default();
                act((verb, OutputFormat::Text), job, Style::Plain, expired, &step).unwrap();
            });
        }
    }

    #[test]
    fn stop_that_waits_succeeds_where_the_job_dies_before_its_answer() {
        for (name, is_dead) in [("dead", true), ("alive", false)] {
            let place = Place::new(name);
            let (folder, listener) = place.job();
            let stop = || {
                let asked = (JobVerb::StopAndWait, OutputFormat::Text);
                act(
                    asked,
                    (&folder, Err(ControlError::Full)),
                    Style::Plain,
                    answer_deadline(),
                    &CallStep::default(),
                )
            };
            let end_without_answer = || {
                let (stream, _) = listener.accept().unwrap();
                BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                // The listener of a live job continues.
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
}
