//! The answers of `rankrun ls` and `rankrun status`, as tables and as JSON. Pure.

use std::time::Duration;

use bytesize::ByteSize;
use serde::Serialize;

use super::socket::ControlError;
use crate::explain::Style;
use crate::inspect::page::{Align, Column, Page, Row, Tone};
use rankrun_core::gc::format_age;
use rankrun_core::job_event::JobState;
use rankrun_core::stacks::WorkerStacks;
use rankrun_host::control::protocol::{JobStatus, RankState, TrainingStatus, WorkerStatus};

/// A job and its answer.
#[derive(Debug)]
pub(crate) struct ListedJob<'a> {
    /// The job id.
    pub(crate) job: &'a str,
    /// The pid of its launcher, for a job without an answer, if it is known.
    pub(crate) launcher_pid: Option<i32>,
    /// What it does.
    pub(crate) status: Result<&'a JobStatus, &'a ControlError>,
}

const LIST_COLUMNS: [Column; 8] = [
    Column("JOB", Align::Left),
    Column("PID", Align::Right),
    Column("STATE", Align::Left),
    Column("WORKERS", Align::Right),
    Column("RESTARTS", Align::Right),
    Column("AGE", Align::Right),
    Column("RUN ID", Align::Left),
    Column("PROGRAM", Align::Left),
];

const RANK_COLUMNS: [Column; 7] = [
    Column("RANK", Align::Right),
    Column("DEVICE", Align::Left),
    Column("PID", Align::Right),
    Column("STATE", Align::Left),
    Column("CPU", Align::Right),
    Column("MEMORY", Align::Right),
    Column("LAST OUTPUT", Align::Right),
];

