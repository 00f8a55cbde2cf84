//! What the agent knows of its job at one moment. The agent copies it; another thread completes it from `/proc` and
//! log files, which may be slow.
#![expect(clippy::disallowed_methods, reason = "the examination of processes has a limit")]

use std::time::{Duration, Instant};

use rankrun_core::job_event::activity::LastOutput;
use rankrun_core::job_event::activity::RunState;
use rankrun_core::posix::Pid;

use super::protocol::{JobStatus, RankState};
use crate::logs::last_output::OutputReader;
use crate::process::usage::scan_tree_usage;

/// All processes together are examined for no longer than this.
const SCAN_TIMEOUT: Duration = Duration::from_secs(1);

/// The status so far, and where the rest of it is found.
#[derive(Debug)]
pub(crate) struct JobSnapshot {
    /// The status without process state, usage and output. A rank in [`RankState::Unknown`] was alive.
    pub status: JobStatus,
    /// The output of the ranks, in their order.
    pub outputs: OutputReader,
}

impl JobSnapshot {
    /// The whole status.
    #[must_use]
    pub(crate) fn complete(self) -> JobStatus {
        let Self { mut status, outputs } = self;
        let until = Instant::now() + SCAN_TIMEOUT;
        for rank in status.ranks.iter_mut().filter(|rank| rank.state == RankState::Unknown) {
            let pid = rank.pid.map(Pid::from_raw);
            let Some(usage) = pid.and_then(|pid| scan_tree_usage(pid, &|| Instant::now() >= until)) else {
                continue;
            };
            rank.state = match usage.state {
                RunState::Running => RankState::Running,
                RunState::Waiting => RankState::Sleeping,
                RunState::Uninterruptible => RankState::Uninterruptible,
                RunState::Stopped => RankState::Stopped,
                RunState::Ended => RankState::Ended,
            };
            rank.cpu_seconds = Some(usage.cpu_time.as_secs_f64());
            rank.memory_bytes = Some(usage.memory);
        }
        for (rank, output) in status.ranks.iter_mut().zip(outputs.read()) {
            if let LastOutput::Line { age, .. } = output {
                rank.last_output_age_seconds = Some(age.as_secs_f64());
            }
        }
        status
    }
}
