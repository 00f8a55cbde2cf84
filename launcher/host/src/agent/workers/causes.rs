//! The hint for a failed worker: passes the worker's exit, report and last lines, and the machine's `surroundings`, to
//! the table in `reporter::causes`. The failure report prints the result.

use rankrun_contract::rank::NodeCount;

use super::WorkerGroup;
use crate::agent::surroundings::WorkerSurroundings;
use crate::reporter::causes::{self, Clues, Program};
use crate::reporter::summary::FailureReport;
use rankrun_core::job_event::FailureKind;
use rankrun_core::spec::Entrypoint;

impl WorkerGroup {
    /// The hint of the most certain rule that matches the worker of this report.
    pub(in crate::agent) fn cause_hint(&self, failure: &FailureReport) -> Option<String> {
        if !matches!(failure.kind, FailureKind::Ended | FailureKind::EndedByStop) {
            return None;
        }
        let entrypoint = &self.spec.entrypoint;
        let round = self.round.as_ref();
        let is_loopback = |host: &str| {
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        };
        let clues = Clues {
            exit: failure.exit,
            program: match entrypoint {
                Entrypoint::Script { python, .. }
                | Entrypoint::Module { python, .. }
                | Entrypoint::RunPath { python, .. } => Program::Python { python },
                Entrypoint::Program { path, .. } => Program::Other { path },
            },
            message: failure.report.as_ref().map(|report| &*report.message),
            tail: &failure.tail,
            workers: self.spec.workers.get(),
            master: round.map(|round| &round.master),
            several_hosts: round
                .is_some_and(|round| round.nodes > NodeCount::ONE && !is_loopback(&round.master.addr)),
        };
        causes::hint(&clues, &WorkerSurroundings { environment: &self.environment, entrypoint })
    }
}
