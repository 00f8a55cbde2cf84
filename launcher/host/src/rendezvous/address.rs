//! Chooses the address that this node publishes for its peers. A pure choice; only [`interfaces`] asks the kernel.
//!
//! The order: `--local-addr`; the loopback for a job of one node; the address of `--iface`; the local end of the
//! connection to the rendezvous store. If that is a loopback address although other machines may join, an interface's
//! address is used. That interface is up, not a loopback, and of the wanted family. Hardware interfaces come before
//! those of containers and virtual machines, then the kernel's order counts.
//!
//! Under the name torchrun, an endpoint of `localhost` does not mean that all nodes are on this machine. The host may
//! call itself so, while the other nodes use its name. Under the name rankrun it does.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rankrun_contract::network;
pub use rankrun_contract::network::Interface;

/// Lists all interfaces of this machine in the kernel's order, once per address.
///
/// # Errors
/// The kernel does not list them.
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

/// Inputs of the choice of an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressFacts<'a> {
    /// The address from `--local-addr`, if the user gave it.
    pub local_addr: Option<&'a str>,
    /// The interface from `--iface`, if the user gave it.
    pub iface: Option<&'a str>,
    /// All interfaces of this machine, see [`interfaces`].
    pub interfaces: &'a [Interface],
    /// Local address of the connection to the rendezvous store.
    pub connection: IpAddr,
    /// Whether the job has one node; then only its own workers connect.
    pub is_alone: bool,
    /// Whether the endpoint says that all nodes are on this machine.
    pub is_on_this_machine: bool,
}

/// The published address, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishedHost {
    /// The address that other nodes are told.
    pub addr: String,
    /// Reason for this address.
    pub why: AddressReason,
}

/// Reason for the published address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AddressReason {
    /// The user gave it with `--local-addr`.
    Given,
    /// It belongs to the interface from `--iface`.
    OfGivenInterface {
        /// Name of the given interface.
        name: String,
    },
    /// The job has only one node.
    Alone,
    /// The endpoint says that all nodes are on this machine.
    OfLoopbackEndpoint,
    /// It is the local end of the connection to the store.
    OfConnection,
    /// The store is on this machine, and other nodes need an address other than the loopback.
    OfInterface {
        /// Name of the chosen interface.
        name: String,
    },
    /// This machine has only a loopback address.
    OnlyLoopback,
}

impl fmt::Display for PublishedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the other nodes reach this one at `{}`, ", self.addr)?;
        match &self.why {
            AddressReason::Given => f.write_str("as `--local-addr` says"),
            AddressReason::OfGivenInterface { name } => write!(f, "the address of `{name}`"),
            AddressReason::Alone => f.write_str("since the job has one node"),
            AddressReason::OfLoopbackEndpoint => f.write_str(
                "since the endpoint is this machine alone; `--local-addr` or `--iface` lets other machines in",
            ),
            AddressReason::OfConnection => f.write_str("our end of the connection to the rendezvous store"),
            AddressReason::OfInterface { name } => {
                write!(f, "the address of `{name}`; `--iface` or `--local-addr` name another one")
            }
            AddressReason::OnlyLoopback => f.write_str("since no interface has an address that others can reach"),
        }
    }
}

/// Why this node has no address to publish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No interface has the given name.
    #[error("this machine has no interface `{name}`; it has {}", quoted_list(known))]
    Unknown {
        /// The name as the user gave it.
        name: String,
        /// Names of the existing interfaces.
        known: Vec<String>,
    },
    /// The given interface has no IP address.
    #[error("the interface `{name}` has no IP address")]
    NoAddress {
        /// The name as the user gave it.
        name: String,
    },
}

impl AddressError {
    /// One action by which the user resolves the error.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "name one of these with `--iface`, or an address with `--local-addr`",
            Self::NoAddress { .. } => "give the interface an address, or name another one with `--iface`",
        }
    }
}

