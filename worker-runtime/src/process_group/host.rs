//! Identifies the host of this process, and the address at which other hosts reach it.

use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use rankrun_contract::network::{self, Interface};

use super::plan::{BackendChoice, HostId};
use super::shm;
use crate::context::WorkerContext;
use crate::socket;

/// The host that the worker's environment names, else the detected one.
///
/// # Errors
/// This process can open no more files.
pub(super) fn worker_host_id(context: &WorkerContext, choice: BackendChoice) -> io::Result<HostId> {
    match context.host() {
        Some(name) => Ok(HostId::new(&format!("named,{name}")).unwrap_or_else(unique_host)),
        // An explicit `shm` fails later with a message of its own; `auto` falls back to TCP.
        None if choice == BackendChoice::Auto && !shm::can_create_segment()? => Ok(unique_host()),
        None => detect_host(),
    }
}

/// Boot id, network namespace and user. Shared memory is handed over through abstract sockets, which belong
/// to the network namespace (unix(7), network_namespaces(7)); no two machines have the same boot id
/// (random(4)); users do not write to each other's memory.
///
/// A process that cannot read them gets a host of its own, which other ranks reach by TCP.
fn detect_host() -> io::Result<HostId> {
    let boot = optional_content(fs::read_to_string("/proc/sys/kernel/random/boot_id"))?;
    let namespace = optional_content(fs::read_link("/proc/self/ns/net"))?;
    let users = optional_content(fs::read_to_string("/proc/self/uid_map"))?;
    let user = outer_uid(rustix::process::geteuid().as_raw(), &users.unwrap_or_default());
    let host = boot.zip(namespace).and_then(|(boot, namespace)| {
        HostId::new(&format!("{},{},{user}", boot.trim_end(), namespace.to_str()?))
    });
    Ok(host.unwrap_or_else(unique_host))
}

/// A host that no other rank shares.
fn unique_host() -> HostId {
    HostId::unique(uuid::Uuid::new_v4())
}

/// The content; `None` if it does not exist or may not be read. A shortage of descriptors is an error, since
/// it says nothing about the host.
fn optional_content<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if socket::is_own_shortage(&error) => Err(error),
        result => Ok(result.ok()),
    }
}

/// Maps a user id out of this user namespace by its map (user_namespaces(7)): two users that are root in
/// their own namespaces are the same only if they are the same outside.
fn outer_uid(user: u32, map: &str) -> u32 {
    let outer_user = |line: &str| {
        let numbers: Vec<u32> =
            line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [inside, outer_user, count] = numbers[..] else { return None };
        let distance = user.checked_sub(inside).filter(|&distance| distance < count)?;
        outer_user.checked_add(distance)
    };
    map.lines().find_map(outer_user).unwrap_or(user)
}

/// The address at which other hosts reach this rank: that of the interface in `GLOO_SOCKET_IFNAME`, as in
/// torch's gloo (`--iface` of the launcher sets it); else this end of the connection to the store. If that
/// end is a loopback address, which happens on the store's own host, the address of any interface is taken.
///
/// # Errors
/// The kernel does not list its interfaces.
pub(super) fn listen_address(interface_names: Option<&str>, store_end: IpAddr) -> io::Result<IpAddr> {
    let end = store_end.to_canonical();
    if interface_names.is_none() && !end.is_loopback() {
        return Ok(end);
    }
    let interfaces: Vec<_> = getifaddrs()?.map(to_interface).collect();
    // gloo takes a list, one interface for each of its threads.
    let first = interface_names.and_then(|names| names.split(',').next());
    // The interface may have several addresses: the one that reached the store works.
    let has_end = |name: &&str| interfaces.iter().any(|one| one.name == **name && one.address == Some(end));
    if first.as_ref().is_some_and(has_end) {
        return Ok(end);
    }
    let of_named = first.and_then(|name| network::interface_address(&interfaces, name, end.is_ipv6()));
    let any = || network::first_reachable_interface(&interfaces, end.is_ipv6()).map(|(_, address)| address);
    Ok(of_named.or_else(|| if end.is_loopback() { any() } else { None }).unwrap_or(end))
}

fn to_interface(entry: InterfaceAddress) -> Interface {
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
    fn address_is_store_connection_end_unless_interface_named() {
        let end = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(listen_address(None, end).unwrap(), end);
        assert_eq!(listen_address(None, "::ffff:10.0.0.2".parse().unwrap()).unwrap(), end);
        assert!(listen_address(Some("lo,eth0"), end).unwrap().is_loopback());
        // An unknown interface name does not leave the rank without an address.
        assert_eq!(listen_address(Some("nope"), end).unwrap(), end);
    }

    #[test]
    fn host_id_is_equal_for_all_ranks_of_host() {
        assert_eq!(detect_host().unwrap(), detect_host().unwrap());
    }

    #[test]
    fn user_id_is_mapped_to_outer_namespace() {
        let root_of_all = "         0          0 4294967295\n";
        assert_eq!(outer_uid(1000, root_of_all), 1000);
        assert_eq!(outer_uid(0, "         0       1000          1\n"), 1000);
        let container = "0 1000 1\n1 100000 65536\n";
        assert_eq!(outer_uid(0, container), 1000);
        assert_eq!(outer_uid(33, container), 100_032);
        // A user that is not in the map, or a map without entries.
        assert_eq!(outer_uid(70_000, container), 70_000);
        assert_eq!(outer_uid(7, ""), 7);
        assert_eq!(outer_uid(7, "0 4294967295 9\nno numbers\n"), 7);
    }

    #[test]
    fn host_file_unreadable_is_error_only_for_descriptor_shortage() {
        let failed = |errno: Errno| optional_content::<()>(Err(errno.into()));
        assert!(failed(Errno::EMFILE).is_err());
        assert!(failed(Errno::ENFILE).is_err());
        assert_eq!(failed(Errno::EACCES).unwrap(), None);
        assert_eq!(failed(Errno::ENOENT).unwrap(), None);
    }
}
