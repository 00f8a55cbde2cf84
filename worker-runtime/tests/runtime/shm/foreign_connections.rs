//! Foreign connections at the socket that passes the segment.

use std::fs;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;

use rankrun_worker::TcpStore;
use rankrun_worker::process_group::BackendChoice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{PLACE, error_text};
use crate::server::Server;
use crate::world::{AMPLE, join_on};

const KEY: &str = "shared memory";

/// The store as the group sees it, where rank `absent` seems to be.
fn place(server: &Server, present: u32, absent: u32) -> TcpStore {
    let store = TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap().with_prefix(PLACE);
    let record = store.get(&format!("record/{present}")).unwrap();
    store.set(&format!("record/{absent}"), &record).unwrap();
    store
}

/// How rank 0 is reached, and the token.
fn socket_of(store: &TcpStore) -> (SocketAddr, String) {
    let value = String::from_utf8(store.get(KEY).unwrap()).unwrap();
    let (name, token) = value.split_once(' ').unwrap();
    (SocketAddr::from_abstract_name(format!("rankrun {name}")).unwrap(), token.to_owned())
}

fn greeting(version: u32, token: &str, [world, rank]: [u32; 2]) -> Vec<u8> {
    let numbers = [world, rank].map(u32::to_le_bytes).concat();
    [b"rankrun shm\n", &version.to_le_bytes()[..], token.as_bytes(), &numbers].concat()
}

#[test]
fn foreign_socket_connections_do_not_join_or_delay() {
    let server = Server::start();
    thread::scope(|scope| {
        let first = scope.spawn(|| join_on(BackendChoice::Shm, &server, (0, 2), AMPLE));
        let (address, token) = socket_of(&place(&server, 0, 1));
        let connect = || UnixStream::connect_addr(&address).unwrap();
        let _silent = connect();
        let mut beginning = connect();
        beginning.write_all(b"rankrun shm\n").unwrap();
        for garbage in [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            vec![0; 4096],
            greeting(1, &"0".repeat(36), [2, 1]),
            greeting(1, &token, [2, 0]),
            greeting(1, &token, [2, 2]),
            greeting(1, &token, [3, 1]),
        ] {
            let mut foreign = connect();
            foreign.write_all(&garbage).unwrap();
            assert!(matches!(foreign.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
        }
        let mut second = join_on(BackendChoice::Shm, &server, (1, 2), AMPLE).unwrap();
        let mut first = first.join().unwrap().unwrap();
        let barrier = scope.spawn(move || first.barrier());
        second.barrier().unwrap();
        barrier.join().unwrap().unwrap();
    });
}

#[test]
fn layout_mismatch_is_named_on_both_ranks() {
    let server = Server::start();
    thread::scope(|scope| {
        let first = scope.spawn(|| join_on(BackendChoice::Shm, &server, (0, 2), AMPLE).unwrap_err());
        let (address, token) = socket_of(&place(&server, 0, 1));
        let mut second = UnixStream::connect_addr(&address).unwrap();
        second.write_all(&greeting(7, &token, [2, 1])).unwrap();
        let error = error_text(&first.join().unwrap());
        assert!(
            error.contains("rank 1 uses version 7 of the shared memory layout, this rank version 1"),
            "{error}"
        );
        let mut answer = [0; 24];
        second.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..16], *b"rankrun\n\x01\0\0\0\x01\0\0\0");
    });
}

/// What rank 1 says when rank 0 answers so.
fn answer_to_rank_1(answer: &[u8], file: Option<OwnedFd>) -> String {
    let server = Server::start();
    thread::scope(|scope| {
        let second = scope.spawn(|| join_on(BackendChoice::Shm, &server, (1, 2), AMPLE).unwrap_err());
        let store = place(&server, 1, 0);
        let name = format!("test-{}-{}", std::process::id(), server.port());
        let address = SocketAddr::from_abstract_name(format!("rankrun {name}")).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        store.set(KEY, format!("{name} {}", "t".repeat(36)).as_bytes()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = vec![0; 60];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, greeting(1, &"t".repeat(36), [2, 1]));
        let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        sendmsg(&stream, &[IoSlice::new(answer)], &mut control, SendFlags::empty()).unwrap();
        drop((stream, listener));
        error_text(&second.join().unwrap())
    })
}

fn answer(code: u32, version: u32) -> Vec<u8> {
    [b"rankrun\n", &code.to_le_bytes()[..], &version.to_le_bytes(), &0u64.to_le_bytes()].concat()
}

#[test]
fn invalid_segment_from_rank_0_is_refused() {
    let strange =
        "the ranks of this host cannot share memory: rank 0 passed a file that is not the shared memory";
    for (bytes, file) in [
        (answer(0, 1), None),
        (answer(0, 1), Some(fs::File::open("/dev/null").unwrap().into())),
        (b"HTTP/1.1 200 OK\r\n\r\n hello".to_vec(), None),
        (answer(9, 1), None),
    ] {
        let error = answer_to_rank_1(&bytes, file);
        assert!(error.starts_with(strange), "{error}");
    }
    let error = answer_to_rank_1(&answer(1, 5), None);
    assert!(
        error.contains("rank 0 uses version 5 of the shared memory layout, this rank version 1"),
        "{error}"
    );
    let error = answer_to_rank_1(&answer(2, 1), None);
    assert!(error.contains("rank 0 runs as another user"), "{error}");
    // It goes away in the middle of its answer.
    let error = answer_to_rank_1(&answer(0, 1)[..20], None);
    assert!(
        error.contains("lost rank 0, which exited: its connection closed without a leave message"),
        "{error}"
    );
}

#[test]
fn refused_connection_hints_at_a_cloned_machine() {
    let server = Server::start();
    thread::scope(|scope| {
        let second = scope.spawn(|| join_on(BackendChoice::Shm, &server, (1, 2), AMPLE).unwrap_err());
        let store = place(&server, 1, 0);
        store.set(KEY, format!("absent-{} {}", std::process::id(), "t".repeat(36)).as_bytes()).unwrap();
        let error = second.join().unwrap();
        assert!(
            error_text(&error).contains("lost rank 0, to which the connection failed (connection refused)"),
            "{error}"
        );
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("boot_id") && hint.contains("RANKRUN_BACKEND=tcp"), "{hint}");
    });
}
