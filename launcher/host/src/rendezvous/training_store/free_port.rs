//! A port for the store of worker rank 0. The agent binds it and releases it again.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use nix::errno::Errno;
use rankrun_contract::env::Master;

use crate::rendezvous::error::RendezvousError;
use rankrun_core::spec::rendezvous::PortRange;

/// Finds a port for the store of worker rank 0: another one in every round.
#[derive(Debug)]
pub struct WorkerRank0 {
    /// Host name or address that the workers get.
    pub(super) addr: String,
    /// The allowed ports; `None` for any free port.
    ports: Option<PortRange>,
    /// The port of the previous round.
    last: Option<u16>,
}

impl WorkerRank0 {
    pub(super) const fn new(ports: Option<PortRange>) -> Self {
        Self { addr: String::new(), ports, last: None }
    }

    /// The address for the workers of the next round.
    pub(super) fn next_master(&mut self) -> Result<Master, RendezvousError> {
        let port = self.next_port().map_err(|source| RendezvousError::NoPort { source })?;
        Ok(Master { addr: self.addr.clone(), port, uses_agent_store: false })
    }

    fn next_port(&mut self) -> io::Result<u16> {
        let port = match self.ports {
            None => find_free_port(0)?,
            Some(PortRange { first, last }) => {
                let after = self.last.map_or(first, |port| if port < last { port + 1 } else { first });
                let ports = (after..=last).chain(first..after);
                let mut error = io::Error::from(io::ErrorKind::AddrInUse);
                let found =
                    ports.map(find_free_port).find_map(|port| port.map_err(|refusal| error = refusal).ok());
                found.ok_or(error)?
            }
        };
        self.last = Some(port);
        Ok(port)
    }
}

/// Binds the port like torch does, then releases it.
fn find_free_port(port: u16) -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| {
        let lacks_ipv6 = [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL].map(|errno| Some(errno as i32));
        if lacks_ipv6.contains(&error.raw_os_error()) {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        } else {
            Err(error)
        }
    })?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken_port() -> TcpListener {
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
            .unwrap()
    }

    #[test]
    fn worker_store_port_changes_every_round() {
        let mut anywhere = WorkerRank0 { addr: "th1".to_owned(), ..WorkerRank0::new(None) };
        let master = anywhere.next_master().unwrap();
        assert_eq!((master.addr.as_str(), master.uses_agent_store), ("th1", false));
        assert_ne!(master.port, 0);
        // The test holds one port, so that the range has a busy one. Neighbour ports may belong to other processes.
        let taken = taken_port();
        let first = taken.local_addr().unwrap().port().min(u16::MAX - 20);
        let ports = PortRange { first, last: first + 20 };
        let mut bounded = WorkerRank0::new(Some(ports));
        let given: Vec<u16> = (0..3).map(|_| bounded.next_master().unwrap().port).collect();
        assert!(given.iter().all(|port| (ports.first..=ports.last).contains(port)), "{given:?} {ports:?}");
        assert!(given.windows(2).all(|pair| pair[0] != pair[1]), "{given:?}");
    }

    #[test]
    fn port_range_without_free_port_is_an_error() {
        let taken = taken_port();
        let port = taken.local_addr().unwrap().port();
        let mut store = WorkerRank0::new(Some(PortRange { first: port, last: port }));
        assert!(matches!(store.next_master(), Err(RendezvousError::NoPort { .. })));
    }
}
