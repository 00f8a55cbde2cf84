//! Which address this node publishes, so that its peers can reach it: a pure choice over what is known.
//!
//! In this order: `--local-addr`; the address of `--iface`; `127.0.0.1` where the endpoint itself is this machine only
//! (`localhost`); our end of the connection to the rendezvous store; and where that is a loopback address although
//! other machines may come, the address of an interface: one that is up and no loopback, of the family that is wanted;
//! those of hardware come before those of containers and virtual machines, and then in the kernel's order.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// One address of one interface of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The interface.
    pub name: String,
    /// The address; none where the interface has no IP address.
    pub address: Option<IpAddr>,
    /// Whether it is switched on.
    pub is_up: bool,
}

/// All interfaces of this machine, in the kernel's order, once for each address.
///
/// # Errors
/// The kernel does not tell.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in getifaddrs()? {
        let address = entry.address.as_ref().and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        });
        let is_up = entry.flags.contains(InterfaceFlags::IFF_UP);
        // The kernel lists each interface once more without an IP address.
        if address.is_some() || found.iter().all(|known| known.name != entry.interface_name) {
            found.retain(|known| known.name != entry.interface_name || known.address.is_some());
            found.push(Interface { name: entry.interface_name, address, is_up });
        }
    }
    Ok(found)
}

/// What is known when the address is chosen.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// `--local-addr`
    pub local_addr: Option<&'a str>,
    /// `--iface`
    pub iface: Option<&'a str>,
    /// This machine's.
    pub interfaces: &'a [Interface],
    /// Our end of the connection to the rendezvous store.
    pub connection: IpAddr,
    /// Whether the endpoint is `localhost` or a loopback address: then all nodes are on this machine.
    pub one_machine: bool,
}

/// The address, and why this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// What the others are told.
    pub addr: String,
    /// Why.
    pub why: Why,
}

/// Why an address was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// `--local-addr`
    Given,
    /// `--iface`
    OfGivenInterface {
        /// The interface.
        name: String,
    },
    /// All nodes are on this machine.
    OneMachine,
    /// It is our end of the connection to the store.
    OfConnection,
    /// The store is here, and others need another address than the loopback's.
    OfInterface {
        /// The interface.
        name: String,
    },
    /// There is no other.
    OnlyLoopback,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the other nodes reach this one at `{}`, ", self.addr)?;
        match &self.why {
            Why::Given => f.write_str("as `--local-addr` says"),
            Why::OfGivenInterface { name } => write!(f, "the address of `{name}`"),
            Why::OneMachine => f.write_str("since the endpoint is this machine only"),
            Why::OfConnection => f.write_str("our end of the connection to the rendezvous store"),
            Why::OfInterface { name } => {
                write!(f, "the address of `{name}`; `--iface` or `--local-addr` name another one")
            }
            Why::OnlyLoopback => f.write_str("since no interface has an address that others can reach"),
        }
    }
}

/// Why there is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No such interface.
    #[error("this machine has no interface `{name}`; it has {}", list(known))]
    Unknown {
        /// As it was given.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// It has no address.
    #[error("the interface `{name}` has no IP address")]
    NoAddress {
        /// As it was given.
        name: String,
    },
}

impl AddressError {
    /// One thing to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "name one of these with `--iface`, or an address with `--local-addr`",
            Self::NoAddress { .. } => "give the interface an address, or name another one with `--iface`",
        }
    }
}

