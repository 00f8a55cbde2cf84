//! Which host this process is on, as far as ranks can reach each other without a network.

use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use rankrun_contract::network::{self, Interface};

use super::plan::Host;
use crate::context::WorkerContext;

/// Where the worker says that it is, else where it is.
pub(super) fn of(context: &WorkerContext) -> Host {
    match context.host() {
        Some(name) => {
            Host::new(&format!("named,{name}")).unwrap_or_else(|| Host::unknown(uuid::Uuid::new_v4()))
        }
        None => this(),
    }
}

/// The machine's boot and this process's network namespace: abstract sockets, through which shared memory is handed over, are
/// those of the namespace (unix(7), network_namespaces(7)), and two machines never have the same boot id (random(4)).
///
/// A process that cannot read them is on a host of its own, which is reached by TCP.
fn this() -> Host {
    let read = || {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/net").ok()?;
        Host::new(&format!("{},{}", boot.trim_end(), namespace.to_str()?))
    };
    read().unwrap_or_else(|| Host::unknown(uuid::Uuid::new_v4()))
}

/// Where ranks on other hosts reach this one: at the interface that `GLOO_SOCKET_IFNAME` names, as torch's gloo does and
/// `--iface` of the launcher sets; else at this end of the connection to the store, unless that is of the loopback, since the
/// store's host may call itself `localhost`; then at the address of an interface.
///
/// # Errors
/// The kernel does not say which interfaces there are.
pub(super) fn address(named: Option<&str>, store_end: IpAddr) -> io::Result<IpAddr> {
    let end = store_end.to_canonical();
    if named.is_none() && !end.is_loopback() {
        return Ok(end);
    }
    let interfaces: Vec<_> = getifaddrs()?.map(interface).collect();
    // gloo takes a list, one interface for each of its threads.
    let first = named.and_then(|names| names.split(',').next());
    let of_named = first.and_then(|name| network::of_interface(&interfaces, name, end.is_ipv6()));
    let any = || network::reachable(&interfaces, end.is_ipv6()).map(|(_, address)| address);
    Ok(of_named.or_else(|| if end.is_loopback() { any() } else { None }).unwrap_or(end))
}

fn interface(entry: InterfaceAddress) -> Interface {
    let address = entry.address.as_ref().and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    });
    let is_up = entry.flags.contains(InterfaceFlags::IFF_UP);
    Interface { name: entry.interface_name, address, is_up }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_connection_is_told_unless_an_interface_is_named() {
        let end = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(address(None, end).unwrap(), end);
        assert_eq!(address(None, "::ffff:10.0.0.2".parse().unwrap()).unwrap(), end);
        assert!(address(Some("lo,eth0"), end).unwrap().is_loopback());
        // What is not there is no reason to be nowhere.
        assert_eq!(address(Some("nope"), end).unwrap(), end);
    }

    #[test]
    fn it_is_the_same_for_every_rank_here() {
        assert_eq!(this(), this());
    }
}