fn quoted_list(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Chooses the address that this node publishes.
///
/// # Errors
/// `--iface` names an interface that does not exist, or has no address.
pub(crate) fn choose_published_host(known: &AddressFacts<'_>) -> Result<PublishedHost, AddressError> {
    if let Some(given) = known.local_addr {
        return Ok(PublishedHost { addr: given.to_owned(), why: AddressReason::Given });
    }
    let connection = known.connection.to_canonical();
    if known.is_alone {
        return Ok(PublishedHost { addr: loopback_of(connection).to_string(), why: AddressReason::Alone });
    }
    if known.is_on_this_machine {
        return Ok(PublishedHost {
            addr: loopback_of(connection).to_string(),
            why: AddressReason::OfLoopbackEndpoint,
        });
    }
    if let Some(name) = known.iface {
        let addr = interface_address(known.interfaces, name, connection.is_ipv6())?.to_string();
        return Ok(PublishedHost { addr, why: AddressReason::OfGivenInterface { name: name.to_owned() } });
    }
    if !connection.is_loopback() {
        return Ok(PublishedHost { addr: connection.to_string(), why: AddressReason::OfConnection });
    }
    Ok(match network::first_reachable_interface(known.interfaces, connection.is_ipv6()) {
        Some((interface, address)) => PublishedHost {
            addr: address.to_string(),
            why: AddressReason::OfInterface { name: interface.name.clone() },
        },
        None => PublishedHost { addr: loopback_of(connection).to_string(), why: AddressReason::OnlyLoopback },
    })
}

/// Whether `--local-addr` or `--iface` limits this node to the loopback. Then all nodes are on this machine, which is
/// known before any connection.
///
/// # Errors
/// See [`choose_published_host`]. `--iface` is checked even if `--local-addr` decides.
pub(crate) fn is_confined(
    local_addr: Option<&str>,
    iface: Option<&str>,
    interfaces: &[Interface],
) -> Result<bool, AddressError> {
    let by_interface = match iface {
        Some(name) => interface_address(interfaces, name, false)?.is_loopback(),
        None => false,
    };
    Ok(local_addr.map_or(by_interface, |addr| loopback(addr).is_some()))
}

/// The only address on which the rendezvous store listens if `--iface` names an interface. `meant` are the addresses of
/// the endpoint's host. `None` if the store must listen on all addresses. The endpoint has priority over the interface,
/// because other nodes look for the store there.
#[must_use]
pub(crate) fn listen_addresses(
    interfaces: &[Interface],
    iface: &str,
    meant: &[IpAddr],
    needs_endpoint: bool,
) -> Option<IpAddr> {
    let of_iface = |address: &IpAddr| {
        let mut mine = interfaces.iter().filter(|one| one.name == iface).filter_map(|one| one.address);
        mine.any(|own| own == *address || (own.is_loopback() && address.is_loopback()))
    };
    if let Some(address) = meant.iter().find(|address| of_iface(address)) {
        return Some(*address);
    }
    let is_own = |address: &&IpAddr| interfaces.iter().any(|one| one.address == Some(**address));
    let elsewhere: Vec<&IpAddr> =
        meant.iter().filter(|address| !address.is_loopback()).filter(is_own).collect();
    let wants_ipv6 = meant.first().is_some_and(IpAddr::is_ipv6);
    match elsewhere.as_slice() {
        [one] => Some(**one),
        // The name means a loopback address on this machine only, such as Debian's 127.0.1.1. Other nodes know another
        // address.
        [] if !needs_endpoint => interface_address(interfaces, iface, wants_ipv6).ok(),
        _ => None,
    }
}

/// The interface by which this node's workers reach workers on other nodes. It is the interface of the connection to
/// the rendezvous store; for a loopback connection, that of the published address. `None` for a job of one node.
#[must_use]
pub(crate) fn workers_interface(known: &AddressFacts<'_>, chosen: &PublishedHost) -> Option<String> {
    let of_address = |address: IpAddr| {
        let mut all = known.interfaces.iter();
        all.find(|one| one.address == Some(address)).map(|one| one.name.clone())
    };
    let of_loopback = || {
        let is_loopback = |one: &&Interface| one.address.is_some_and(|address| address.is_loopback());
        known.interfaces.iter().find(is_loopback).map(|one| one.name.clone())
    };
    let connection = known.connection.to_canonical();
    match &chosen.why {
        AddressReason::Alone => None,
        AddressReason::OfGivenInterface { name } | AddressReason::OfInterface { name } => Some(name.clone()),
        AddressReason::OfLoopbackEndpoint | AddressReason::OnlyLoopback => of_loopback(),
        AddressReason::OfConnection => of_address(connection),
        AddressReason::Given if !connection.is_loopback() => of_address(connection),
        AddressReason::Given => match chosen.addr.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) if address.to_canonical().is_loopback() => of_loopback(),
            Ok(address) => of_address(address.to_canonical()),
            Err(_) if loopback(&chosen.addr).is_some() => of_loopback(),
            // `--local-addr` may be a name; it is not resolved.
            Err(_) => {
                let found = network::first_reachable_interface(known.interfaces, connection.is_ipv6());
                found.map(|(interface, _)| interface.name.clone())
            }
        },
    }
}

