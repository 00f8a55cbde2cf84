//! How a worker is told its device: the vendor's variables. Pure.

use std::ffi::OsString;

use super::Visibility;
use super::choice::Choice;
use super::visibility::Inherited;

/// What each worker gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// What the workers see: what was asked for, or [`Visibility::Own`] where the vendor's variable has no order.
    pub visibility: Visibility,
    /// Why it is not what was asked for.
    pub forced: Option<&'static str>,
    /// By local rank.
    pub workers: Vec<Handed>,
}

/// One worker's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    /// Position of its device in [`Choice::devices`]; none on CPUs.
    pub device: Option<usize>,
    /// The number under which it finds its device among those that it sees.
    pub ordinal: u32,
    /// Variables to set, or with `None` to take away.
    pub variables: Vec<(&'static str, Option<OsString>)>,
}

/// The variables of `workers` workers; with more workers than devices they are dealt in turn.
#[must_use]
pub fn hand_over(choice: &Choice, inherited: &Inherited, workers: u32, visibility: Visibility) -> Handover {
    let _ = (choice, inherited);
    let workers =
        (0..workers).map(|ordinal| Handed { device: None, ordinal, variables: Vec::new() }).collect();
    Handover { visibility, forced: None, workers }
}
