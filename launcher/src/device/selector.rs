//! The grammar of `--devices`. Pure.

use super::PciAddress;

/// `--devices`, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// `all`
    All,
    /// `none`: the CPUs.
    None,
    /// `idle`: those that nobody uses.
    Idle,
    /// Entries in the order in which they were written.
    List(Vec<Entry>),
}

/// One entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// `3`: counts within what is inherited.
    Index(u32),
    /// `0-3`, both ends included; `3-0` runs backwards.
    Range(u32, u32),
    /// `-2`: not this one. A list of exclusions only begins with all.
    Except(u32),
    /// `GPU-…`, `MIG-…` or the beginning of one that fits one device only.
    Uuid(String),
    /// `1:0`: the first MIG device of GPU 1.
    Mig(u32, u32),
    /// `0000:1b:00.0`
    Pci(PciAddress),
}
