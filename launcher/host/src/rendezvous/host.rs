//! Decides which node hosts the rendezvous store (contract 5.3), opens the store, and resolves the endpoint.
//!
//! Names are resolved only if the text alone does not decide, in a separate thread and within a limit.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use nix::errno::Errno;
use tokio::time::{sleep, timeout};

use crate::blocking::{BlockingCall, call_on_thread};
use crate::rendezvous::address::{self, interfaces};
use crate::rendezvous::port_owner::{is_listened_on, port_owner};
use crate::store::listen::Interfaces;
use crate::store::{StoreError, StoreServer};
use crate::system::short_hostname;
use rankrun_core::spec::rendezvous::PortRange;

/// Time limit of a look-up without whose answer the node goes on.
pub(super) const OPTIONAL_LOOKUP_LIMIT: Duration = Duration::from_secs(2);
/// Time limit of a look-up without whose answer the job fails: resolvers ask several servers, several times.
pub(super) const REQUIRED_LOOKUP_LIMIT: Duration = Duration::from_secs(60);
/// Name of a thread that asks the resolver.
const RESOLVER_THREAD: &str = "endpoint-name";
/// Time limit for an answer of another socket of this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// Host and port of the rendezvous store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreEndpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// TCP port; 0 means any free port, if this node hosts.
    pub port: u16,
}

impl std::fmt::Display for StoreEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl StoreEndpoint {
    /// Whether the endpoint means the local machine on every machine.
    #[must_use]
    pub(crate) fn is_loopback(&self) -> bool {
        address::loopback(&self.host).is_some()
    }

    fn address(&self) -> Option<IpAddr> {
        self.host.parse::<IpAddr>().ok().map(|address| address.to_canonical())
    }

    /// The addresses, if the text alone gives them.
    fn parse_without_resolver(&self) -> Option<Vec<SocketAddr>> {
        if self.host == "localhost" {
            return Some(loopback(self.port).into());
        }
        self.address().map(|address| vec![SocketAddr::new(address, self.port)])
    }

    /// The addresses of the endpoint, for a task. A resolver cannot be interrupted: its thread is abandoned after
    /// `limit`.
    ///
    /// # Errors
    /// The name does not resolve, or the resolver does not answer within `limit`.
    pub(crate) async fn look_up(&self, limit: Duration) -> io::Result<Vec<SocketAddr>> {
        if let Some(addresses) = self.parse_without_resolver() {
            return Ok(addresses);
        }
        let asked = self.clone();
        let found = call_on_thread(RESOLVER_THREAD, move || asked.ask_resolver());
        timeout(limit, found).await.map_err(|_| no_answer())??
    }

    /// As [`Self::look_up`], for a thread that may wait.
    ///
    /// # Errors
    /// See [`Self::look_up`].
    pub(crate) fn look_up_blocking(&self, limit: Duration) -> io::Result<Vec<SocketAddr>> {
        if let Some(addresses) = self.parse_without_resolver() {
            return Ok(addresses);
        }
        let asked = self.clone();
        let found = BlockingCall::start(RESOLVER_THREAD, move |_| asked.ask_resolver())?;
        found.wait(limit).ok_or_else(no_answer)?
    }

    fn ask_resolver(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }
}

/// Loopback addresses of both families: clients try each.
fn loopback(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
}

pub(super) fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no name server has answered")
}

/// Whether this node hosts, by the endpoint's text alone; `None` if the endpoint is another name. Pure.
fn is_local_by_text(endpoint: &StoreEndpoint, own_name: &str, own: &[IpAddr]) -> Option<bool> {
    if endpoint.is_loopback() || endpoint.host == own_name {
        return Some(true);
    }
    let address = endpoint.address()?;
    Some(!address.is_unspecified() && own.contains(&address))
}

