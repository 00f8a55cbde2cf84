//! Which host this process is on, as far as ranks can reach each other without a network.

use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use rankrun_contract::network::{self, Interface};

use super::plan::{Host, Wish};
use super::shm;
use crate::context::WorkerContext;
use crate::socket;

/// Where the worker says that it is, else where it is.
///
/// # Errors
/// This process can open no more files.
pub(super) fn of(context: &WorkerContext, wish: Wish) -> io::Result<Host> {
    match context.host() {
        Some(name) => Ok(Host::new(&format!("named,{name}")).unwrap_or_else(unknown)),
        // Who asked for shared memory hears that there is none; who did not goes by TCP.
        None if wish == Wish::Auto && !shm::is_permitted()? => Ok(unknown()),
        None => this(),
    }
}

/// The machine's boot, this process's network namespace and its user: abstract sockets, through which shared memory is handed
/// over, are those of the namespace (unix(7), network_namespaces(7)), two machines never have the same boot id (random(4)), and
/// users do not write to each other's memory.
///
/// A process that cannot read them is on a host of its own, which is reached by TCP.
fn this() -> io::Result<Host> {
    let boot = readable(fs::read_to_string("/proc/sys/kernel/random/boot_id"))?;
    let namespace = readable(fs::read_link("/proc/self/ns/net"))?;
    let users = readable(fs::read_to_string("/proc/self/uid_map"))?;
    let user = outside(rustix::process::geteuid().as_raw(), &users.unwrap_or_default());
    let host = boot.zip(namespace).and_then(|(boot, namespace)| {
        Host::new(&format!("{},{},{user}", boot.trim_end(), namespace.to_str()?))
    });
    Ok(host.unwrap_or_else(unknown))
}

/// A host on which nobody else is.
fn unknown() -> Host {
    Host::unknown(uuid::Uuid::new_v4())
}

/// What was read; `None` where it is not there or not for us. That nothing more can be opened says nothing about it.
fn readable<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if socket::is_own_shortage(&error) => Err(error),
        result => Ok(result.ok()),
    }
}

/// Who a user is outside this user namespace, whose map this is (user_namespaces(7)): two that are each root in one of their own are
/// the same one only if they are so outside.
fn outside(user: u32, map: &str) -> u32 {
    let outside = |line: &str| {
        let numbers: Vec<u32> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [inside, outside, count] = numbers[..] else { return None };
        let distance = user.checked_sub(inside).filter(|&distance| distance < count)?;
        outside.checked_add(distance)
    };
    map.lines().find_map(outside).unwrap_or(user)
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
    // The interface may have several addresses: the one that has reached the store is known to work.
    let has_end = |name: &&str| interfaces.iter().any(|one| one.name == **name && one.address == Some(end));
    if first.as_ref().is_some_and(has_end) {
        return Ok(end);
    }
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
    use nix::errno::Errno;

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
        assert_eq!(this().unwrap(), this().unwrap());
    }

    #[test]
    fn a_user_is_who_it_is_outside_its_namespace() {
        let root_of_all = "         0          0 4294967295\n";
        assert_eq!(outside(1000, root_of_all), 1000);
        assert_eq!(outside(0, "         0       1000          1\n"), 1000);
        let container = "0 1000 1\n1 100000 65536\n";
        assert_eq!(outside(0, container), 1000);
        assert_eq!(outside(33, container), 100_032);
        // Who is not in the map, or has none.
        assert_eq!(outside(70_000, container), 70_000);
        assert_eq!(outside(7, ""), 7);
        assert_eq!(outside(7, "0 4294967295 9\nno numbers\n"), 7);
    }

    #[test]
    fn only_a_shortage_of_descriptors_is_an_error() {
        let failed = |errno: Errno| readable::<()>(Err(errno.into()));
        assert!(failed(Errno::EMFILE).is_err());
        assert!(failed(Errno::ENFILE).is_err());
        assert_eq!(failed(Errno::EACCES).unwrap(), None);
        assert_eq!(failed(Errno::ENOENT).unwrap(), None);
    }
}
