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
#[path = "../peers/mod.rs"]
#[expect(dead_code, reason = "another bench uses test hosts, too")]
mod peers;
mod rank;
mod restart;

use std::env;
use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::Duration;

use peers::Peers;
use peers::place::{Place, Store};
use peers::team::Team;

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
    let python = peers::python();
    compare(world, python.as_deref());
    restart::compare(world, python.as_deref());
    ExitCode::SUCCESS
}

fn compare(world: u32, python: Option<&OsStr>) {
    let processors = peers::processors();
    let peers = Peers { place: Place::Here, world, processors: &processors };
    println!("{world} ranks on {} processors", processors.len());
    println!(
        "{:>6}{:>16}{:>16}{:>8}{:>14}{:>14}",
        "batch", "ours", "torch", "ratio", "our loss", "torch loss"
    );
    for (batch, steps) in TURNS {
        let store = Store::start(Place::Here);
        let ours = peers.ours(&store);
        let torch = python.map(|python| peers.torch(python, "ddp/torch_ddp.py"));
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
    peers::median(times).map(|time| time.as_secs_f64().recip())
}

fn row(batch: usize, ours: Option<f64>, torch: Option<f64>, losses: &[String]) -> String {
    let show = |rate| peers::column(rate, |rate: f64| format!("{rate:.1} steps/s"));
    let ratio = peers::column(ours.zip(torch), |(ours, torch)| format!("{:.2}", ours / torch));
    format!("{batch:>6}{:>16}{:>16}{ratio:>8}{:>14}{:>14}", show(ours), show(torch), losses[0], losses[1])
}
