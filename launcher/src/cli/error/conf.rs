//! What is wrong with an item of `--rdzv-conf`.

use std::fmt;

/// What is wrong with an item of `--rdzv-conf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfProblem {
    /// No key.
    NoKey,
    /// No value.
    NoValue,
    /// A key that the launcher itself sets.
    Reserved,
    /// Seconds or a count, and not a whole number above zero.
    Positive,
    /// `cas_backoff_max_seconds`
    Backoff,
    /// `is_host`
    YesOrNo,
    /// `store_type`
    StoreType,
    /// `is_host=0` where no other node can be the host.
    NobodyHosts,
}

impl fmt::Display for ConfProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKey => "which has no key",
            Self::NoValue => "which has no value",
            Self::Reserved => "whose key has an option of its own",
            Self::Positive => "whose value is not a whole number above 0",
            Self::Backoff => "whose value is not a number of seconds from 0 up",
            Self::YesOrNo => "whose value is neither `true` nor `false`",
            Self::StoreType => "whose value is neither `tcp` nor `file`",
            Self::NobodyHosts => "and nobody else can open the store of a job that is alone",
        })
    }
}

impl ConfProblem {
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::NoKey | Self::NoValue => "write `key=value,key=value`",
            Self::Reserved => "give it by that option",
            Self::Positive => "write it without a unit, as in `join_timeout=600` (seconds)",
            Self::Backoff => "write it as in `cas_backoff_max_seconds=1.5`",
            Self::YesOrNo => "write `is_host=1` or `is_host=0`",
            Self::StoreType => "leave the key out: the store is `tcp`",
            Self::NobodyHosts => "leave the key out, or name the store with `--rdzv-endpoint HOST:PORT`",
        }
    }
}
