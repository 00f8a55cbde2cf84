//! What another program at the address of a store says: read for people, within a short time and a few bytes.

#![expect(clippy::disallowed_methods, reason = "how long is left is read from the clock")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::ClientError;
use super::open::open;

/// The most bytes that are read of it.
const MOST: usize = 160;
/// How long the rest of its first line may take.
const LINE: Duration = Duration::from_millis(200);
/// The question of the protocol that most other servers speak.
const QUESTION: &[u8] = b"HEAD / HTTP/1.0\r\n\r\n";

/// What it has said, with the rest of the line that comes within a short time.
pub(super) fn first_line(stream: &mut TcpStream, mut said: Vec<u8>) -> Vec<u8> {
    said.truncate(MOST);
    let _ = read_line(stream, &mut said, Instant::now() + LINE);
    said
}

/// Asks the addresses in the way of HTTP, since such a server may wait for the end of a line that a store's client does
/// not send. Nothing where no address says a word.
#[must_use]
pub fn ask(addresses: &[SocketAddr], limit: Duration) -> Option<ClientError> {
    let part = limit / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let said = addresses.iter().find_map(|address| answer(*address, Instant::now() + part).ok())?;
    Some(ClientError::Stranger { said })
}

fn answer(address: SocketAddr, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = open(address, deadline)?;
    // The kernel takes so few bytes at once.
    stream.write_all(QUESTION)?;
    let mut said = Vec::new();
    read_line(&mut stream, &mut said, deadline)?;
    if said.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(said) }
}

/// Until the end of a line or of the connection, or until that is enough.
fn read_line(stream: &mut TcpStream, said: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
    while said.len() < MOST && !said.contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        if left.is_zero() || poll(&mut fds, timeout)? == 0 {
            return Ok(());
        }
        let mut piece = [0; MOST];
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            read => said.extend_from_slice(&piece[..read]),
        }
    }
    said.truncate(MOST);
    Ok(())
}
