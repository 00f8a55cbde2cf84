//! A step of data-parallel training on CPUs, beside PyTorch's DDP over gloo: interleaved steps of the same model (an MLP
//! 1000-512-512-2 with SGD) on the same data in one run, ranks of both pinned to the same processors, one thread for each rank.
//!
//! `RANKRUN_TEST_PYTHON=PYTHON cargo bench -p rankrun-worker --bench ddp [-- RANKS]`; 2 ranks, unless said. Without the Python there
//! is no PyTorch. Batches are over all ranks. Medians over all steps of rank 0; `loss` is that of its part after the first turn, which
//! shows that both train the same. The products of matrices are those of `matrixmultiply` here, and of PyTorch's own library there.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench program starts programs, reads clocks, prints, and may panic"
)]

mod mlp;
mod rank;
mod restart;
#[path = "../../tests/runtime/server.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;
#[path = "../all_reduce/team.rs"]
#[expect(dead_code, reason = "its bench uses test hosts, too")]
mod team;

use std::env;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use rankrun_contract::env::{Master, Role, WorkerEnv};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank, RestartCount, RunId};
use rankrun_worker::{Rank, WorldSize};
use team::{Line, Place, Store, Team};

/// Rows of a batch, and how many steps a turn has.
const TURNS: [(usize, usize); 2] = [(30, 100), (512, 25)];
/// How often the two take turns.
const ROUNDS: usize = 8;

fn main() -> ExitCode {
    if env::var_os(restart::FAIL).is_some() {
        return rankrun_worker::run(rank::restart);
    }
    if env::var_os("RANK").is_some() {
        return rankrun_worker::run(rank::run);
    }
    // Cargo says `--bench` to every bench.
    let ranks = env::args().skip(1).find(|argument| argument != "--bench");
    let world = ranks.map_or(2, |ranks| ranks.parse().unwrap());
    let python = env::var_os("RANKRUN_TEST_PYTHON");
    compare(world, python.as_ref());
    restart::compare(world, python.as_ref());
    ExitCode::SUCCESS
}

fn compare(world: u32, python: Option<&OsString>) {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let processors: Vec<usize> =
        (0..CpuSet::count()).filter(|&it| allowed.is_set(it).unwrap_or(false)).collect();
    println!("{world} ranks on {} processors", processors.len());
    println!(
        "{:>6}{:>16}{:>16}{:>8}{:>14}{:>14}",
        "batch", "ours", "torch", "ratio", "our loss", "torch loss"
    );
    for (batch, steps) in TURNS {
        let store = Store::start(Place::Here);
        let ours = Team::start(Place::Here, world, &processors, |rank| {
            let vars = variables(store.port(), (rank, world)).to_vars();
            let vars = vars.into_iter().map(|(name, value)| (name.into(), value));
            (vec![env::current_exe().unwrap().into_os_string()], vars.collect())
        });
        let torch = python.map(|python| {
            let port = free_port();
            Team::start(Place::Here, world, &processors, |rank| torch_rank(python, (rank, world), port))
        });
        let mut teams: Vec<Team> = [Some(ours), torch].into_iter().flatten().collect();
        let mut times = vec![Vec::new(); teams.len()];
        let mut losses = vec!["-".to_owned(); 2];
        for round in 0..=ROUNDS {
            for (at, team) in teams.iter_mut().enumerate() {
                let turn = team.measure("step", batch, steps);
                // The first turn warms up, and shows that both train the same before rounding has had its say.
                if round > 0 {
                    times[at].extend(turn);
                } else {
                    losses[at] = format!("{:.6}", team.measure("loss", batch, 1)[0].as_secs_f64());
                }
            }
        }
        let rates: Vec<Option<f64>> = times.iter_mut().map(|times| rate(times)).collect();
        println!("{}", row(batch, rates[0], rates.get(1).copied().flatten(), &losses));
        teams.into_iter().for_each(Team::end);
    }
}

/// Steps in a second, by the median of the time that one takes.
fn rate(times: &mut [Duration]) -> Option<f64> {
    times.sort();
    times.get(times.len() / 2).map(|time| time.as_secs_f64().recip())
}

fn row(batch: usize, ours: Option<f64>, torch: Option<f64>, losses: &[String]) -> String {
    let show = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1} steps/s"));
    let ratio = ours.zip(torch).map_or("-".to_owned(), |(ours, torch)| format!("{:.2}", ours / torch));
    format!("{batch:>6}{:>16}{:>16}{ratio:>8}{:>14}{:>14}", show(ours), show(torch), losses[0], losses[1])
}

fn variables(port: u16, (rank, world): (u32, u32)) -> WorkerEnv {
    let world_size = WorldSize::new(world).unwrap();
    WorkerEnv {
        rank: Rank(rank),
        local_rank: LocalRank(rank),
        world_size,
        local_world_size: LocalWorldSize(world_size.0),
        node_rank: NodeRank(0),
        node_count: NodeCount::ONE,
        role: Role { name: "default".to_owned(), rank: Rank(rank), world_size },
        master: Master { addr: "127.0.0.1".to_owned(), port, agent_store: true },
        restart_count: RestartCount(0),
        max_restarts: RestartCount(0),
        run_id: RunId("bench".to_owned()),
        error_file: None,
        signals_to_handle: String::new(),
        rankrun: None,
    }
}

fn torch_rank(python: &OsString, (rank, world): (u32, u32), port: u16) -> Line {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ddp/torch_ddp.py");
    let vars = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", port.to_string()),
        ("GLOO_SOCKET_IFNAME", "lo".to_owned()),
        ("OMP_NUM_THREADS", "1".to_owned()),
    ];
    let vars = vars.map(|(name, value)| (name.into(), value.into())).to_vec();
    (vec![python.clone(), script.into_os_string()], vars)
}

/// A port that nobody listens on now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
