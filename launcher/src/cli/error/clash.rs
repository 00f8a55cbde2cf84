//! Why two settings cannot both be meant.

use std::fmt;

/// Why two settings cannot both be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clash {
    /// `--warn-signal` for a time before the start.
    WarnedAtStart,
    /// `--start-timeout` and `--time-limit`
    StartAfterTheEnd,
    /// `--restart-delay` and `--time-limit`
    RestartAfterTheEnd,
    /// `--leftover-grace` and `--time-limit`
    LeftoversAfterTheEnd,
    /// `--restart-reset` and `--time-limit`
    NeverHealthy,
    /// `--restart-window` and `--time-limit`
    WindowIsTheJob,
    /// `--progress-restarts` and `--max-restarts`
    BudgetFirst,
    /// An option and the key of `--rdzv-conf` that says the same.
    SaidTwice,
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WarnedAtStart => "the workers would be warned at their start",
            Self::StartAfterTheEnd => "the job would be over before",
            Self::RestartAfterTheEnd => "the job would be over before the first restart",
            Self::LeftoversAfterTheEnd => "nobody can be waited for so long",
            Self::NeverHealthy => "no worker can run for so long",
            Self::WindowIsTheJob => "the window would be the whole job",
            Self::BudgetFirst => "all restarts would be used up before",
            Self::SaidTwice => "both say the same thing, and differ",
        })
    }
}

impl Clash {
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::WarnedAtStart => "warn less long before the end, as in `USR1@10`",
            Self::StartAfterTheEnd
            | Self::RestartAfterTheEnd
            | Self::LeftoversAfterTheEnd
            | Self::NeverHealthy => "make it shorter than the time limit",
            Self::WindowIsTheJob => "leave the window out, or make it shorter than the time limit",
            Self::SaidTwice => "leave one of them out",
            Self::BudgetFirst => "allow fewer restarts without progress than restarts",
        }
    }
}
