//! The hint for a failed worker: passes the worker's exit, report and last lines, and the machine's `surroundings`, to
//! the table in `reporter::causes`. The failure report prints the result.
//!
//! The rules look for files in folders of the user, any of which may be on a file system that does not answer. So they
//! run on a thread, and the report comes without a hint if they take too long.

use std::time::Duration;

use rankrun_contract::rank::NodeCount;

use super::WorkerGroup;
use crate::agent::surroundings::WorkerSurroundings;
use crate::blocking::{BlockingCall, CallStep};
use crate::reporter::causes::{self, Clues, Program};
use crate::reporter::summary::FailureReport;
use rankrun_core::job_event::FailureKind;
use rankrun_core::spec::Entrypoint;

/// The report waits no longer for its hint.
const HINT_LIMIT: Duration = Duration::from_secs(2);

impl WorkerGroup {
    /// The hint of the most certain rule that matches the worker of this report; `None` if a file system does not answer.
    pub(in crate::agent) fn cause_hint(&self, failure: &FailureReport) -> Option<String> {
        if !matches!(failure.kind, FailureKind::Ended | FailureKind::EndedByStop) {
            return None;
        }
        let round = self.round.as_ref();
        let is_loopback = |host: &str| {
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        };
        let (exit, workers) = (failure.exit, self.spec.workers.get());
        let message = failure.report.as_ref().map(|report| report.message.clone());
        let tail = failure.tail.clone();
        let master = round.map(|round| round.master.clone());
        let several_hosts =
            round.is_some_and(|round| round.nodes > NodeCount::ONE && !is_loopback(&round.master.addr));
        let (entrypoint, environment) = (self.spec.entrypoint.clone(), self.environment.clone());
        let find_hint = move |_: &CallStep| {
            let program = match &entrypoint {
                Entrypoint::Script { python, .. }
                | Entrypoint::Module { python, .. }
                | Entrypoint::RunPath { python, .. } => Program::Python { python },
                Entrypoint::Program { path, .. } => Program::Other { path },
            };
            let (message, master) = (message.as_deref(), master.as_ref());
            let clues = Clues { exit, program, message, tail: &tail, workers, master, several_hosts };
            causes::hint(&clues, &WorkerSurroundings { environment: &environment, entrypoint: &entrypoint })
        };
        match BlockingCall::start("cause-hint", find_hint) {
            Ok(call) => call.wait(HINT_LIMIT).unwrap_or_else(|| {
                tracing::info!("no hint by cause: a file system that it looks at does not answer");
                None
            }),
            Err(error) => {
                tracing::info!("no hint by cause: no thread can be started: {error}");
                None
            }
        }
    }
}
