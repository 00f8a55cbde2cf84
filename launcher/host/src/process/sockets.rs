//! Which processes hold a TCP connection to a port (proc(5), `/proc/net/tcp`). The table of ranks asks it where the
//! store is not on this node.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};

use rankrun_core::posix::Pid;

use crate::process::reserve::with_reserve;

/// More lines are not read: a host with more connections is not to delay a stop.
const MOST_LINES: usize = 100_000;

/// The sockets of this network namespace that have an established connection to one port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ConnectedSockets(HashSet<u64>);

impl ConnectedSockets {
    /// Looks at the kernel's tables; empty where they cannot be read.
    #[must_use]
    pub(crate) fn to_port(port: u16) -> Self {
        let mut inodes = HashSet::new();
        for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
            let Ok(file) = with_reserve(|| File::open(table)) else { continue };
            let lines = BufReader::new(file).lines().take(MOST_LINES).map_while(Result::ok);
            inodes.extend(lines.filter_map(|line| inode_connected_to(&line, port)));
        }
        Self(inodes)
    }

    /// Whether the process has one of them open.
    #[must_use]
    pub(crate) fn is_held_by(&self, pid: Pid) -> bool {
        if self.0.is_empty() {
            return false;
        }
        with_reserve(|| {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            let targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
            let mut inodes = targets.filter_map(|target| inode_of(target.to_str()?));
            inodes.any(|inode| self.0.contains(&inode))
        })
    }
}

/// The inode of a link such as `socket:[4711]`.
fn inode_of(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Of a line of the table: the inode of a socket in the state `ESTABLISHED` with this port at its other end.
fn inode_connected_to(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(2);
    let (_, remote_port) = fields.next()?.rsplit_once(':')?;
    let is_established = fields.next()? == "01";
    let is_it = is_established && u16::from_str_radix(remote_port, 16).ok()? == port;
    fields.nth(5)?.parse().ok().filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connected_socket_is_found_by_peer_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = crate::process::own_pid();
        assert!(!ConnectedSockets::to_port(port).is_held_by(own), "a listener is not connected");
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let connected = ConnectedSockets::to_port(port);
        assert!(connected.is_held_by(own));
        assert!(!connected.is_held_by(Pid::from_raw(i32::MAX)));
        drop(stream);
    }

    #[test]
    fn table_lines_without_connection_are_skipped() {
        let line = |remote: &str, state: &str| {
            format!(
                "   1: 0100007F:B0C2 {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 4711 1"
            )
        };
        assert_eq!(inode_connected_to(&line("0100007F:7530", "01"), 30_000), Some(4711));
        assert_eq!(inode_connected_to(&line("0100007F:7530", "06"), 30_000), None);
        assert_eq!(inode_connected_to(&line("0100007F:7531", "01"), 30_000), None);
        let tcp6 = "00000000000000000000000001000000:7530";
        assert_eq!(inode_connected_to(&line(tcp6, "01"), 30_000), Some(4711));
        for garbage in ["", "  sl  local_address rem_address   st", "1: 2 3", "1: a:b c:d 01"] {
            assert_eq!(inode_connected_to(garbage, 30_000), None, "{garbage}");
        }
    }
}
