//! The store that worker rank 0 opens itself (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`). The launcher only finds a free
//! port for it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use nix::errno::Errno;
use rankrun_contract::env::Master;

use super::error::RendezvousError;
use super::exchange::AgentStore;
use crate::spec::rendezvous::PortRange;

/// Finds a port for the store of worker rank 0; a different one in every round.
#[derive(Debug)]
pub struct WorkerHostedStore {
    /// Host name or address that the workers get.
    pub addr: String,
    /// The allowed ports; `None` for any free port.
    pub ports: Option<PortRange>,
    /// The port of the previous round.
    last: Option<u16>,
}

impl WorkerHostedStore {
    /// A finder for this host, with ports of this range.
    #[must_use]
    pub fn new(addr: String, ports: Option<PortRange>) -> Self {
        Self { addr, ports, last: None }
    }

    fn next(&mut self) -> io::Result<u16> {
        let port = match self.ports {
            None => free(0)?,
            Some(PortRange { first, last }) => {
                let after = self.last.map_or(first, |port| if port < last { port + 1 } else { first });
                let ports = (after..=last).chain(first..after);
                let mut error = io::Error::from(io::ErrorKind::AddrInUse);
                let found = ports.map(free).find_map(|port| port.map_err(|refusal| error = refusal).ok());
                found.ok_or(error)?
            }
        };
        self.last = Some(port);
        Ok(port)
    }
}

impl AgentStore for WorkerHostedStore {
    fn open(&mut self) -> Result<Master, RendezvousError> {
        let port = self.next().map_err(|source| RendezvousError::NoPort { source })?;
        Ok(Master { addr: self.addr.clone(), port, uses_agent_store: false })
    }

    fn reset(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }
}

/// Binds the port like torch does, then releases it.
fn free(port: u16) -> io::Result<u16> {
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

    #[test]
    fn worker_store_port_changes_every_round() {
        let any = |store: &mut WorkerHostedStore| store.open().unwrap();
        let mut anywhere = WorkerHostedStore::new("th1".to_owned(), None);
        let master = any(&mut anywhere);
        assert_eq!((master.addr.as_str(), master.uses_agent_store), ("th1", false));
        assert_ne!(master.port, 0);
        // The test holds one port, so that the range has a busy one. Neighbour ports may belong to other processes.
        let taken = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
        let taken = taken.unwrap();
        let first = taken.local_addr().unwrap().port().min(u16::MAX - 20);
        let ports = PortRange { first, last: first + 20 };
        let mut bounded = WorkerHostedStore::new("th1".to_owned(), Some(ports));
        let given: Vec<u16> = (0..3).map(|_| any(&mut bounded).port).collect();
        assert!(given.iter().all(|port| (ports.first..=ports.last).contains(port)), "{given:?} {ports:?}");
        assert!(given.windows(2).all(|pair| pair[0] != pair[1]), "{given:?}");
    }

    #[test]
    fn port_range_without_free_port_is_an_error() {
        let taken = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
        let port = taken.as_ref().unwrap().local_addr().unwrap().port();
        let mut store = WorkerHostedStore::new("th1".to_owned(), Some(PortRange { first: port, last: port }));
        assert!(matches!(store.open(), Err(RendezvousError::NoPort { .. })));
    }
}