/// Whether this node hosts, if the user did not say. It does if the endpoint is its own address or name.
fn is_local_guess(endpoint: &StoreEndpoint) -> bool {
    let own: Vec<_> = interfaces().unwrap_or_default().into_iter().filter_map(|one| one.address).collect();
    is_local_by_text(endpoint, &short_hostname(), &own).unwrap_or_else(|| {
        // A node that cannot resolve the name does not have it.
        let found = endpoint.look_up_blocking(OPTIONAL_LOOKUP_LIMIT).unwrap_or_default();
        found.iter().map(|address| address.ip().to_canonical()).any(|address| own.contains(&address))
    })
}

/// Which clients may connect to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllowedClients {
    /// Only agents on this machine.
    ThisMachine,
    /// Agents that know this local address.
    At(IpAddr),
    /// Agents on any machine.
    AnyMachine,
}

/// The addresses of the endpoint's host on this machine; empty if its name does not resolve here.
#[must_use]
pub(crate) fn endpoint_addresses(endpoint: &StoreEndpoint) -> Vec<IpAddr> {
    let found = endpoint.look_up_blocking(OPTIONAL_LOOKUP_LIMIT).unwrap_or_default();
    found.iter().map(|address| address.ip().to_canonical()).collect()
}

/// Whether this node may open the store, by the user's setting or by a guess.
#[must_use]
pub(crate) fn may_host(endpoint: &StoreEndpoint, is_host: Option<bool>) -> bool {
    is_host.unwrap_or_else(|| is_local_guess(endpoint))
}

/// Opens the store on a node that may host it. Returns `None` if another agent of this machine was first. A free port
/// is taken from `ports`, if given.
///
/// # Errors
/// The port cannot be bound: it is in use although this node must host, or this user has no permission.
pub(crate) async fn open_store(
    endpoint: &StoreEndpoint,
    is_host: Option<bool>,
    (clients, ports): (AllowedClients, Option<PortRange>),
) -> Result<Option<StoreServer>, StoreError> {
    match bind_unless_answered(|| bind(endpoint, clients, ports), is_answered).await {
        Ok(store) => Ok(Some(store)),
        // Another agent of this machine opened the store first.
        Err(StoreError::Bind { source, .. }) if is_host.is_none() && is_in_use(&source) => Ok(None),
        Err(error) => Err(with_owner(error)),
    }
}

/// Retries a failed bind for a while if no socket answers at the port. Linux marks a socket as listening before it
/// checks for another one. If two agents listen at the same moment, each may get "address in use", and neither has the
/// port. Another launcher may also be about to listen. A socket that holds the port for longer is a separate error.
async fn bind_unless_answered<T>(
    mut bind: impl FnMut() -> Result<T, StoreError>,
    answers: impl Fn(SocketAddr) -> bool,
) -> Result<T, StoreError> {
    const SHORT_PAUSES: u32 = 10;
    const LONG_PAUSES: u32 = 20;
    for pause in 0..SHORT_PAUSES + LONG_PAUSES {
        match bind() {
            Err(StoreError::Bind { addr, source }) if is_in_use(&source) && !answers(addr) => {
                // A random pause, so that the two agents differ.
                let random = uuid::Uuid::new_v4().as_u64_pair().1;
                let longest = if pause < SHORT_PAUSES { 2_000 } else { 50_000 };
                sleep(Duration::from_micros(100 + random % longest)).await;
            }
            done => return done,
        }
    }
    bind().map_err(|error| port_taken_unless(|addr| answers(addr) || is_listened_on(addr.port()), error))
}

/// The error of a port in use, with its cause if no socket listens there.
#[must_use]
pub(crate) fn port_taken_unless_answered(error: StoreError) -> StoreError {
    with_owner(port_taken_unless(|addr| is_answered(addr) || is_listened_on(addr.port()), error))
}

