//! Reads what another program at the address of a store says, for the user, within a short time and a few bytes.

#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its own limits")]

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::ClientError;
use super::open::open;

/// The most bytes that are read.
const MAX_LINE_BYTES: usize = 160;
/// Time limit for the rest of the program's first line.
const LINE_LIMIT: Duration = Duration::from_millis(200);
/// A question in HTTP, the protocol of most other servers.
const QUESTION: &[u8] = b"HEAD / HTTP/1.0\r\n\r\n";

/// The bytes that the program has sent, with the rest of its line that comes within a short time.
pub(super) async fn first_line(stream: &mut TcpStream, mut reply: Vec<u8>) -> Vec<u8> {
    reply.truncate(MAX_LINE_BYTES);
    let _ = read_line(stream, &mut reply, Instant::now() + LINE_LIMIT).await;
    reply
}

/// Asks the addresses in HTTP, since such a server may wait for the end of a line, which a store's client does not
/// send. `None` if no address sends a byte.
pub(crate) async fn ask(addresses: &[SocketAddr], limit: Duration) -> Option<ClientError> {
    let part = limit / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    for address in addresses {
        if let Ok(reply) = answer(*address, Instant::now() + part).await {
            return Some(ClientError::AnotherProgram { reply });
        }
    }
    None
}

async fn answer(address: SocketAddr, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = open(address, deadline).await?;
    // The kernel takes so few bytes at once.
    stream.write_all(QUESTION).await?;
    let mut reply = Vec::new();
    read_line(&mut stream, &mut reply, deadline).await?;
    if reply.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(reply) }
}

/// Reads until the end of a line or of the connection, until the most bytes, or until `deadline`.
async fn read_line(stream: &mut TcpStream, reply: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
    while reply.len() < MAX_LINE_BYTES && !reply.contains(&b'\n') {
        let mut piece = [0; MAX_LINE_BYTES];
        match timeout_at(deadline.into(), stream.read(&mut piece)).await {
            Err(_) | Ok(Ok(0)) => return Ok(()),
            Ok(read) => reply.extend_from_slice(&piece[..read?]),
        }
    }
    reply.truncate(MAX_LINE_BYTES);
    Ok(())
}
