//! What is wrong with a host that is named.

use std::fmt;

/// Why no node can be reached at a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostProblem {
    /// Colons, and no IPv6 address: often a second port.
    NeitherNameNorIpv6,
    /// Numbers and dots, and no IPv4 address.
    NoIpv4,
    /// Nothing that a name server or a hosts file could have.
    NoName,
    /// A broadcast or multicast address.
    ManyMachines,
    /// A link-local address.
    NeedsInterface,
    /// `0.0.0.0` and `::` on a node that is not to host.
    OnlyHere,
}

impl fmt::Display for HostProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeitherNameNorIpv6 => "neither a name nor an IPv6 address",
            Self::NoIpv4 => "not an IPv4 address",
            Self::NoName => "not a host name",
            Self::ManyMachines => "an address of many machines, where no connection arrives",
            Self::NeedsInterface => {
                "an address that means nothing without its interface, which cannot be given"
            }
            Self::OnlyHere => {
                "any address of this machine: the node would look for the store here, and not open it"
            }
        })
    }
}

impl HostProblem {
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::NeitherNameNorIpv6 => "an IPv6 address stands in brackets, and one port behind it",
            Self::NoIpv4 | Self::NoName | Self::ManyMachines => "give the name or an address of one machine",
            Self::NeedsInterface => "give another address of that machine, or its name",
            Self::OnlyHere => {
                "name the node that hosts the store; on that one `--rdzv-conf is_host=1` keeps this address"
            }
        }
    }
}