/// The error of a port in use, with the process that listens there, if this user may see it.
fn with_owner(error: StoreError) -> StoreError {
    match error {
        StoreError::Bind { addr, source } if is_in_use(&source) => match port_owner(addr.port()) {
            Some(owner) => StoreError::InUse { addr, owner: owner.to_string(), source },
            None => StoreError::Bind { addr, source },
        },
        error => error,
    }
}

fn port_taken_unless(answers: impl Fn(SocketAddr) -> bool, error: StoreError) -> StoreError {
    match error {
        StoreError::Bind { addr, source } if is_in_use(&source) && !answers(addr) => {
            StoreError::Held { addr, source }
        }
        error => error,
    }
}

/// Whether a socket of this machine answers at this address, or at the same port of another one.
fn is_answered(addr: SocketAddr) -> bool {
    let answers = |address: &SocketAddr| match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
        Ok(_) => true,
        // A timeout counts as an answer: the program is busy.
        Err(error) => error.kind() == io::ErrorKind::TimedOut,
    };
    let own = || interfaces().unwrap_or_default().into_iter().filter_map(|one| one.address);
    [addr].iter().filter(|addr| !addr.ip().is_unspecified()).any(answers)
        || loopback(addr.port()).iter().any(answers)
        || own().any(|address| answers(&SocketAddr::new(address, addr.port())))
}

fn bind(
    endpoint: &StoreEndpoint,
    clients: AllowedClients,
    ports: Option<PortRange>,
) -> Result<StoreServer, StoreError> {
    let address = endpoint.address();
    let wants_ipv6 = address.is_some_and(|address| address.is_ipv6());
    let at = match clients {
        AllowedClients::AnyMachine => Interfaces::All,
        AllowedClients::At(address) => Interfaces::One(address),
        AllowedClients::ThisMachine => match address.filter(IpAddr::is_loopback) {
            Some(address) => Interfaces::One(address),
            None if wants_ipv6 => Interfaces::One(Ipv6Addr::LOCALHOST.into()),
            None => Interfaces::One(Ipv4Addr::LOCALHOST.into()),
        },
    };
    StoreServer::bind_in(at, endpoint.port, ports)
}

fn is_in_use(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EADDRINUSE as i32)
}