fn list(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Chooses the address.
///
/// # Errors
/// `--iface` names an interface that is not there, or that has no address.
pub fn choose(known: &Known<'_>) -> Result<Chosen, AddressError> {
    if let Some(given) = known.local_addr {
        return Ok(Chosen { addr: given.to_owned(), why: Why::Given });
    }
    let connection = known.connection.to_canonical();
    if let Some(name) = known.iface {
        let addr = of_interface(known.interfaces, name, connection.is_ipv6())?.to_string();
        return Ok(Chosen { addr, why: Why::OfGivenInterface { name: name.to_owned() } });
    }
    if known.one_machine {
        let addr = loopback_of(connection).to_string();
        return Ok(Chosen { addr, why: Why::OneMachine });
    }
    if !connection.is_loopback() {
        return Ok(Chosen { addr: connection.to_string(), why: Why::OfConnection });
    }
    let others = known.interfaces.iter().filter_map(|interface| Some((interface, interface.address?)));
    let best = others.filter(|(interface, address)| interface.is_up && is_reachable(*address)).min_by_key(
        |(interface, address)| (address.is_ipv6() != connection.is_ipv6(), is_virtual(&interface.name)),
    );
    Ok(match best {
        Some((interface, address)) => {
            Chosen { addr: address.to_string(), why: Why::OfInterface { name: interface.name.clone() } }
        }
        None => Chosen { addr: loopback_of(connection).to_string(), why: Why::OnlyLoopback },
    })
}

/// Whether `--iface` can be obeyed at all: known before anything is connected.
///
/// # Errors
/// See [`choose`].
pub fn check(iface: &str, interfaces: &[Interface]) -> Result<(), AddressError> {
    of_interface(interfaces, iface, false).map(drop)
}

fn of_interface(interfaces: &[Interface], name: &str, wants_ipv6: bool) -> Result<IpAddr, AddressError> {
    let mine = || interfaces.iter().filter(|interface| interface.name == name);
    if mine().next().is_none() {
        let mut known: Vec<_> = interfaces.iter().map(|interface| interface.name.clone()).collect();
        known.dedup();
        return Err(AddressError::Unknown { name: name.to_owned(), known });
    }
    mine()
        .filter_map(|interface| interface.address)
        .min_by_key(|address| (is_link_local(*address), address.is_ipv6() != wants_ipv6))
        .ok_or_else(|| AddressError::NoAddress { name: name.to_owned() })
}

fn loopback_of(connection: IpAddr) -> IpAddr {
    match connection {
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
    }
}

fn is_reachable(address: IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified() && !is_link_local(address)
}

/// Such an address means nothing without the interface of the one who uses it.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// By the names that container engines and virtual machines give to theirs, and tunnels.
fn is_virtual(name: &str) -> bool {
    const PREFIXES: [&str; 11] =
        ["docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc", "tun", "tailscale"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        Interface { name: name.to_owned(), address: address.parse().ok(), is_up: true }
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1"),
            interface("lo", "::1"),
            interface("docker0", "172.17.0.1"),
            Interface { is_up: false, ..interface("eth9", "10.9.0.1") },
            interface("eth0", "fe80::1"),
            interface("eth0", "10.0.0.2"),
            interface("eth0", "fd00::2"),
            interface("ib0", "10.1.0.2"),
            interface("bare", ""),
        ]
    }

    fn known<'a>(interfaces: &'a [Interface], connection: &str) -> Known<'a> {
        let connection = connection.parse().unwrap();
        Known { local_addr: None, iface: None, interfaces, connection, one_machine: false }
    }

    fn addr(known: &Known<'_>) -> String {
        choose(known).unwrap().addr
    }

    #[test]
    fn what_was_given_wins() {
        let machine = machine();
        let known = Known { local_addr: Some("node7"), iface: Some("nope"), ..known(&machine, "10.0.0.2") };
        let chosen = choose(&known).unwrap();
        assert_eq!((chosen.addr.as_str(), &chosen.why), ("node7", &Why::Given));
    }

    #[test]
    fn an_interface_gives_the_address_of_the_endpoints_family() {
        let machine = machine();
        let of = |iface, connection| addr(&Known { iface: Some(iface), ..known(&machine, connection) });
        assert_eq!(of("eth0", "127.0.0.1"), "10.0.0.2");
        assert_eq!(of("eth0", "fd00::9"), "fd00::2");
        assert_eq!(of("eth0", "::ffff:10.0.0.9"), "10.0.0.2");
        assert_eq!(of("ib0", "fd00::9"), "10.1.0.2");
    }

    #[test]
    fn an_interface_must_be_there_and_have_an_address() {
        let machine = machine();
        let error = check("eth7", &machine).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this machine has no interface `eth7`; it has `lo`, `docker0`, `eth9`, `eth0`, `ib0`, `bare`"
        );
        assert_eq!(
            check("bare", &machine).unwrap_err().to_string(),
            "the interface `bare` has no IP address"
        );
        assert_eq!(check("eth0", &machine), Ok(()));
    }

    #[test]
    fn the_connection_knows_how_others_reach_us() {
        let machine = machine();
        assert_eq!(addr(&known(&machine, "10.1.0.2")), "10.1.0.2");
        assert_eq!(addr(&known(&machine, "::ffff:10.1.0.2")), "10.1.0.2");
    }

    #[test]
    fn a_loopback_connection_means_an_interface() {
        let machine = machine();
        assert_eq!(addr(&known(&machine, "127.0.0.1")), "10.0.0.2");
        assert_eq!(addr(&known(&machine, "::1")), "fd00::2");
        assert_eq!(addr(&known(&machine[..3], "127.0.0.1")), "172.17.0.1");
        let alone = choose(&known(&machine[..2], "127.0.0.1")).unwrap();
        assert_eq!((alone.addr.as_str(), &alone.why), ("127.0.0.1", &Why::OnlyLoopback));
    }

    #[test]
    fn one_machine_needs_the_loopback_only() {
        let machine = machine();
        let on = |connection| addr(&Known { one_machine: true, ..known(&machine, connection) });
        assert_eq!(on("127.0.0.1"), "127.0.0.1");
        assert_eq!(on("::1"), "::1");
    }

    #[test]
    fn every_machine_has_a_loopback() {
        assert!(
            interfaces().unwrap().iter().any(|one| one.address.is_some_and(|address| address.is_loopback()))
        );
    }
}
