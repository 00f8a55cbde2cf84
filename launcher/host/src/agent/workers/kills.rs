//! Marks the ends of workers by a SIGKILL that the launcher did not send: `process::oom` says whether the kernel's OOM
//! killer sent it. The failure report shows the result.
#![expect(clippy::disallowed_methods, reason = "the age of a kill is read from the clock")]

use std::time::{Instant, SystemTime};

use super::WorkerGroup;
use crate::process::child::WorkerExit;
use crate::process::oom::{OomKills, SigkillDeaths};
use rankrun_core::job_event::memory::OomEvidence;
use rankrun_core::job_event::{ForeignKill, WorkerEnd};
use rankrun_core::posix::Exit;

impl WorkerGroup {
    /// What is known of a foreign SIGKILL, for each of the workers that were reaped together with orphans that died
    /// by SIGKILL. Reads the kernel's counters only if there is such a process.
    pub(in crate::agent) fn foreign_kills(
        &mut self,
        exits: &[WorkerExit],
        orphans: u64,
    ) -> Vec<Option<ForeignKill>> {
        let workers: Vec<_> =
            exits.iter().filter(|exit| is_foreign_kill(exit)).map(|exit| exit.peak).collect();
        if workers.is_empty() && orphans == 0 {
            return vec![None; exits.len()];
        }
        let oom = self.oom_ledger.explain_deaths(&SigkillDeaths { workers, orphans }, Instant::now());
        exits
            .iter()
            .map(|exit| is_foreign_kill(exit).then_some(ForeignKill { oom, peak: exit.peak }))
            .collect()
    }

    /// The exit of the external worker, which may run in another cgroup.
    pub(super) fn external_worker_end(&mut self, exit: &WorkerExit, at: SystemTime) -> WorkerEnd {
        let kill = ForeignKill { oom: OomEvidence::Unknown, peak: None };
        WorkerEnd {
            local_rank: exit.worker.local_rank,
            pid: exit.pid,
            exit: exit.exit,
            at,
            error_file_info: self.error_file_info(exit),
            foreign_kill: is_foreign_kill(exit).then_some(kill),
        }
    }

    /// Notes which OOM kills are too old to be of a worker that is found dead later.
    pub(in crate::agent) fn poll_oom_kills(&mut self, now: Instant) {
        self.oom_ledger.sample(now);
    }

    /// What the OOM killer has killed since the workers were started.
    pub(super) fn oom_kills(&self) -> OomKills {
        self.oom_ledger.kills()
    }
}

fn is_foreign_kill(exit: &WorkerExit) -> bool {
    !exit.is_killed && matches!(exit.exit, Exit::Signal { number: libc::SIGKILL, .. })
}
