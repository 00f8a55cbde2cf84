//! Ranks as threads of one process.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rankrun_contract::env::{Master, Role, WorkerEnv};
use rankrun_contract::rank::{
    LocalRank, LocalWorldSize, NodeCount, NodeRank, Rank, RestartCount, RunId, WorldSize,
};
use rankrun_worker::process_group::BackendChoice;
use rankrun_worker::{Group, GroupError, GroupOptions, WorkerContext};

use crate::server::Server;

/// Longer than any test may take.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);

/// The launcher's variables for this rank.
pub(crate) fn env(server: &Server, rank: u32, world_size: u32) -> WorkerEnv {
    let world_size = WorldSize::new(world_size).unwrap();
    WorkerEnv {
        rank: Rank(rank),
        local_rank: LocalRank(rank),
        world_size,
        local_world_size: LocalWorldSize(world_size.0),
        node_rank: NodeRank(0),
        node_count: NodeCount::ONE,
        role: Role { name: "default".to_owned(), rank: Rank(rank), world_size },
        master: Master { addr: "127.0.0.1".to_owned(), port: server.port(), uses_agent_store: true },
        restart_count: RestartCount(0),
        max_restarts: RestartCount(0),
        run_id: RunId("run".to_owned()),
        error_file: None,
        signals_to_handle: String::new(),
        rankrun: None,
    }
}

pub(crate) fn options(timeout: Duration) -> GroupOptions {
    GroupOptions { timeout, ..GroupOptions::default() }
}

/// Joins as one rank of a world.
pub(crate) fn join(
    server: &Server,
    rank: u32,
    world_size: u32,
    timeout: Duration,
) -> Result<Group, GroupError> {
    join_on(BackendChoice::Auto, server, (rank, world_size), timeout)
}

/// [`join`] with this backend.
pub(crate) fn join_on(
    choice: BackendChoice,
    server: &Server,
    (rank, world_size): (u32, u32),
    timeout: Duration,
) -> Result<Group, GroupError> {
    let options = GroupOptions { backend: Some(choice), ..options(timeout) };
    WorkerContext::new(env(server, rank, world_size)).process_group(&options)
}

/// As [`join`], on a host of that name.
pub(crate) fn join_at(
    host: &str,
    server: &Server,
    (rank, world_size): (u32, u32),
    timeout: Duration,
) -> Result<Group, GroupError> {
    WorkerContext::new(env(server, rank, world_size)).with_host(host).process_group(&options(timeout))
}

/// Runs `body` on every rank of a group of `world_size` after all have joined; the results in rank order. A
/// rank with a panic drops its group like a crash, and has no result.
pub(crate) fn run<R: Send>(
    world_size: u32,
    timeout: Duration,
    body: impl Fn(Group) -> R + Sync,
) -> Vec<Option<R>> {
    run_on(BackendChoice::Auto, (world_size, timeout), body)
}

/// [`run`] with this backend.
pub(crate) fn run_on<R: Send>(
    choice: BackendChoice,
    (world_size, timeout): (u32, Duration),
    body: impl Fn(Group) -> R + Sync,
) -> Vec<Option<R>> {
    let join = |server: &Server, rank| join_on(choice, server, (rank, world_size), timeout);
    run_joined(world_size, join, body)
}

/// As [`run`], with rank r on the host of that name.
pub(crate) fn run_at<R: Send>(
    hosts: &[&str],
    timeout: Duration,
    body: impl Fn(Group) -> R + Sync,
) -> Vec<Option<R>> {
    let world_size = hosts.len() as u32;
    let join = |server: &Server, rank| join_at(hosts[rank as usize], server, (rank, world_size), timeout);
    run_joined(world_size, join, body)
}

fn run_joined<R: Send>(
    world_size: u32,
    join: impl Fn(&Server, u32) -> Result<Group, GroupError> + Sync,
    body: impl Fn(Group) -> R + Sync,
) -> Vec<Option<R>> {
    let (server, met) = (Server::start(), Barrier::new(world_size as usize));
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (server, met, body, join) = (&server, &met, &body, &join);
                scope.spawn(move || {
                    let group = join(server, rank).expect("the ranks meet");
                    met.wait();
                    body(group)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().ok()).collect()
    })
}

/// Ends this thread as a crash would, without the message of a panic.
pub(crate) fn crash(group: Group) -> ! {
    // Dropped while unwinding, so that it sends no goodbye.
    let _group = group;
    std::panic::resume_unwind(Box::new("crash"))
}
