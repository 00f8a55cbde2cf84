//! What follows from a verdict on the progress of the workers: a warning, or with `--hang-timeout` a failure.

use std::time::Instant;

use super::{State, insert_action};
use crate::agent::message::{Action, JudgedHang};
use crate::agent::phase::JobPhase;
use crate::hang::verdict::Verdict;
use crate::job_event::{FailureKind, JobEvent, WorkerEnd};
use crate::posix::Signal;
use crate::spec::stop::StopReason;

impl State {
    /// A straggler makes progress, so it is never a failure.
    pub(super) fn on_hang_judged(&mut self, now: Instant, judged: JudgedHang) -> Vec<Action> {
        let JobPhase::Running { live } = &self.phase else { return Vec::new() };
        if judged.generation != self.generation || !live.contains(&judged.local_rank) {
            return Vec::new();
        }
        let is_failure = matches!(judged.verdict, Verdict::Hang(_) | Verdict::Desync(_));
        let JudgedHang { at, verdict, local_rank, pid, .. } = judged;
        if !is_failure || self.rules.hang_timeout.is_none() {
            return vec![Action::Emit(JobEvent::NoProgress { verdict: Box::new(verdict) })];
        }
        let live = live.clone();
        let end = WorkerEnd::new_expected(local_rank, pid, Signal::SIGTERM, at);
        let mut failure = self.new_failure(now, end, FailureKind::Hang);
        failure.hang = Some(Box::new(verdict.clone()));
        let report = self.report_failure_to_peers(&failure);
        let ours = self.without_external_worker(&live);
        let actions = self.stop_workers(now, live, StopReason::WorkerFailed, Some(failure));
        let grace = self.remaining_grace(now);
        let event = Action::Emit(JobEvent::Hang { verdict: Box::new(verdict), live: ours, grace });
        report.into_iter().chain(insert_action(actions, 1, event)).collect()
    }
}