/// The table of `rankrun ls`; the folders that were `searched` if there is no job.
pub(crate) fn render_list(jobs: &[ListedJob<'_>], searched: &str, style: Style) -> String {
    let mut page = Page::default();
    if jobs.is_empty() {
        let none = format!("no job of this user runs on this machine: searched {searched}");
        page.line("none", &[("none", &none, Tone::Plain)]);
        return page.render(style);
    }
    page.table(&LIST_COLUMNS, jobs.iter().map(list_row).collect());
    page.render(style)
}

fn list_row(listed: &ListedJob<'_>) -> Row {
    let row = Row::new(listed.job.to_owned()).cell(listed.job);
    match listed.status {
        Ok(status) => row
            .cell(status.launcher_pid.to_string())
            .toned(status.state.word(), state_tone(status.state))
            .cell(status.ranks.len().to_string())
            .cell(format!("{}/{}", status.restarts, status.max_restarts))
            .cell(age(status.uptime_seconds))
            .cell(status.run_id.as_str())
            .cell(status.program.as_str()),
        Err(error) => {
            let word = if matches!(error, ControlError::Full) { "too many clients" } else { "no answer" };
            let pid = listed.launcher_pid.map(|pid| pid.to_string()).unwrap_or_default();
            row.cell(pid).toned(word, Tone::Bad).cell("").cell("").cell("").cell("").cell("")
        }
    }
}

/// The page of `rankrun status`.
pub(crate) fn render_status(status: &JobStatus, style: Style) -> String {
    let mut page = Page::default();
    page.line("job", &[("job", "job ", Tone::Plain), ("id", &status.job, Tone::Heading)]);
    let facts = [
        format!("{} with run id {}, launcher pid {}", status.program, status.run_id, status.launcher_pid),
        world_text(status),
    ];
    for fact in &facts {
        page.line("fact", &[("fact", fact, Tone::Plain)]);
    }
    let rest = format!(
        ", launched {} ago; generation {}, {} of {} restarts used",
        age(status.uptime_seconds),
        status.generation,
        status.restarts,
        status.max_restarts
    );
    page.line(
        "state",
        &[("state", status.state.word(), state_tone(status.state)), ("rest", &rest, Tone::Plain)],
    );
    if let Some(training) = &status.training {
        page.line("training", &[("training", &training_text(training), Tone::Plain)]);
    }
    if !status.ranks.is_empty() {
        page.section(&RANK_COLUMNS, status.ranks.iter().map(rank_row).collect());
    }
    page.render(style)
}

fn world_text(status: &JobStatus) -> String {
    let workers = match status.world_size {
        0 => return "no worker was started so far".to_owned(),
        1 => "1 worker".to_owned(),
        count => format!("{count} workers"),
    };
    if status.nodes == 1 { workers } else { format!("{workers} on {} nodes", status.nodes) }
}

fn training_text(training: &TrainingStatus) -> String {
    let TrainingStatus { step, total_steps, remaining_seconds, loss } = *training;
    let total = total_steps.map(|total| format!(" of {total}"));
    let left = remaining_seconds.map(|left| format!(", {} left", format_age(Duration::from_secs(left))));
    let loss = loss.map(|loss| format!(", loss {loss}"));
    let rest: String = [total, left, loss].into_iter().flatten().collect();
    format!("training  step {step}{rest}")
}

fn rank_row(rank: &WorkerStatus) -> Row {
    let optional = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let tone = match rank.state {
        RankState::Uninterruptible | RankState::Stopped => Tone::Warning,
        RankState::Ended => Tone::Faint,
        RankState::NotStarted | RankState::Running | RankState::Sleeping | RankState::Unknown => Tone::Plain,
    };
    Row::new(rank.local_rank.to_string())
        .cell(rank.rank.to_string())
        .cell(rank.device.as_str())
        .cell(optional(rank.pid.map(|pid| pid.to_string())))
        .toned(rank.state.word(), tone)
        .cell(optional(rank.cpu_seconds.map(|seconds| format!("{seconds:.1}s"))))
        .cell(optional(rank.memory_bytes.map(|bytes| ByteSize::b(bytes).to_string())))
        .cell(optional(rank.last_output_age_seconds.map(|seconds| format!("{} ago", age(seconds)))))
}

const fn state_tone(state: JobState) -> Tone {
    if state.is_healthy() { Tone::Plain } else { Tone::Warning }
}

fn age(seconds: f64) -> String {
    format_age(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// A job that gives no answer, for programs.
#[derive(Serialize)]
struct UnansweredJob<'a> {
    job: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    launcher_pid: Option<i32>,
    error: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ListedJson<'a> {
    Answered(&'a JobStatus),
    Unanswered(UnansweredJob<'a>),
}

/// `rankrun ls --json`.
pub(crate) fn list_json(jobs: &[ListedJob<'_>]) -> String {
    let listed: Vec<ListedJson<'_>> = jobs
        .iter()
        .map(|&ListedJob { job, launcher_pid, status }| match status {
            Ok(status) => ListedJson::Answered(status),
            Err(error) => {
                ListedJson::Unanswered(UnansweredJob { job, launcher_pid, error: error.to_string() })
            }
        })
        .collect();
    to_json(&listed)
}

/// `rankrun status --json`.
pub(crate) fn status_json(status: &JobStatus) -> String {
    to_json(status)
}

/// `rankrun stacks --json`.
pub(crate) fn stacks_json(workers: &[WorkerStacks]) -> String {
    to_json(workers)
}

fn to_json<T: Serialize + ?Sized>(value: &T) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> JobStatus {
        let rank = |rank, state, seconds| WorkerStatus {
            rank,
            local_rank: rank,
            device: format!("cpu:{rank}"),
            pid: (state != RankState::NotStarted).then_some(100 + rank as i32),
            state,
            cpu_seconds: seconds,
            memory_bytes: seconds.map(|_| 5 << 20),
            last_output_age_seconds: seconds,
        };
        JobStatus {
            job: "4f1c".to_owned(),
            run_id: "my\nrun".to_owned(),
            launcher_pid: 99,
            program: "train.py".to_owned(),
            state: JobState::Running,
            generation: 2,
            restarts: 1,
            max_restarts: 3,
            nodes: 1,
            world_size: 2,
            uptime_seconds: 62.5,
            training: None,
            ranks: vec![rank(0, RankState::Sleeping, Some(4.25)), rank(1, RankState::NotStarted, None)],
        }
    }

    #[test]
    fn status_page_shows_job_and_each_rank() {
        let text = "job 4f1c\ntrain.py with run id my run, launcher pid 99\n2 workers\n\
                    running, launched 1m02s ago; generation 2, 1 of 3 restarts used\n\n\
                    RANK  DEVICE  PID  STATE         CPU   MEMORY  LAST OUTPUT\n   \
                    0  cpu:0   100  sleeping     4.2s  5.0 MiB       4s ago\n   \
                    1  cpu:1     -  not started     -        -            -\n";
        assert_eq!(render_status(&status(), Style::Plain), text);
        let training = TrainingStatus {
            step: 120,
            total_steps: Some(1000),
            remaining_seconds: Some(182),
            loss: Some(2.14),
        };
        let trains = JobStatus { training: Some(training), ..status() };
        let line = "\ntraining  step 120 of 1000, 3m02s left, loss 2.14\n";
        assert!(render_status(&trains, Style::Plain).contains(line));
        assert_eq!(training_text(&TrainingStatus::default()), "training  step 0");
        // Before the first round.
        let waits =
            JobStatus { state: JobState::Joining, nodes: 0, world_size: 0, ranks: Vec::new(), ..status() };
        let text = "job 4f1c\ntrain.py with run id my run, launcher pid 99\nno worker was started so far\n\
                    joining, launched 1m02s ago; generation 2, 1 of 3 restarts used\n";
        assert_eq!(render_status(&waits, Style::Plain), text);
    }

    #[test]
    fn list_shows_answers_and_silent_jobs() {
        let status = status();
        let jobs = [
            ListedJob { job: "4f1c", launcher_pid: None, status: Ok(&status) },
            ListedJob { job: "9abc", launcher_pid: Some(7), status: Err(&ControlError::Silent) },
            ListedJob { job: "9def", launcher_pid: None, status: Err(&ControlError::Full) },
        ];
        let text = "JOB   PID  STATE             WORKERS  RESTARTS    AGE  RUN ID  PROGRAM\n\
                    4f1c   99  running                 2       1/3  1m02s  my run  train.py\n\
                    9abc    7  no answer\n\
                    9def       too many clients\n";
        assert_eq!(render_list(&jobs, "`/r`", Style::Plain), text);
        let none = "no job of this user runs on this machine: searched `/r`\n";
        assert_eq!(render_list(&[], "`/r`", Style::Plain), none);
        let json: serde_json::Value = serde_json::from_str(&list_json(&jobs)).unwrap();
        assert_eq!(json[0]["ranks"][0]["state"], "sleeping");
        assert_eq!(json[1]["launcher_pid"], 7);
        assert_eq!(json[1]["error"], "the job does not answer within 5 s");
    }
}
