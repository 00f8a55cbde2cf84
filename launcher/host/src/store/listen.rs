//! Binds the store's listener: all interfaces or one, on one port or on the first free port of a range.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};

use super::StoreError;
use rankrun_core::spec::rendezvous::PortRange;

/// Where a store can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interfaces {
    /// Everywhere: by IPv6 and IPv4, or by the one that the machine has.
    All,
    /// Only the interface with this address.
    One(IpAddr),
}

/// A listener in non-blocking mode. Port 0 is any free one: of `ports`, from the lowest, where these are given.
///
/// # Errors
/// The address is not this machine's, the port is taken, or all of `ports` are.
pub(crate) fn listener(
    at: Interfaces,
    port: u16,
    ports: Option<PortRange>,
) -> Result<TcpListener, StoreError> {
    let Some(range) = ports.filter(|_| port == 0) else { return listen_on_port(at, port) };
    for port in range.first..=range.last {
        match listen_on_port(at, port) {
            Err(StoreError::Bind { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {}
            done => return done,
        }
    }
    Err(StoreError::PortsTaken { first: range.first, last: range.last })
}

fn listen_on_port(at: Interfaces, port: u16) -> Result<TcpListener, StoreError> {
    match at {
        Interfaces::One(ip) => listen_on(SocketAddr::new(ip, port)),
        Interfaces::All => listen_on((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|error| match &error {
            StoreError::Bind { source, .. } if lacks_family(source) => {
                listen_on((Ipv4Addr::UNSPECIFIED, port).into())
            }
            _ => Err(error),
        }),
    }
}

/// Whether the kernel, or this network namespace, has no addresses of that kind.
fn lacks_family(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

pub(super) fn listen_on(addr: SocketAddr) -> Result<TcpListener, StoreError> {
    open(addr).map_err(|errno| StoreError::Bind { addr, source: errno.into() })
}

fn open(addr: SocketAddr) -> nix::Result<TcpListener> {
    let family = if addr.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(family, SockType::Stream, flags, None)?;
    // Connections that were closed a moment ago would hold the port.
    setsockopt(&listener, sockopt::ReuseAddr, &true)?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        // IPv4 clients reach the IPv6 listener too, whatever the machine's default is.
        setsockopt(&listener, sockopt::Ipv6V6Only, &false)?;
    }
    bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &SockaddrStorage::from(addr))?;
    // The standard library's backlog would drop connections of a large job that all come at once.
    listen(&listener, Backlog::MAXALLOWABLE)?;
    Ok(listener.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn port(listener: &TcpListener) -> u16 {
        listener.local_addr().unwrap().port()
    }

    #[test]
    fn all_interfaces_listens_on_ipv4_and_ipv6() {
        let listener = listener(Interfaces::All, 0, None).unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port(&listener))).unwrap();
        if listener.local_addr().unwrap().is_ipv6() && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port(&listener))).unwrap();
        }
    }

    #[test]
    fn single_interface_refuses_other_addresses() {
        let listener = listener(Interfaces::One(Ipv4Addr::LOCALHOST.into()), 0, None).unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port(&listener))).unwrap();
        TcpStream::connect(("127.0.0.2", port(&listener))).unwrap_err();
    }

    #[test]
    fn port_range_uses_first_free_port_until_exhausted() {
        let at = Interfaces::One(Ipv4Addr::LOCALHOST.into());
        // Another process may take one of them in between: then the next ones are tried.
        let found = (0..100).find_map(|_| {
            let first = listener(at, 0, None).ok()?;
            let low = port(&first);
            let range = PortRange { first: low, last: low.checked_add(2)? };
            let (second, third) = (listener(at, 0, Some(range)).ok()?, listener(at, 0, Some(range)).ok()?);
            assert_eq!((port(&second), port(&third)), (low + 1, low + 2));
            let error = listener(at, 0, Some(range)).unwrap_err();
            assert_eq!(error.to_string(), format!("every port from `{low}` to `{}` is in use", low + 2));
            assert!(error.hint().is_some());
            // A port that was asked for is not changed.
            assert!(matches!(listener(at, low, Some(range)), Err(StoreError::Bind { .. })));
            drop(second);
            Some(port(&listener(at, 0, Some(range)).ok()?) == low + 1)
        });
        assert_eq!(found, Some(true));
    }

    #[test]
    fn non_local_address_fails_on_first_port() {
        let at = Interfaces::One("192.0.2.1".parse().unwrap());
        let error = listener(at, 0, Some(PortRange { first: 20_000, last: 60_000 })).unwrap_err();
        assert!(matches!(error, StoreError::Bind { addr, .. } if addr.port() == 20_000), "{error:?}");
    }
}
