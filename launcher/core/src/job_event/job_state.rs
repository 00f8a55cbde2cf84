//! What a job does, as the state says it and as a status on the control socket has it.

use serde::{Deserialize, Serialize};

/// What a job does on this node, in fewer steps than the phases of the state. A status has it by its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The stores, or the log folders of a generation, are being opened. No worker runs.
    #[default]
    Starting,
    /// This node waits for the others, for a first or a further round.
    Joining,
    /// The workers run, and none has failed.
    Running,
    /// The workers are being stopped, before a restart or the end.
    Stopping,
    /// All workers have ended, and a restart is being decided or waited for.
    Restarting,
    /// The workers of this node have succeeded, and those of other nodes run.
    Settling,
    /// The job is over, and its last output is written.
    Ending,
    /// All processes of the job are stopped (Ctrl-Z).
    Suspended,
}

impl JobState {
    /// True if a probe may call the job healthy.
    #[must_use]
    pub const fn is_healthy(self) -> bool {
        matches!(self, Self::Running | Self::Settling)
    }

    /// The word for the table.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Joining => "joining",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Restarting => "restarting",
            Self::Settling => "settling",
            Self::Ending => "ending",
            Self::Suspended => "suspended",
        }
    }
}
