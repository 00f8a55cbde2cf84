//! Finds the process of this machine that listens on a port, as far as this user may see it. Reads the kernel's tables
//! in `/proc`.

use std::fs;

use rankrun_core::rendezvous::text::escape_for_terminal;

/// Longest process name that is shown, in characters.
const MAX_NAME: usize = 64;

/// A process that listens on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOwner {
    /// Pid of the listening process.
    pub pid: i32,
    /// Name of the process, safe for a terminal.
    pub name: String,
}

impl std::fmt::Display for PortOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` (pid {})", self.name, self.pid)
    }
}

/// The process that listens on the port at any address. `None` if there is none, or if it belongs to another user.
#[must_use]
pub(crate) fn port_owner(port: u16) -> Option<PortOwner> {
    let links: Vec<String> = read_tcp_tables()
        .flat_map(|table| parse_listener_inodes(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if links.is_empty() {
        return None;
    }
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let pid = pids.find(|pid| process_has_socket(*pid, &links))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(PortOwner { pid, name: escape_for_terminal(name.trim(), MAX_NAME) })
}

/// Whether the kernel lists a listener on this port at any address.
#[must_use]
pub(crate) fn is_listened_on(port: u16) -> bool {
    read_tcp_tables().any(|table| !parse_listener_inodes(&table, port).is_empty())
}

fn read_tcp_tables() -> impl Iterator<Item = String> {
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(|file| fs::read_to_string(file).ok())
}

fn process_has_socket(pid: i32, links: &[String]) -> bool {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    targets.any(|target| links.iter().any(|link| target.as_os_str() == link.as_str()))
}

/// Inodes of the listeners on a port, from a kernel table (see proc_net_tcp in the kernel documentation). Pure.
fn parse_listener_inodes(table: &str, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let inode = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state) = (words.get(1)?, words.get(3)?);
        let found = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        let inode = words.get(9).and_then(|inode| inode.parse().ok()).unwrap_or(0);
        (found == port && *state == LISTEN).then_some(inode)
    };
    table.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listener_is_found_in_proc_net_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                        0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 71\n\
                        1: 0100007F:1F91 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 72\n\
                        2: junk\n";
        assert_eq!(
            [8080, 8081, 40_000].map(|port| parse_listener_inodes(table, port)),
            [vec![71], vec![], vec![]]
        );
        let listener = TcpListener::bind("127.0.0.53:0").unwrap();
        assert!(is_listened_on(listener.local_addr().unwrap().port()));
    }

    #[test]
    fn listener_of_this_process_is_named_with_its_pid() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let owner = port_owner(port).unwrap();
        assert_eq!(owner.pid, i32::try_from(std::process::id()).unwrap());
        assert!(!owner.name.is_empty() && owner.to_string().contains("(pid "), "{owner}");
        drop(listener);
        assert_eq!(port_owner(port), None);
    }
}
