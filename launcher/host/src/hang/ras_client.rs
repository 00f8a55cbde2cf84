//! Asks NCCL's RAS subsystem for the counts of all communicators. Its listener is in the workers, all on one port of this
//! node, and each of them answers for the whole job. A process that is stopped may take the connection: then another is tried.
#![expect(clippy::disallowed_methods, reason = "the deadline is measured here")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;
use rankrun_core::hang::evidence::{Groups, RankEvidence};
use rankrun_core::hang::ras::{MAX_ANSWER, RasProcess, groups_by_process};
use rankrun_core::posix::Pid;
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use crate::process::descendants::scan_descendants_of;

/// All in all; NCCL collects for `COLLECTION` at most.
pub(super) const RAS_TIMEOUT: Duration = Duration::from_secs(4);
/// A process that has taken the connection and says nothing for so long is stopped.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Seconds. Later processes are missing in the answer.
const COLLECTION: u32 = 2;
const MAX_LINE: usize = 4096;

/// A port of the loopback that is kept for the workers of one generation.
#[derive(Debug)]
pub(super) struct RasPort {
    port: u16,
    /// Bound without a listener: it takes no connection, and no other program gets the port. NCCL binds it with
    /// SO_REUSEPORT, as this does.
    _reservation: OwnedFd,
}

impl RasPort {
    /// # Errors
    /// No port or no descriptor is left.
    pub(super) fn reserve() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseport(&socket, true)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = SocketAddr::try_from(getsockname(&socket)?).map_err(io::Error::other)?;
        Ok(Self { port: address.port(), _reservation: socket })
    }

    pub(super) const fn number(&self) -> u16 {
        self.port
    }
}

/// The workers of a generation in which NCCL answers.
#[derive(Debug)]
pub(super) struct RasWorkers {
    pub(super) port: u16,
    /// The rank of the first one.
    pub(super) base: Rank,
    /// By local rank.
    pub(super) pids: Vec<Option<Pid>>,
}

impl RasWorkers {
    /// Asks for the groups of these ranks of the node, and records them. What was known of a rank that is not in the answer may
    /// be old.
    pub(super) fn record_groups<'a>(&self, ranks: impl Iterator<Item = &'a mut RankEvidence>, now: Instant) {
        let mut ranks = ranks.peekable();
        if ranks.peek().is_none() {
            return;
        }
        let answer = ask_ras(self.port, &self.pids);
        let answer =
            answer.inspect_err(|error| tracing::debug!("no counts of NCCL: {error}")).unwrap_or_default();
        for evidence in ranks {
            let local_rank = evidence.rank.0.saturating_sub(self.base.0) as usize;
            match answer.get(local_rank).cloned().flatten() {
                Some(groups) => evidence.record_groups(groups, now),
                None if evidence.has_groups() => evidence.forget_groups(),
                None => {}
            }
        }
    }
}

/// The groups of each of these workers that NCCL knows; `None` for the others. A wrapper's program is a process below it.
///
/// # Errors
/// No worker listens, none answers in time, or the answer is not NCCL's.
pub(super) fn ask_ras(port: u16, workers: &[Option<Pid>]) -> io::Result<Vec<Option<Groups>>> {
    let text = fetch_status(port, Instant::now() + RAS_TIMEOUT)?;
    let processes = groups_by_process(&text).map_err(io::Error::other)?;
    let here = own_hosts(&processes, workers);
    let find = |pid: Pid| {
        let of_process = |(host, found): &RasProcess| here.contains(host) && *found == pid.as_raw();
        processes.iter().find(|(process, _)| of_process(process)).map(|(_, groups)| groups.clone())
    };
    let below = |pid: Pid| scan_descendants_of(pid).unwrap_or_default().into_iter().find_map(find);
    Ok(workers.iter().map(|pid| pid.and_then(|pid| find(pid).or_else(|| below(pid)))).collect())
}

/// The names by which NCCL knows this node: addresses of this machine. A pid of another node may be one of here.
fn own_hosts(processes: &BTreeMap<RasProcess, Groups>, workers: &[Option<Pid>]) -> BTreeSet<String> {
    let hosts: BTreeSet<&String> = processes.keys().map(|(host, _)| host).collect();
    let is_ours = |host: &&&String| match host.parse::<IpAddr>() {
        Ok(address) => std::net::UdpSocket::bind((address, 0)).is_ok(),
        // A name counts as ours if no other host is there, or if all workers are on it.
        Err(_) => {
            hosts.len() == 1
                || workers
                    .iter()
                    .flatten()
                    .all(|pid| processes.contains_key(&((**host).clone(), pid.as_raw())))
        }
    };
    hosts.iter().filter(is_ours).map(|host| (*host).clone()).collect()
}

fn fetch_status(port: u16, deadline: Instant) -> io::Result<Vec<u8>> {
    loop {
        match try_fetch(port, deadline) {
            // Another process may take the next connection.
            Err(error) if is_timeout(&error) && Instant::now() < deadline => {}
            answer => return answer,
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn try_fetch(port: u16, deadline: Instant) -> io::Result<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let first = deadline.min(Instant::now() + FIRST_ANSWER);
    let mut connection =
        RasConnection { stream: TcpStream::connect_timeout(&address, until(first)?)?, read: Vec::new() };
    connection.command("CLIENT PROTOCOL 2", "SERVER PROTOCOL ", first)?;
    connection.command(&format!("TIMEOUT {COLLECTION}"), "OK", deadline)?;
    // Before 2.28.7 there is no such command.
    connection.command("SET FORMAT json", "OK", deadline)?;
    connection.send("VERBOSE STATUS", deadline)?;
    connection.read_to_end(deadline)
}

/// The time left.
fn until(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    }
}

struct RasConnection {
    stream: TcpStream,
    /// What has come and is not used yet.
    read: Vec<u8>,
}

impl RasConnection {
    fn command(&mut self, command: &str, expected: &str, deadline: Instant) -> io::Result<()> {
        self.send(command, deadline)?;
        let answer = loop {
            if let Some(end) = memchr::memchr(b'\n', &self.read) {
                let rest = self.read.split_off(end + 1);
                break std::mem::replace(&mut self.read, rest);
            }
            if self.read.len() > MAX_LINE || self.read_more(deadline)? == 0 {
                return Err(io::Error::other(format!("no answer of NCCL to `{command}`")));
            }
        };
        if answer.starts_with(expected.as_bytes()) {
            return Ok(());
        }
        Err(io::Error::other(format!("`{command}` is answered by `{}`", answer.escape_ascii())))
    }

    fn send(&mut self, command: &str, deadline: Instant) -> io::Result<()> {
        self.stream.set_write_timeout(Some(until(deadline)?))?;
        self.stream.write_all(format!("{command}\n").as_bytes())
    }

    fn read_more(&mut self, deadline: Instant) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(until(deadline)?))?;
        let mut chunk = [0; 64 << 10];
        let length = self.stream.read(&mut chunk)?;
        self.read.extend_from_slice(&chunk[..length]);
        Ok(length)
    }

    fn read_to_end(mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        while self.read_more(deadline)? > 0 {
            if self.read.len() > MAX_ANSWER {
                return Err(io::Error::other(format!("an answer of more than {MAX_ANSWER} bytes")));
            }
        }
        Ok(self.read)
    }
}

#[cfg(test)]
#[path = "ras_client_tests.rs"]
mod tests;
