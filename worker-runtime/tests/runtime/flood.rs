//! Thousands of connections from a process outside of the job, while a group joins: every rank joins.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rankrun_worker::TcpStore;
use rankrun_worker::process_group::BackendChoice;

use crate::counts::times;
use crate::server::Server;
use crate::world::{AMPLE, join_on};

const WORLD: u32 = 4;
const PLACE: &str = "rankrun/group/default/life 0/1";
/// Connections that a flood keeps open at a time.
const HELD: usize = 200;
/// Connections of a flood before the other ranks come.
const AHEAD: usize = 300;

/// As many descriptors as this process may have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Connects until `stop`: every third connection says nothing, every third what no rank says, and the
/// others begin as a rank does.
fn flood<S: Write>(
    connect: impl Fn() -> Option<S>,
    beginning: &[u8],
    (made, stop): (&AtomicUsize, &AtomicBool),
) {
    let mut open_connections = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let Some(mut stream) = connect() else { continue };
        let count = made.fetch_add(1, Ordering::Relaxed);
        let _ = match count % 3 {
            0 => Ok(()),
            1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            _ => stream.write_all(beginning),
        };
        open_connections.push_back(stream);
        if open_connections.len() > HELD {
            open_connections.pop_front();
        }
    }
}

/// Has rank 0 wait in its place, floods it, and lets the other ranks come.
#[track_caller]
fn join_in_flood<S: Write>(
    choice: BackendChoice,
    beginning: &[u8],
    connect_to: impl Fn(&TcpStore) -> Box<dyn Fn() -> Option<S> + Send + Sync>,
) {
    raise_descriptor_limit();
    for round in 0..times(3, 60) {
        let server = Server::start();
        let (made, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let first =
                scope.spawn(|| join_on(choice, &server, (0, WORLD), AMPLE).map(|mut group| group.barrier()));
            let store = TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap().with_prefix(PLACE);
            // The other ranks have been here once, as far as the first one can see.
            let record = store.get("record/0").unwrap();
            (1..WORLD).for_each(|rank| store.set(&format!("record/{rank}"), &record).unwrap());
            let connect = Arc::new(connect_to(&store));
            let (made, stop) = (&made, &stop);
            for _ in 0..2 {
                let connect = Arc::clone(&connect);
                scope.spawn(move || flood(&**connect, beginning, (made, stop)));
            }
            while made.load(Ordering::Relaxed) < AHEAD {
                thread::yield_now();
            }
            let server = &server;
            let join = |rank| {
                scope.spawn(move || {
                    join_on(choice, server, (rank, WORLD), AMPLE).map(|mut group| group.barrier())
                })
            };
            let other_ranks: Vec<_> = (1..WORLD).map(join).collect();
            let results: Vec<_> = std::iter::once(first).chain(other_ranks).map(|rank| rank.join()).collect();
            stop.store(true, Ordering::Relaxed);
            for (rank, result) in results.into_iter().enumerate() {
                let result = result.expect("no rank panics");
                let made = made.load(Ordering::Relaxed);
                assert!(
                    matches!(result, Ok(Ok(()))),
                    "round {round}, {made} connections, rank {rank}: {result:?}"
                );
            }
        });
    }
}

#[test]
fn tcp_connection_flood_does_not_block_join() {
    join_in_flood(BackendChoice::Tcp, b"rankrun group 3\n", |store| {
        let address = String::from_utf8(store.get("address/0").unwrap()).unwrap();
        Box::new(move || TcpStream::connect(&address).ok())
    });
}

#[test]
fn shm_connection_flood_does_not_block_join() {
    join_in_flood(BackendChoice::Shm, b"rankrun shm\n", |store| {
        let value = String::from_utf8(store.get("shared memory").unwrap()).unwrap();
        let name = value.split(' ').next().unwrap_or_default().to_owned();
        Box::new(move || {
            let address = SocketAddr::from_abstract_name(format!("rankrun {name}")).ok()?;
            UnixStream::connect_addr(&address).ok()
        })
    });
}
