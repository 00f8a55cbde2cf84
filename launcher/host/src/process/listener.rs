//! The process that listens on a port, as far as `/proc` shows it to this user. For messages about a port in use;
//! nothing is decided by it.

use std::fs;
use std::path::Path;

use rankrun_core::posix::Pid;

use super::proc::{ProcessStat, parse_pid};

/// The state `TCP_LISTEN` as `/proc/net/tcp` shows it.
const TCP_LISTEN_STATE: &str = "0A";
/// The most processes that are searched.
const MAX_PROCESSES: usize = 65_536;

/// The pid and the name of the process that listens on `port`.
#[must_use]
pub(crate) fn listener_of_port(port: u16) -> Option<(Pid, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let inodes: Vec<String> = tables.iter().flat_map(|table| listening_inodes(table, port)).collect();
    if inodes.is_empty() {
        return None;
    }
    let entries = fs::read_dir("/proc").ok()?.take(MAX_PROCESSES).filter_map(Result::ok);
    let pids = entries.filter_map(|entry| parse_pid(entry.file_name().to_str()?));
    let pid = pids.into_iter().find(|pid| has_socket(*pid, &inodes))?;
    let name = ProcessStat::of(pid).ok()??.name()?.to_owned();
    Some((pid, name))
}

fn has_socket(pid: Pid, inodes: &[String]) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    let is_one = |target: &Path| inodes.iter().any(|inode| target == Path::new(&format!("socket:[{inode}]")));
    targets.into_iter().any(|target| is_one(&target))
}

/// The inodes of the sockets that listen on that port. Pure.
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    let inode = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (address, state) = (fields.nth(1)?, fields.nth(1)?);
        let (_, own) = address.rsplit_once(':')?;
        let listens = state == TCP_LISTEN_STATE && u16::from_str_radix(own, 16) == Ok(port);
        fields.nth(5).filter(|_| listens).map(str::to_owned)
    };
    table.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_of_port_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n\
             1: 0100007F:733C 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n\
             2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0\n\
             3: broken\n";
        assert_eq!(listening_inodes(table, 29500), ["4711"]);
        assert_eq!(listening_inodes(table, 22), ["4713"]);
        assert!(listening_inodes(table, 80).is_empty() && listening_inodes("", 80).is_empty());
    }
}
