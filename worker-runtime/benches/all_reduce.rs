//! How long an `all_reduce` of `f32` takes between processes of one host: through shared memory, with memory of the group and with
//! memory of the program, and through TCP.
//!
//! `cargo bench -p rankrun-worker --bench all_reduce [-- RANKS...]`; 2 and 4 ranks, unless said. Rank r runs on processor r, counted
//! around. Medians over all calls of rank 0. `copy` is a `memcpy` of as many bytes on one core.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench program starts programs, reads clocks, prints, and may panic"
)]

#[path = "../tests/runtime/server.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;

use std::env;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rankrun_contract::env::{Master, Role, WorkerEnv};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank, RestartCount, RunId};
use rankrun_worker::process_group::Wish;
use rankrun_worker::{Group, GroupOptions, Rank, Reduction, WorkerContext, WorldSize};
use server::Server;

const SIZES: [usize; 7] = [4, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 16 << 20, 64 << 20];

/// How long each cell of the table is measured, at the least calls that make a median.
const TIME: Duration = Duration::from_millis(600);
const FEWEST: usize = 15;

fn main() -> ExitCode {
    if env::var_os("RANK").is_some() {
        return rankrun_worker::run(rank);
    }
    let mut worlds: Vec<u32> = env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    if worlds.is_empty() {
        worlds = vec![2, 4];
    }
    for world in worlds {
        let server = Server::start();
        let start = |rank| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.envs(variables(&server, rank, world).to_vars()).spawn().unwrap()
        };
        let ranks: Vec<_> = (0..world).map(start).collect();
        for mut rank in ranks {
            assert!(rank.wait().unwrap().success(), "a rank failed");
        }
    }
    ExitCode::SUCCESS
}

fn variables(server: &Server, rank: u32, world_size: u32) -> WorkerEnv {
    let world_size = WorldSize::new(world_size).unwrap();
    WorkerEnv {
        rank: Rank(rank),
        local_rank: LocalRank(rank),
        world_size,
        local_world_size: LocalWorldSize(world_size.0),
        node_rank: NodeRank(0),
        node_count: NodeCount::ONE,
        role: Role { name: "default".to_owned(), rank: Rank(rank), world_size },
        master: Master { addr: "127.0.0.1".to_owned(), port: server.port(), agent_store: true },
        restart_count: RestartCount(0),
        max_restarts: RestartCount(0),
        run_id: RunId("bench".to_owned()),
        error_file: None,
        signals_to_handle: String::new(),
        rankrun: None,
    }
}

/// One rank's program: the same calls on all of them.
fn rank(context: &WorkerContext) -> Result<(), Box<dyn std::error::Error>> {
    let options =
        |wish| GroupOptions { name: format!("{wish}"), backend: Some(wish), ..GroupOptions::default() };
    let mut shm = context.process_group(&options(Wish::Shm))?;
    let mut tcp = context.process_group(&options(Wish::Tcp))?;
    // Pinned only now: both transports look at the processors of all ranks when they join.
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let processors: Vec<usize> =
        (0..CpuSet::count()).filter(|&it| allowed.is_set(it).unwrap_or(false)).collect();
    let mut own = CpuSet::new();
    own.set(processors[context.rank().index() % processors.len()])?;
    sched_setaffinity(Pid::from_raw(0), &own)?;
    if context.rank() == Rank(0) {
        println!("{} ranks on {} processors; median (least)", context.world_size(), processors.len());
        println!(
            "{:>10}{:>24}{:>24}{:>24}{:>14}",
            "bytes", "group's memory", "program's memory", "tcp", "copy"
        );
    }
    for bytes in SIZES {
        let elements = bytes / 4;
        let mut buffer = shm.buffer::<f32>(elements);
        let mut vector = vec![0.0f32; elements];
        let direct = measure(&mut shm, &mut buffer)?;
        let staged = measure(&mut shm, &mut vector)?;
        let tcp = measure(&mut tcp, &mut vector)?;
        if context.rank() == Rank(0) {
            let copy = copy(bytes);
            println!("{bytes:>10}{direct:>24}{staged:>24}{tcp:>24}{:>14}", show(copy));
        }
        shm.barrier()?;
    }
    Ok(())
}

/// The median and the least time of a call.
fn measure(group: &mut Group, data: &mut [f32]) -> Result<String, Box<dyn std::error::Error>> {
    let mut times = Vec::new();
    let started = Instant::now();
    loop {
        let begun = Instant::now();
        group.all_reduce(data, Reduction::Mean)?;
        times.push(begun.elapsed());
        // Rank 0 says now and then whether the time is over.
        if times.len() % FEWEST == 0 {
            let mut is_over = [u8::from(started.elapsed() > TIME)];
            group.broadcast(&mut is_over, Rank(0))?;
            if is_over[0] == 1 {
                break;
            }
        }
    }
    // The first calls touch memory for the first time.
    let mut times = times.split_off(times.len() / 5);
    times.sort();
    Ok(format!("{} ({})", show(times[times.len() / 2]), show(times[0])))
}

fn copy(bytes: usize) -> Duration {
    let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
    let once = |_| {
        let begun = Instant::now();
        black_box(&mut target).copy_from_slice(black_box(&source));
        begun.elapsed()
    };
    let mut times: Vec<Duration> = (0..9).map(once).collect();
    times.sort();
    times[4]
}

fn show(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1000.0 { format!("{micros:.2} µs") } else { format!("{:.2} ms", micros / 1000.0) }
}
