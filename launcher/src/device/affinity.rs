//! The CPUs near a device (`--numa-binding`, contract 1.11). Pure.

use std::str::FromStr;

/// Which CPUs a worker is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumaBinding {
    /// All of the device's NUMA node.
    Node,
    /// All of its socket.
    Socket,
    /// Its share of its node's cores.
    Exclusive,
    /// The CPUs of one highest-level cache.
    CoreComplex,
}

impl NumaBinding {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Node, Self::Socket, Self::Exclusive, Self::CoreComplex];

    /// The word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        }
    }
}

/// A word that is no binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no NUMA binding has this name")]
pub struct UnknownBinding;

impl FromStr for NumaBinding {
    type Err = UnknownBinding;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|binding| binding.word() == text).ok_or(UnknownBinding)
    }
}