/// Where this node connects to its own store. With the endpoint's address, the local end is an address that other nodes
/// know. Otherwise the loopback.
pub(crate) async fn own_addresses(endpoint: &StoreEndpoint, store: SocketAddr) -> Vec<SocketAddr> {
    let at = StoreEndpoint { host: endpoint.host.clone(), port: store.port() };
    let mut addresses = if store.ip().is_unspecified() {
        at.look_up(OPTIONAL_LOOKUP_LIMIT).await.unwrap_or_default()
    } else {
        vec![store]
    };
    addresses.extend(loopback(store.port()));
    addresses
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;

    use super::*;
    use crate::store::client::blocking::runtime;

    fn at(host: &str, port: u16) -> StoreEndpoint {
        StoreEndpoint { host: host.to_owned(), port }
    }

    fn open_now(
        endpoint: &StoreEndpoint,
        is_host: Option<bool>,
        limits: (AllowedClients, Option<PortRange>),
    ) -> Result<Option<StoreServer>, StoreError> {
        runtime().block_on(open_store(endpoint, is_host, limits))
    }

    #[test]
    fn endpoint_text_decides_locality_without_lookup() {
        let own = ["127.0.0.1", "10.0.0.2", "fd00::2"].map(|address| address.parse().unwrap());
        let says = |host: &str| is_local_by_text(&at(host, 1), "node0", &own);
        for host in
            ["localhost", "127.0.0.1", "127.9.9.9", "::1", "node0", "10.0.0.2", "fd00::2", "::ffff:10.0.0.2"]
        {
            assert_eq!(says(host), Some(true), "{host}");
        }
        for host in ["0.0.0.0", "::", "10.0.0.3", "fd00::3"] {
            assert_eq!(says(host), Some(false), "{host}");
        }
        assert_eq!(says("node1"), None);
    }

    #[test]
    fn unresolvable_host_is_not_local() {
        assert!(!is_local_guess(&at("no-such-host.invalid", 1)));
    }

    #[test]
    fn first_agent_to_bind_hosts_and_second_is_client() {
        let first = open_now(&at("localhost", 0), None, (AllowedClients::AnyMachine, None)).unwrap().unwrap();
        let port = first.local_addr().port();
        assert!(
            open_now(&at("localhost", port), None, (AllowedClients::AnyMachine, None)).unwrap().is_none()
        );
        let error =
            open_now(&at("localhost", port), Some(true), (AllowedClients::AnyMachine, None)).unwrap_err();
        assert!(error.to_string().contains(&format!(":{port}`: ")), "{error}");
        assert!(error.hint().is_some());
    }

    #[test]
    fn simultaneous_refused_binds_leave_one_host() {
        let refused = || {
            let source = Errno::EADDRINUSE.into();
            Err(StoreError::Bind { addr: (Ipv4Addr::LOCALHOST, 1).into(), source })
        };
        let tries = Cell::new(0);
        let third = || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { refused() } else { Ok(tries.get()) }
        };
        assert_eq!(runtime().block_on(bind_unless_answered(third, |_| false)).unwrap(), 3);
        tries.set(0);
        runtime().block_on(bind_unless_answered(third, |_| true)).unwrap_err();
        assert_eq!(tries.get(), 1);
        let held = runtime().block_on(bind_unless_answered(refused, |_| false)).unwrap_err();
        assert!(matches!(held, StoreError::Held { .. }), "{held}");
    }

    #[test]
    fn agent_configured_as_client_does_not_host() {
        assert!(!may_host(&at("localhost", 0), Some(false)) && may_host(&at("localhost", 0), None));
    }

    #[test]
    fn store_listens_on_the_loopback_address_of_its_endpoint() {
        for (host, expected) in
            [("localhost", "127.0.0.1"), ("127.3.2.1", "127.3.2.1"), ("10.0.0.2", "127.0.0.1")]
        {
            let store = open_now(&at(host, 0), None, (AllowedClients::ThisMachine, None)).unwrap().unwrap();
            assert_eq!(store.local_addr().ip().to_string(), expected, "{host}");
        }
        let here = Ipv4Addr::LOCALHOST.into();
        let store = open_now(&at("node7", 0), Some(true), (AllowedClients::At(here), None)).unwrap().unwrap();
        assert_eq!(store.local_addr().ip(), here);
    }

    #[test]
    fn single_node_store_listens_on_loopback_only() {
        let store =
            open_now(&at("localhost", 0), None, (AllowedClients::ThisMachine, None)).unwrap().unwrap();
        assert!(store.local_addr().ip().is_loopback());
        let store = open_now(&at("localhost", 0), None, (AllowedClients::AnyMachine, None)).unwrap().unwrap();
        assert!(store.local_addr().ip().is_unspecified());
        TcpStream::connect(("127.0.0.1", store.local_addr().port())).unwrap();
    }

    #[test]
    fn foreign_listener_is_not_our_store() {
        let taken = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(
            open_now(&at("localhost", port), None, (AllowedClients::AnyMachine, None)).unwrap().is_none()
        );
    }

    #[test]
    fn ipv6_endpoint_is_shown_with_brackets() {
        assert_eq!(at("::1", 7).to_string(), "[::1]:7");
        assert_eq!(at("node0", 7).to_string(), "node0:7");
        let store = "[::]:9".parse().unwrap();
        let runtime = crate::store::client::blocking::runtime();
        for (host, expected) in [("::1", "[::1]:9"), ("localhost", "127.0.0.1:9")] {
            let addresses = runtime.block_on(own_addresses(&at(host, 0), store));
            assert_eq!(addresses[0], expected.parse().unwrap());
        }
    }
}
