//! Which of a machine's addresses others can reach it by: a pure choice over its interfaces.

use std::net::IpAddr;

/// One address of one interface of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The interface.
    pub name: String,
    /// The address; none where the interface has no IP address.
    pub address: Option<IpAddr>,
    /// Whether it is switched on.
    pub is_up: bool,
}

/// The address of one interface, of the wanted family where it has one.
#[must_use]
pub fn interface_address(interfaces: &[Interface], name: &str, wants_ipv6: bool) -> Option<IpAddr> {
    let mine = interfaces.iter().filter(|interface| interface.name == name);
    mine.filter_map(|interface| interface.address)
        .min_by_key(|address| (is_link_local(*address), address.is_ipv6() != wants_ipv6))
}

/// An interface that is up, with an address that other machines may reach: of the wanted family first, those of hardware
/// before those of containers and virtual machines, and then in the kernel's order.
#[must_use]
pub fn first_reachable_interface(interfaces: &[Interface], wants_ipv6: bool) -> Option<(&Interface, IpAddr)> {
    let all = interfaces.iter().filter_map(|interface| Some((interface, interface.address?)));
    all.filter(|(interface, address)| interface.is_up && is_reachable(*address))
        .min_by_key(|(interface, address)| (address.is_ipv6() != wants_ipv6, is_virtual(&interface.name)))
}

/// The names of interfaces of hardware that are up and have an address that other machines may reach, in the kernel's order.
#[must_use]
pub fn hardware_interfaces(interfaces: &[Interface]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for Interface { name, address, is_up } in interfaces {
        if *is_up && address.is_some_and(is_reachable) && !is_virtual(name) && !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn is_reachable(address: IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified() && !is_link_local(address)
}

/// A link-local address is valid only together with an interface.
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
