//! Sends torch's events to the console, where the user enabled them. The main loop passes in workers and outcome;
//! `reporter::events` has the JSON. It decides nothing.
#![expect(clippy::disallowed_methods, reason = "an event says how long the job took")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{LocalRank, RestartCount};
use rankrun_contract::report::ErrorFile;
use rankrun_contract::report::cut::MAX_CUT_TEXT;

use crate::console::Console;
use crate::reporter::events::{
    self, ENDED_BY_CODE, ENDED_BY_SIGNAL, EventWorker, JobFacts, JobProgress, RankStatus, TorchEvent,
};
use rankrun_core::agent::message::JobOutcome;
use rankrun_core::job_event::WorkerEnd;
use rankrun_core::posix::Exit;
use rankrun_core::rendezvous::Round;
use rankrun_core::spec::LaunchSpec;
use rankrun_core::spec::output_stream::OutputStream;

/// The events of one job.
pub(super) struct EventSink {
    console: Console,
    job: JobFacts,
    progress: JobProgress,
    began: Instant,
}

impl EventSink {
    /// The events of this launch, on the node of this full name.
    pub(super) fn new(spec: &LaunchSpec, console: &Console, full_name: String) -> Self {
        Self {
            console: console.clone(),
            job: JobFacts::of(spec, full_name),
            progress: JobProgress {
                membership: RankStatus::Joining,
                restarts: RestartCount(0),
                run_time: Duration::ZERO,
            },
            began: Instant::now(),
        }
    }

    /// The rendezvous completed after this time, and the ranks are assigned.
    pub(super) fn emit_joined(&mut self, restarts: RestartCount, round: &Round, took: Duration) {
        self.progress.restarts = restarts;
        self.emit(&TorchEvent::Rendezvous(took));
        // A job of one node knows its ranks in advance; with several nodes the round brings them.
        self.emit(&TorchEvent::RanksAssigned(Duration::ZERO));
        self.progress.membership = RankStatus::Joined { node_rank: round.node_rank, nodes: round.nodes };
    }

    pub(super) fn emit_started(&self, workers: &[EventWorker]) {
        workers.iter().for_each(|worker| self.emit(&TorchEvent::Started(*worker)));
    }

    pub(super) fn emit_ended(&mut self, events: &[TorchEvent]) {
        self.progress.run_time = self.began.elapsed();
        events.iter().for_each(|event| self.emit(event));
    }

    fn emit(&self, event: &TorchEvent) {
        let line = events::render(&self.job, self.progress, event);
        self.console.message(OutputStream::Stderr, line.as_bytes());
    }
}

/// The last events of a job: one per worker and one of the agent. Pure.
pub(super) fn end_events(
    outcome: &JobOutcome,
    died_of: Option<String>,
    workers: &[EventWorker],
    error_files: &BTreeMap<LocalRank, ErrorFile>,
) -> Vec<TorchEvent> {
    if let Some(raw_error) = died_of {
        return vec![TorchEvent::AgentFailed { raw_error }];
    }
    let failure = outcome.failure.as_ref();
    let bad_end = |worker: &EventWorker| {
        let failure = failure?;
        let others = failure.following_ends.iter().map(|other| other.end);
        let mut ends = [failure.first].into_iter().chain(others);
        ends.find(|end| end.local_rank == worker.local_rank && !end.exit.is_success())
    };
    let without_file = |end: &WorkerEnd| !error_files.contains_key(&end.local_rank);
    let exited = |end: WorkerEnd| matches!(end.exit, Exit::Code(_)) && without_file(&end);
    // torch has one placeholder for all workers, and the first that exits marks it.
    let placeholder =
        if workers.iter().filter_map(bad_end).any(exited) { ENDED_BY_CODE } else { ENDED_BY_SIGNAL };
    let raw_error = |end: &WorkerEnd| {
        let file = error_files.get(&end.local_rank);
        file.map_or_else(|| placeholder.to_owned(), |file| file.to_short_json(MAX_CUT_TEXT))
    };
    let workers = workers.iter().map(|worker| match (failure, bad_end(worker)) {
        (None, _) => TorchEvent::Succeeded(*worker),
        (Some(_), None) => TorchEvent::Terminated(*worker),
        (Some(_), Some(end)) => {
            TorchEvent::Failed { worker: *worker, exit_code: exit_code(end.exit), raw_error: raw_error(&end) }
        }
    });
    workers.chain([TorchEvent::AgentSucceeded]).collect()
}

const fn exit_code(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal { number, .. } => -number,
    }
}
