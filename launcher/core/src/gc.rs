//! Leftover processes of dead jobs: their classification, and the text about them. Pure; `process::gc` walks `/proc`
//! and ends them.
//!
//! A process counts as such a leftover only if all of this holds:
//!
//! 1. It is of our user.
//! 2. It carries the mark of a job, `RANKRUN_JOB` with a UUID.
//! 3. It is not a launcher, and none of its ancestors is: after the death of guard and agent another process adopts
//!    the orphans.
//! 4. It has no terminal. Workers and their children have sessions without one. A process with a terminal, such as a
//!    worker that was started by hand, has its user.
//! 5. Neither it nor an ancestor in the same job has `RANKRUN_KEEP=1`.
//! 6. It is neither the asking process nor an ancestor of it.
//!
//! It is ended if it, or a process of the same job above it, has [inherited](MarkEvidence::Inherited) the job's number.
//! A mark in the environment alone may have leaked: such a process is listed, and ended by `--force`.

pub mod paths;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::plain::plain;
use crate::spec::OutputFormat;
use paths::{LeftPath, PathOutcome};

/// The request of a `rankrun gc` command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcRequest {
    /// The action on the processes found.
    pub mode: GcMode,
    /// The format of the answer.
    pub format: OutputFormat,
}

impl GcRequest {
    /// Whether a process is to be ended for which there is this evidence.
    #[must_use]
    pub const fn ends_process(&self, evidence: MarkEvidence) -> bool {
        match (self.mode, evidence) {
            (GcMode::List, _) | (GcMode::End, MarkEvidence::Environment) => false,
            (GcMode::End, MarkEvidence::Inherited) | (GcMode::EndAll, _) => true,
        }
    }
}

/// The action on the processes found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcMode {
    /// A process is ended if it descends from the job.
    End,
    /// `--force`: a process is ended also on the evidence of its environment alone.
    EndAll,
    /// `--dry-run`: processes are listed and not ended.
    List,
}

/// One process of the machine, from `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRecord {
    /// The process id in this namespace.
    pub pid: i32,
    /// The process id of its parent.
    pub parent: i32,
    /// The start time, in clock ticks since boot.
    pub started: u64,
    /// The classification that the sweep uses.
    pub standing: ProcessRelation,
}

/// The relation of a process to the jobs of this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessRelation {
    /// Of another user, without a mark, dead, or in front of a terminal.
    Unrelated,
    /// Looks like rankrun.
    Launcher,
    /// The process carries a job's mark.
    Marked {
        /// The job id in its environment.
        job: Uuid,
        /// Further evidence that it belongs to the job.
        evidence: MarkEvidence,
        /// Whether its environment has `RANKRUN_KEEP=1`.
        kept: bool,
    },
}

/// Evidence that a process belongs to the job of its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkEvidence {
    /// It descends from the job: the kernel passed the job's number on to it.
    Inherited,
    /// The mark in its environment alone, which may have leaked.
    Environment,
}

/// The leftover processes of dead jobs, lowest pid first; `me` is the asking process.
#[must_use]
pub fn find_leftovers(records: &[ProcessRecord], own_pid: i32) -> Vec<(&ProcessRecord, Uuid, MarkEvidence)> {
    let by_pid: HashMap<i32, &ProcessRecord> = records.iter().map(|process| (process.pid, process)).collect();
    // A list that was read while processes came and went may go in a circle.
    let with_ancestors = |pid: i32| {
        let parent = |process: &&ProcessRecord| by_pid.get(&process.parent).copied();
        std::iter::successors(by_pid.get(&pid).copied(), parent).take(records.len())
    };
    let runs = |process: &&ProcessRecord| {
        with_ancestors(process.pid).any(|above| above.standing == ProcessRelation::Launcher)
    };
    let running: HashSet<Uuid> = records.iter().filter(runs).filter_map(inherited_job).collect();
    let mine: Vec<i32> = with_ancestors(own_pid).map(|process| process.pid).collect();
    let mut leftovers: Vec<_> = records
        .iter()
        .filter_map(|process| {
            let ProcessRelation::Marked { job, .. } = process.standing else { return None };
            let is_spared = with_ancestors(process.pid).any(|above| match above.standing {
                ProcessRelation::Launcher => true,
                ProcessRelation::Marked { job: of, kept, .. } => kept && of == job,
                ProcessRelation::Unrelated => false,
            });
            let descends = with_ancestors(process.pid).any(|above| {
                matches!(above.standing, ProcessRelation::Marked { job: of, evidence: MarkEvidence::Inherited, .. } if of == job)
            });
            let evidence = if descends { MarkEvidence::Inherited } else { MarkEvidence::Environment };
            // A copy of a running job's mark does not prove a crash.
            let is_spared = is_spared || (!descends && running.contains(&job));
            (!is_spared && !mine.contains(&process.pid)).then_some((process, job, evidence))
        })
        .collect();
    leftovers.sort_by_key(|(process, ..)| process.pid);
    leftovers
}

