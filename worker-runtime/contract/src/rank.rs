//! The ids of a job: ranks, sizes and counts, each a type of its own so that none is taken for another.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Why a text is not a rank, size or count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ParseIdError {
    /// The text as it was given.
    pub text: String,
    /// What would have been accepted, in words.
    pub expected: &'static str,
}

macro_rules! define_index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as a position in a list.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_decimal(text).map(Self).ok_or_else(|| ParseIdError {
                    text: text.to_owned(),
                    expected: "a whole number from 0 to 4294967295",
                })
            }
        }
    };
}

macro_rules! define_size {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub NonZeroU32);

        impl $name {
            /// One: a job of a single member.
            pub const ONE: Self = Self(NonZeroU32::MIN);

            /// The size, or `None` for zero.
            #[must_use]
            pub const fn new(size: u32) -> Option<Self> {
                match NonZeroU32::new(size) {
                    Some(size) => Some(Self(size)),
                    None => None,
                }
            }

            /// The size as a plain number.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0.get()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_decimal(text).and_then(Self::new).ok_or_else(|| ParseIdError {
                    text: text.to_owned(),
                    expected: "a whole number from 1 to 4294967295",
                })
            }
        }
    };
}

/// Digits only: `u32::from_str` would also take a leading `+`.
fn parse_decimal(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

define_index! {
    /// A worker's index in the whole job, `0..world size` (`RANK`).
    Rank
}
define_index! {
    /// A worker's index on its node, `0..local world size` (`LOCAL_RANK`).
    LocalRank
}
define_index! {
    /// A node's index among the nodes of a round; torch calls it the group rank (`GROUP_RANK`).
    NodeRank
}
define_index! {
    /// How many restarts the agent of this node has used (`TORCHELASTIC_RESTART_COUNT`).
    RestartCount
}
define_index! {
    /// One life of the local worker group, counted from 0. Everything that outlives a worker is keyed by it.
    Generation
}
define_size! {
    /// How many workers the whole job has (`WORLD_SIZE`).
    WorldSize
}
define_size! {
    /// How many workers one node has (`LOCAL_WORLD_SIZE`).
    LocalWorldSize
}
define_size! {
    /// How many nodes a round has (`GROUP_WORLD_SIZE`).
    NodeCount
}

/// The job id that torch calls the run id (`TORCHELASTIC_RUN_ID`): any text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunId(pub String);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Our own id of one launch (`RANKRUN_JOB`): the mark by which the processes of a job are recognised.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobId(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_accepts_digits_only() {
        assert_eq!("7".parse(), Ok(Rank(7)));
        for text in ["", "+7", "-1", " 7", "7.0", "seven", "4294967296"] {
            assert!(text.parse::<Rank>().is_err(), "`{text}` was taken for a rank");
        }
    }

    #[test]
    fn world_size_zero_is_refused() {
        assert_eq!("2".parse::<WorldSize>().map(WorldSize::get), Ok(2));
        assert!("0".parse::<WorldSize>().is_err());
    }
}
