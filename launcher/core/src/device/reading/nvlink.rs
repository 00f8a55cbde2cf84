//! The `NVLink`s of a device at one moment, and their changes between two. Pure.
//!
//! A link that goes down takes its errors along, so they are kept for each link.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The `NVLink`s of a device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NvlinkReading {
    /// The links by number. A link of which the driver does not know the state is absent.
    pub links: BTreeMap<u32, LinkState>,
    /// Errors of all links together, where the driver does not count them for each.
    pub total: Option<NvlinkErrors>,
}

/// Whether a link carries data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// It does. Its errors are `None` where the driver does not count them for each link.
    Up(Option<NvlinkErrors>),
    /// It does not.
    Down,
}

/// Errors of a link, or of all links together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NvlinkErrors {
    /// Checksum errors in flow control.
    pub crc_flit: u64,
    /// Checksum errors in data.
    pub crc_data: u64,
    /// Packets that were sent again.
    pub replay: u64,
    /// How often a link was trained again.
    pub recovery: u64,
}

impl NvlinkReading {
    /// The links that are up, each with its errors.
    pub fn up(&self) -> impl Iterator<Item = (u32, Option<NvlinkErrors>)> {
        self.links.iter().filter_map(|(number, state)| match state {
            LinkState::Up(errors) => Some((*number, *errors)),
            LinkState::Down => None,
        })
    }

    /// The numbers of the links that are up now and down in `later`.
    #[must_use]
    pub fn down_in(&self, later: &Self) -> Vec<u32> {
        let is_down = |number: &u32| later.links.get(number) == Some(&LinkState::Down);
        self.up().map(|(number, _)| number).filter(is_down).collect()
    }

    /// What has changed in `later`, each in words.
    pub(super) fn changes(&self, later: &Self) -> Vec<String> {
        let down: Vec<String> = self.down_in(later).iter().map(u32::to_string).collect();
        let down = match down.as_slice() {
            [] => None,
            [number] => Some(format!("NVLink {number} is down")),
            numbers => Some(format!("NVLinks {} are down", numbers.join(", "))),
        };
        down.into_iter().chain(self.new_errors(later).in_words()).collect()
    }

    /// The errors since this reading: of the links that are up in both, or of all together if the same links are up.
    fn new_errors(&self, later: &Self) -> NvlinkErrors {
        let errors_later = |number| match later.links.get(&number) {
            Some(LinkState::Up(errors)) => *errors,
            Some(LinkState::Down) | None => None,
        };
        let of_links = self.up().filter_map(|(number, errors)| Some((errors?, errors_later(number)?)));
        let is_same = self.up().map(|(number, _)| number).eq(later.up().map(|(number, _)| number));
        let of_all = self.total.zip(later.total).filter(|_| is_same);
        of_links
            .chain(of_all)
            .fold(NvlinkErrors::default(), |sum, (before, after)| sum.plus(after.since(before)))
    }
}

impl NvlinkErrors {
    /// A reset sets counters back: then nothing is known of the time between.
    const fn since(self, before: Self) -> Self {
        Self {
            crc_flit: self.crc_flit.saturating_sub(before.crc_flit),
            crc_data: self.crc_data.saturating_sub(before.crc_data),
            replay: self.replay.saturating_sub(before.replay),
            recovery: self.recovery.saturating_sub(before.recovery),
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            crc_flit: self.crc_flit.saturating_add(other.crc_flit),
            crc_data: self.crc_data.saturating_add(other.crc_data),
            replay: self.replay.saturating_add(other.replay),
            recovery: self.recovery.saturating_add(other.recovery),
        }
    }

    fn in_words(self) -> impl Iterator<Item = String> {
        let kinds = [
            ("flow control CRC", self.crc_flit),
            ("data CRC", self.crc_data),
            ("replay", self.replay),
            ("recovery", self.recovery),
        ];
        kinds.into_iter().filter(|(_, count)| *count > 0).map(|(kind, count)| {
            format!("{count} NVLink {kind} {}", if count == 1 { "error" } else { "errors" })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replays(replay: u64) -> NvlinkErrors {
        NvlinkErrors { replay, ..NvlinkErrors::default() }
    }

    fn reading(states: &[LinkState], total: Option<NvlinkErrors>) -> NvlinkReading {
        NvlinkReading { links: (0..).zip(states.iter().copied()).collect(), total }
    }

    fn up(replay: u64) -> LinkState {
        LinkState::Up(Some(replays(replay)))
    }

    const UNCOUNTED: LinkState = LinkState::Up(None);

    #[test]
    fn only_links_up_in_both_readings_are_compared() {
        let before = reading(&[up(70), up(1), LinkState::Down, up(5)], None);
        let after = reading(&[LinkState::Down, up(4), up(900), up(0)], None);
        assert_eq!(before.changes(&after), ["NVLink 0 is down", "3 NVLink replay errors"]);
        assert_eq!(before.down_in(&after), [0]);
        assert_eq!(before.changes(&before), [""; 0]);
    }

    #[test]
    fn link_of_unknown_state_is_not_down() {
        let before = reading(&[up(1), up(1), up(1)], None);
        assert_eq!(before.changes(&NvlinkReading::default()), [""; 0]);
        let after = reading(&[LinkState::Down, LinkState::Down], None);
        assert_eq!(before.changes(&after), ["NVLinks 0, 1 are down"]);
    }

    #[test]
    fn total_is_compared_if_the_same_links_are_up() {
        let before = reading(&[UNCOUNTED, UNCOUNTED], Some(replays(7)));
        let same = reading(&[UNCOUNTED, UNCOUNTED], Some(replays(8)));
        assert_eq!(before.changes(&same), ["1 NVLink replay error"]);
        let fewer = reading(&[UNCOUNTED, LinkState::Down], Some(replays(9)));
        assert_eq!(before.changes(&fewer), ["NVLink 1 is down"]);
        let more = reading(&[UNCOUNTED, UNCOUNTED, UNCOUNTED], Some(replays(9)));
        assert_eq!(before.changes(&more), [""; 0]);
    }
}