/// Hint to the user if NCCL chooses among several networks of this host. `own` is the interface of the other libraries.
#[must_use]
pub(crate) fn several_networks_hint(interfaces: &[Interface], own: &str) -> Option<String> {
    let names = network::hardware_interfaces(interfaces);
    (names.len() > 1).then(|| {
        format!(
            "this host has {} networks, {}: gloo uses `{own}`, by which the nodes reach each other, and NCCL chooses by \
             itself; `--iface NAME` names one for both",
            names.len(),
            quoted_list(&names)
        )
    })
}

/// The loopback address of this host; `None` if other machines may reach it. The only known name is `localhost`.
#[must_use]
pub fn loopback(host: &str) -> Option<IpAddr> {
    if host == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.parse::<IpAddr>().ok().map(|address| address.to_canonical()).filter(IpAddr::is_loopback)
}

/// Warning if this machine does not have the address of `--local-addr`. It may still be right if addresses are
/// translated. A name is not resolved.
#[must_use]
pub(crate) fn unknown_address_warning(known: &AddressFacts<'_>) -> Option<String> {
    let given = known.local_addr?;
    let address = given.trim_matches(['[', ']']).parse::<IpAddr>().ok()?.to_canonical();
    let is_own = address.is_loopback()
        || (known.is_alone && address.is_unspecified())
        || known.interfaces.iter().any(|interface| interface.address == Some(address));
    (!is_own).then(|| {
        format!(
            "`--local-addr` is `{given}`, which no interface of this machine has: it is reached there only if \
             something forwards it"
        )
    })
}

/// The address of one interface, of the wanted family if it has one.
///
/// # Errors
/// The interface does not exist, or has no address.
pub fn interface_address(
    interfaces: &[Interface],
    name: &str,
    wants_ipv6: bool,
) -> Result<IpAddr, AddressError> {
    if interfaces.iter().all(|interface| interface.name != name) {
        // The kernel lists an interface's IPv4 and IPv6 addresses apart.
        let mut known: Vec<String> = Vec::new();
        for Interface { name, .. } in interfaces {
            if !known.contains(name) {
                known.push(name.clone());
            }
        }
        return Err(AddressError::Unknown { name: name.to_owned(), known });
    }
    network::interface_address(interfaces, name, wants_ipv6)
        .ok_or_else(|| AddressError::NoAddress { name: name.to_owned() })
}