/// The job that a process has inherited.
const fn inherited_job(process: &ProcessRecord) -> Option<Uuid> {
    match process.standing {
        ProcessRelation::Marked { job, evidence: MarkEvidence::Inherited, .. } => Some(job),
        ProcessRelation::Marked { .. } | ProcessRelation::Launcher | ProcessRelation::Unrelated => None,
    }
}

/// The result for one leftover process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GcOutcome {
    /// The process was listed and not signalled.
    Listed,
    /// The process ended after SIGTERM, in time.
    Ended,
    /// The process needed SIGKILL to end.
    Killed,
    /// The process is alive after SIGKILL.
    Alive,
}

impl GcOutcome {
    /// Whether it was alive at the last check.
    #[must_use]
    pub const fn is_alive(self) -> bool {
        matches!(self, Self::Listed | Self::Alive)
    }
}

/// One leftover process and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// The process id of the leftover.
    pub pid: i32,
    /// The job that the process belonged to.
    #[serde(serialize_with = "as_text")]
    pub job: Uuid,
    /// The evidence that it belongs to the job.
    pub evidence: MarkEvidence,
    /// The time since the process was started.
    #[serde(rename = "age_seconds", serialize_with = "as_seconds")]
    pub age: Duration,
    /// The command line of the process.
    pub command: String,
    /// The result for this process.
    pub fate: GcOutcome,
}

fn as_seconds<S: serde::Serializer>(age: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(age.as_secs())
}

fn as_text<S: serde::Serializer>(job: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(job)
}

/// All leftover processes and paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// The leftover processes, lowest pid first.
    pub processes: Vec<Leftover>,
    /// The files and folders that jobs left.
    pub paths: Vec<LeftPath>,
}

impl GcReport {
    /// Whether nothing is left that should not be.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.processes.iter().all(|process| process.fate != GcOutcome::Alive)
            && !self.paths.iter().any(|path| matches!(path.fate, PathOutcome::Failed(_)))
    }
}

/// Renders the answer as text or JSON.
#[must_use]
pub fn render(collected: &GcReport, request: &GcRequest) -> String {
    match request.format {
        OutputFormat::Json => {
            let json = serde_json::to_string_pretty(collected);
            format!("{}\n", json.expect("numbers, words and texts are always JSON"))
        }
        OutputFormat::Text => text(collected, request),
    }
}

fn text(collected: &GcReport, request: &GcRequest) -> String {
    if collected.processes.is_empty() && collected.paths.is_empty() {
        return "nothing is left of jobs without a launcher\n".to_owned();
    }
    let is_doubtful = |process: &&Leftover| {
        process.evidence == MarkEvidence::Environment && process.fate == GcOutcome::Listed
    };
    let (doubtful, certain): (Vec<_>, Vec<_>) = collected.processes.iter().partition(is_doubtful);
    let mut text = String::new();
    if !certain.is_empty() {
        text.push_str(&table(&certain));
        text.push_str(&summary(&certain, request.mode));
    }
    text.push_str(&paths::describe_paths(&collected.paths, request.mode));
    if !doubtful.is_empty() {
        text.push_str(&table(&doubtful));
        let (verb, pronoun) = if doubtful.len() == 1 { ("carries", "it") } else { ("carry", "them") };
        text.push_str(&format!(
            "{} {verb} the mark of such a job, but did not inherit its number: the mark may have leaked (`sbatch`, \
             `at`)\n`rankrun gc --force` ends {pronoun} too\n",
            processes(doubtful.len())
        ));
    }
    text
}

fn table(shown: &[&Leftover]) -> String {
    let mut text = format!("{:>8}  {:36}  {:>8}  COMMAND\n", "PID", "JOB", "AGE");
    for Leftover { pid, job, age, command, .. } in shown {
        text.push_str(&format!("{pid:>8}  {job:36}  {:>8}  {}\n", format_age(*age), plain(command)));
    }
    text
}

fn summary(certain: &[&Leftover], mode: GcMode) -> String {
    let count = |fate| certain.iter().filter(|process| process.fate == fate).count();
    let mut text = match mode {
        GcMode::List => format!("{} left; `rankrun gc` ends them\n", processes(certain.len())),
        GcMode::End | GcMode::EndAll => {
            let ended = processes(certain.len() - count(GcOutcome::Alive));
            let by_force = match count(GcOutcome::Killed) {
                0 => String::new(),
                killed => format!(", {killed} by SIGKILL"),
            };
            format!("{ended} ended{by_force}\n")
        }
    };
    for Leftover { pid, .. } in certain.iter().filter(|process| process.fate == GcOutcome::Alive) {
        text.push_str(&format!("pid {pid} survived SIGKILL for 5 s, probably stuck in the kernel\n"));
    }
    text
}

fn processes(count: usize) -> String {
    format!("{count} process{}", if count == 1 { "" } else { "es" })
}

/// The two largest units, as in `3h12m`.
pub fn format_age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests;
