//! Joining a group: missing ranks, foreign connections, and keys of earlier generations.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use rankrun_contract::rank::RestartCount;
use rankrun_worker::process_group::BackendChoice;
use rankrun_worker::{Group, GroupOptions, Rank, ReduceOp, TcpStore, WorkerContext, WorldSize};

use crate::server::Server;
use crate::world::{AMPLE, env, join, join_on, options};

#[test]
fn group_without_launcher_has_world_size_one() {
    let context = WorkerContext::single_process();
    assert_eq!((context.rank(), context.world_size(), context.device()), (Rank(0), WorldSize::ONE, None));
    let mut group = context.process_group(&GroupOptions::default()).unwrap();
    let mut data = [1.5f32, 2.0];
    group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
    group.broadcast(&mut data, Rank(0)).unwrap();
    group.barrier().unwrap();
    assert_eq!(data, [1.5, 2.0]);
    assert_eq!(group.all_gather(&data).unwrap(), data);
    assert_eq!(group.scatter(&data, &[2], Rank(0)).unwrap(), data);
    assert_eq!(group.gather(&data, &[2], Rank(0)).unwrap().unwrap(), data);
    let error = context.store(AMPLE).unwrap_err();
    assert_eq!(error.to_string(), "this process has no store: it runs without a launcher");
    assert_eq!(error.hint(), Some("start it with `rankrun`"));
}

#[test]
fn absent_rank_is_named() {
    // A busy machine must be able to come in that time.
    let timeout = Duration::from_secs(4);
    thread::scope(|scope| {
        for missing in 0..3 {
            let server = Server::start();
            for rank in (0..3).filter(|&rank| rank != missing) {
                let server = server.clone();
                scope.spawn(move || {
                    let error = join(&server, rank, 3, timeout).unwrap_err();
                    assert_eq!(error.lost_rank(), Some(Rank(missing)), "rank {rank}: {error}");
                    assert!(error.to_string().starts_with("`join` cannot finish"), "{error}");
                });
            }
        }
    });
}

#[test]
fn foreign_connections_do_not_join_or_delay() {
    let server = Server::start();
    thread::scope(|scope| {
        let first = scope.spawn(|| join_on(BackendChoice::Tcp, &server, (0, 2), AMPLE));
        let store = TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap();
        let store = store.with_prefix("rankrun/group/default/life 0/1");
        // The second rank has been here once, as far as the first one can see.
        store.set("record/1", &store.get("record/0").unwrap()).unwrap();
        let address = store.get("address/0").unwrap();
        let connect = || TcpStream::connect(String::from_utf8_lossy(&address).as_ref()).unwrap();

        let _silent = connect();
        let mut beginning = connect();
        beginning.write_all(b"rankrun group 3\n").unwrap();
        let mut greeting = b"rankrun group 3\n".to_vec();
        greeting.extend_from_slice(&36u64.to_le_bytes());
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[&greeting[..], &[b'0'; 60]].concat()] {
            let mut foreign = connect();
            foreign.write_all(garbage).unwrap();
            // It is closed, with a reset where garbage was left unread.
            assert!(matches!(foreign.read(&mut [0]), Ok(0) | Err(_)));
        }

        let mut second = join_on(BackendChoice::Tcp, &server, (1, 2), AMPLE).unwrap();
        let mut first = first.join().unwrap().unwrap();
        let barrier = scope.spawn(move || first.barrier());
        second.barrier().unwrap();
        barrier.join().unwrap().unwrap();
    });
}

#[test]
fn later_generation_ignores_keys_of_an_earlier_one() {
    let server = Server::start();
    // Keys of an incomplete first generation, in the keyspace that torchrun keeps for the second one.
    join(&server, 0, 2, Duration::from_millis(50)).unwrap_err();
    let context = |rank| {
        let mut env = env(&server, rank, 2);
        env.restart_count = RestartCount(1);
        WorkerContext::new(env)
    };
    assert_group_meets(|rank| context(rank).process_group(&options(AMPLE)).unwrap());
    assert!(server.keys().iter().any(|key| key.starts_with("/rankrun/group/default/life 1/1/")));
}

#[test]
fn group_name_can_be_reused() {
    let server = Server::start();
    assert_group_meets(|rank| join(&server, rank, 2, AMPLE).unwrap());
    assert_group_meets(|rank| join(&server, rank, 2, AMPLE).unwrap());
    let named = |rank, name: &str| {
        let options = GroupOptions { name: name.to_owned(), ..options(AMPLE) };
        WorkerContext::new(env(&server, rank, 2)).process_group(&options).unwrap()
    };
    thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (mut one, mut other) = (named(rank, "one"), named(rank, "other"));
                let (mut left, mut right) = ([1i64], [10i64]);
                one.all_reduce(&mut left, ReduceOp::Sum).unwrap();
                other.all_reduce(&mut right, ReduceOp::Sum).unwrap();
                assert_eq!((left, right), ([2], [20]));
            });
        }
    });
}

/// Two ranks join, pass a barrier and leave.
fn assert_group_meets(join: impl Fn(u32) -> Group + Sync) {
    thread::scope(|scope| {
        for rank in 0..2 {
            let join = &join;
            scope.spawn(move || join(rank).barrier().unwrap());
        }
    });
}