fn loopback_of(connection: IpAddr) -> IpAddr {
    match connection {
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
    }
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
            interface("ib0", "10.1.0.2"),
            interface("bare", ""),
            interface("eth0", "fd00::2"),
        ]
    }

    fn known<'a>(interfaces: &'a [Interface], connection: &str) -> AddressFacts<'a> {
        let connection = connection.parse().unwrap();
        let is_on_this_machine = false;
        AddressFacts {
            local_addr: None,
            iface: None,
            interfaces,
            connection,
            is_alone: false,
            is_on_this_machine,
        }
    }

    fn addr(known: &AddressFacts<'_>) -> String {
        choose_published_host(known).unwrap().addr
    }

    #[test]
    fn given_address_takes_precedence() {
        let machine = machine();
        let known =
            AddressFacts { local_addr: Some("node7"), iface: Some("nope"), ..known(&machine, "10.0.0.2") };
        let chosen = choose_published_host(&known).unwrap();
        assert_eq!((chosen.addr.as_str(), &chosen.why), ("node7", &AddressReason::Given));
    }

    #[test]
    fn interface_gives_address_of_endpoint_family() {
        let machine = machine();
        let of =
            |iface, connection| addr(&AddressFacts { iface: Some(iface), ..known(&machine, connection) });
        assert_eq!(of("eth0", "127.0.0.1"), "10.0.0.2");
        assert_eq!(of("eth0", "fd00::9"), "fd00::2");
        assert_eq!(of("eth0", "::ffff:10.0.0.9"), "10.0.0.2");
        assert_eq!(of("ib0", "fd00::9"), "10.1.0.2");
    }

    #[test]
    fn interface_missing_or_without_address_is_an_error() {
        let machine = machine();
        let check = |name| is_confined(None, Some(name), &machine);
        let error = check("eth7").unwrap_err();
        assert_eq!(
            error.to_string(),
            "this machine has no interface `eth7`; it has `lo`, `docker0`, `eth9`, `eth0`, `ib0`, `bare`"
        );
        assert_eq!(check("bare").unwrap_err().to_string(), "the interface `bare` has no IP address");
        assert_eq!(check("eth0"), Ok(false));
        // An unused option must be valid too.
        assert!(is_confined(Some("10.0.0.2"), Some("eth7"), &machine).is_err());
    }

    #[test]
    fn loopback_endpoint_gives_loopback_address() {
        let machine = machine();
        let on = |addr, iface| is_confined(addr, iface, &machine).unwrap();
        assert!(on(None, Some("lo")) && !on(None, Some("ib0")) && !on(None, None));
        for addr in ["localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(on(Some(addr), None) && on(Some(addr), Some("eth0")), "{addr}");
        }
        for addr in ["10.0.0.2", "0.0.0.0", "node7"] {
            assert!(!on(Some(addr), Some("lo")), "{addr}");
        }
        let chosen =
            choose_published_host(&AddressFacts { iface: Some("lo"), ..known(&machine, "::1") }).unwrap();
        assert_eq!(chosen.addr, "::1");
    }

    #[test]
    fn given_address_without_interface_is_warned_about() {
        let machine = machine();
        let of = |addr, is_alone| {
            unknown_address_warning(&AddressFacts {
                local_addr: Some(addr),
                is_alone,
                ..known(&machine, "::1")
            })
        };
        for addr in ["10.0.0.2", "fd00::2", "[fd00::2]", "::ffff:10.1.0.2", "127.0.0.2", "::1", "node7"] {
            assert_eq!(of(addr, false), None, "{addr}");
        }
        let said = of("203.0.113.7", false).unwrap();
        assert!(said.starts_with("`--local-addr` is `203.0.113.7`, which no interface of this machine has"));
        assert!(of("203.0.113.7", true).is_some() && of("fd00::3", false).is_some());
        // A job of one node uses its own addresses only.
        assert!(of("0.0.0.0", true).is_none() && of("0.0.0.0", false).is_some());
        assert_eq!(unknown_address_warning(&known(&machine, "::1")), None);
    }

    #[test]
    fn connection_source_address_is_published() {
        let machine = machine();
        assert_eq!(addr(&known(&machine, "10.1.0.2")), "10.1.0.2");
        assert_eq!(addr(&known(&machine, "::ffff:10.1.0.2")), "10.1.0.2");
    }

    #[test]
    fn loopback_connection_falls_back_to_interface() {
        let machine = machine();
        assert_eq!(addr(&known(&machine, "127.0.0.1")), "10.0.0.2");
        assert_eq!(addr(&known(&machine, "::1")), "fd00::2");
        assert_eq!(addr(&known(&machine[..3], "127.0.0.1")), "172.17.0.1");
        let alone = choose_published_host(&known(&machine[..2], "127.0.0.1")).unwrap();
        assert_eq!((alone.addr.as_str(), &alone.why), ("127.0.0.1", &AddressReason::OnlyLoopback));
    }

    #[test]
    fn workers_use_the_interface_of_the_connection() {
        let machine = machine();
        let of = |known: &AddressFacts<'_>| workers_interface(known, &choose_published_host(known).unwrap());
        let at = |connection| of(&known(&machine, connection));
        assert_eq!(at("10.1.0.2").as_deref(), Some("ib0"));
        assert_eq!(at("::ffff:10.0.0.2").as_deref(), Some("eth0"));
        assert_eq!(at("127.0.0.1").as_deref(), Some("eth0"), "the store is here, and called localhost");
        assert_eq!(at("10.9.9.9"), None, "an address that is gone");
        let given =
            |addr, connection| of(&AddressFacts { local_addr: Some(addr), ..known(&machine, connection) });
        assert_eq!(given("203.0.113.7", "10.1.0.2").as_deref(), Some("ib0"), "something forwards it");
        assert_eq!(given("10.1.0.2", "127.0.0.1").as_deref(), Some("ib0"));
        assert_eq!(given("localhost", "127.0.0.1").as_deref(), Some("lo"));
        assert_eq!(given("node7", "127.0.0.1").as_deref(), Some("eth0"));
        assert_eq!(given("203.0.113.7", "127.0.0.1"), None);
        let here = AddressFacts { is_on_this_machine: true, ..known(&machine, "127.0.0.1") };
        assert_eq!(of(&here).as_deref(), Some("lo"));
        assert_eq!(of(&known(&machine[..2], "::1")).as_deref(), Some("lo"), "there is no other");
        assert_eq!(of(&AddressFacts { is_alone: true, ..known(&machine, "10.0.0.2") }), None);
    }

    #[test]
    fn several_hardware_networks_give_a_hint() {
        let machine = machine();
        let hint = several_networks_hint(&machine, "eth0").unwrap();
        assert!(hint.starts_with("this host has 2 networks, `eth0`, `ib0`: gloo uses `eth0`"), "{hint}");
        assert_eq!(several_networks_hint(&machine[..6], "eth0"), None, "{:?}", &machine[..6]);
    }

    #[test]
    fn store_listens_on_the_endpoint_before_the_interface() {
        let machine = machine();
        let at = |iface: &str, meant: &[&str], needs_endpoint| {
            let meant: Vec<IpAddr> = meant.iter().map(|address| address.parse().unwrap()).collect();
            listen_addresses(&machine, iface, &meant, needs_endpoint).map(|address| address.to_string())
        };
        for is_static in [false, true] {
            assert_eq!(at("eth0", &["10.0.0.2"], is_static).as_deref(), Some("10.0.0.2"));
            assert_eq!(at("eth0", &["127.0.1.1", "fd00::2"], is_static).as_deref(), Some("fd00::2"));
            assert_eq!(at("ib0", &["10.0.0.2"], is_static).as_deref(), Some("10.0.0.2"), "where others look");
            assert_eq!(at("ib0", &["10.0.0.2", "172.17.0.1"], is_static), None, "others may look at either");
            assert_eq!(at("lo", &["127.0.1.1"], is_static).as_deref(), Some("127.0.1.1"));
        }
        for unknown in [["127.0.1.1"].as_slice(), &[], &["203.0.113.7"]] {
            assert_eq!(at("ib0", unknown, false).as_deref(), Some("10.1.0.2"), "{unknown:?}");
            assert_eq!(at("ib0", unknown, true), None, "workers look at {unknown:?}");
        }
    }

    #[test]
    fn loopback_endpoint_is_published_as_loopback_unless_an_address_is_given() {
        let machine = machine();
        let at = |connection| AddressFacts { is_on_this_machine: true, ..known(&machine, connection) };
        assert_eq!([addr(&at("127.0.0.1")), addr(&at("::1"))], ["127.0.0.1", "::1"]);
        assert_eq!(choose_published_host(&at("::1")).unwrap().why, AddressReason::OfLoopbackEndpoint);
        assert_eq!(addr(&AddressFacts { local_addr: Some("127.0.0.9"), ..at("127.0.0.1") }), "127.0.0.9");
    }

    #[test]
    fn single_node_uses_loopback_only() {
        let machine = machine();
        let on =
            |connection| AddressFacts { is_alone: true, iface: Some("eth0"), ..known(&machine, connection) };
        assert_eq!(addr(&on("127.0.0.1")), "127.0.0.1");
        assert_eq!(addr(&on("::1")), "::1");
        // The same with a store on another machine.
        assert_eq!(addr(&on("10.0.0.2")), "127.0.0.1");
        assert_eq!(addr(&AddressFacts { local_addr: Some("node7"), ..on("10.0.0.2") }), "node7");
    }

    #[test]
    fn loopback_interface_is_listed() {
        assert!(
            interfaces().unwrap().iter().any(|one| one.address.is_some_and(|address| address.is_loopback()))
        );
    }
}
