//! Workers that ended by a SIGKILL that the launcher did not send: whether the kernel's OOM killer sent it.

use std::time::SystemTime;

use super::WorkerGroup;
use crate::agent::message::{ForeignKill, WorkerEnd};
use crate::process::Exit;
use crate::process::child::WorkerExit;
use crate::process::oom::{OomEvidence, OomKills};

impl WorkerGroup {
    /// What is known of a foreign SIGKILL, for each of the workers that were reaped together. Reads the
    /// kernel's counters only if there is such a worker.
    pub(in crate::agent) fn foreign_kills(&mut self, exits: &[WorkerExit]) -> Vec<Option<ForeignKill>> {
        let deaths = exits.iter().filter(|exit| is_foreign_kill(exit)).count();
        if deaths == 0 {
            return vec![None; exits.len()];
        }
        let oom = self.oom.explain(deaths as u64);
        exits
            .iter()
            .map(|exit| is_foreign_kill(exit).then_some(ForeignKill { oom, peak: exit.peak }))
            .collect()
    }

    /// The exit of the external worker, which may run in another cgroup.
    pub(super) fn end_by_hand(&mut self, exit: &WorkerExit, at: SystemTime) -> WorkerEnd {
        let kill = ForeignKill { oom: OomEvidence::Unknown, peak: None };
        WorkerEnd {
            local_rank: exit.worker.local_rank,
            pid: exit.pid,
            exit: exit.exit,
            at,
            testimony: self.testimony(exit),
            foreign_kill: is_foreign_kill(exit).then_some(kill),
        }
    }

    /// What the OOM killer has killed since the workers were started.
    pub(super) fn oom_kills(&self) -> OomKills {
        self.oom.kills()
    }
}

fn is_foreign_kill(exit: &WorkerExit) -> bool {
    !exit.is_killed && matches!(exit.exit, Exit::Signal { number: libc::SIGKILL, .. })
}
