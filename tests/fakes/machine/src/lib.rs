//! The machine that the fake vendor libraries pretend to be on: a small text file, written by the tests and read by each
//! library when a program opens it. The variable `FAKE_MACHINE` names the file.
//!
//! ```text
//! driver 580.95.05
//! cuda 13000
//! on nvmlInit_v2 error 9
//! path 0 1 phb
//! card
//!   name NVIDIA H100 80GB HBM3
//!   uuid GPU-00000000-1111-2222-3333-444444444444
//!   pci 0000:1b:00.0
//! ```
//!
//! A line is a word and its value. `card` begins another card; what stands before the first one belongs to the machine.
//! A fact without a line is one that the library does not know. Positions of cards count in the order of the file,
//! which is also the order in which a driver reports them that promises none.

mod calls;
mod card;
mod text;

pub use calls::{Fault, Faults, announce, enter};
pub use card::{Card, Lost, Mig, NvLink, Pci, Vendor};

use std::path::PathBuf;

/// The variable that names the file.
pub const VARIABLE: &str = "FAKE_MACHINE";

/// The whole machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The version of the driver: `driver 580.95.05`.
    pub driver: String,
    /// The version of CUDA, as the driver counts: `cuda 13000`.
    pub cuda: u32,
    /// What goes wrong in which function: `on nvmlInit_v2 hang`.
    pub faults: Faults,
    /// The way between two cards, by position: `path 0 1 phb`. Else `node` or `sys`, by their NUMA nodes.
    pub paths: Vec<(usize, usize, Path)>,
    /// The cards.
    pub cards: Vec<Card>,
}

/// The nearest thing that two cards have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// One PCIe bridge.
    Pix,
    /// Several PCIe bridges.
    Pxb,
    /// A host bridge.
    Phb,
    /// A NUMA node.
    Node,
    /// The machine.
    Sys,
}

impl Machine {
    /// The machine of this process.
    ///
    /// # Panics
    /// When there is no file, or it does not say what it should: a mistake in the test.
    #[must_use]
    pub fn of_this_process() -> Self {
        let path = file().unwrap_or_else(|| panic!("{VARIABLE} is not set"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{VARIABLE}={}: {error}", path.display()));
        text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The cards of a vendor with their positions, in the order of the file.
    pub fn of(&self, vendor: Vendor) -> impl Iterator<Item = (usize, &Card)> {
        self.cards.iter().enumerate().filter(move |(_, card)| card.vendor == vendor)
    }

    /// The positions of a vendor's cards in ascending order of their PCI addresses.
    #[must_use]
    pub fn by_pci(&self, vendor: Vendor) -> Vec<usize> {
        let mut cards: Vec<_> = self.of(vendor).collect();
        cards.sort_by_key(|(_, card)| card.pci);
        cards.into_iter().map(|(position, _)| position).collect()
    }

    /// The way between two cards.
    #[must_use]
    pub fn path(&self, one: usize, other: usize) -> Path {
        let pair = (one.min(other), one.max(other));
        let written = self.paths.iter().find(|(a, b, _)| (*a.min(b), *a.max(b)) == pair);
        let same_node = self.cards[one].numa.is_some() && self.cards[one].numa == self.cards[other].numa;
        written.map_or(if same_node { Path::Node } else { Path::Sys }, |(_, _, path)| *path)
    }
}

#[expect(clippy::disallowed_methods, reason = "a fake library has nothing but the process that opens it")]
pub(crate) fn file() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from)
}
