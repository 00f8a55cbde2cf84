//! How long an `all_reduce` of `f32` takes between processes, beside gloo of PyTorch: interleaved calls of the same sizes in one run,
//! ranks of both pinned to the same processors, one thread for each rank.
//!
//! `RANKRUN_TEST_PYTHON=PYTHON cargo bench -p rankrun-worker --bench all_reduce [-- [--hosts] [--min BYTES] [--max BYTES]
//! [--only KIND,...] [RANKS...]]`; 2, 4 and 8 ranks, unless said. Without the Python there is no gloo. With `--hosts`, which needs
//! root, half of the ranks are on each of two test hosts (`tests/hosts/hosts.sh`; `TH_ID` names them).
//!
//! Medians over all calls of rank 0, by kind. `direct` is memory of the group, `staged` memory of the program, `tcp` the backend of
//! that name, and `copy` one `memcpy` of as much traffic as a rank has in `direct`, of all ranks at once.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench program starts programs, reads clocks, prints, and may panic"
)]

mod rank;
#[path = "../../tests/runtime/server.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;
mod team;

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use rankrun_contract::env::{Master, Role, WorkerEnv};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank, RestartCount, RunId};
use rankrun_worker::{Rank, WorldSize};
use team::{Hosts, Line, Place, SERVE, Store, Team};

const SIZES: [usize; 10] =
    [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];

const KINDS: [&str; 5] = ["direct", "staged", "tcp", "gloo", "copy"];

/// How often the kinds of calls take turns for one size, and how long each turn is, about.
const ROUNDS: usize = 5;
const TURN: Duration = Duration::from_millis(150);

/// Addresses of the test hosts 0 and 1.
const SEAT: &str = "198.18.0.10";
const FIRST_HOST: &str = "198.18.0.11";

struct Options {
    place: Place,
    worlds: Vec<u32>,
    sizes: RangeInclusive<usize>,
    kinds: Vec<String>,
}

fn main() -> ExitCode {
    if env::var_os("RANK").is_some() {
        return rankrun_worker::run(rank::run);
    }
    if env::args().nth(1).as_deref() == Some(SERVE) {
        return team::serve();
    }
    let options = options();
    let _hosts = (options.place == Place::TwoHosts).then(Hosts::up);
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let processors: Vec<usize> =
        (0..CpuSet::count()).filter(|&it| allowed.is_set(it).unwrap_or(false)).collect();
    for &world in &options.worlds {
        compare(&options, world, &processors);
    }
    ExitCode::SUCCESS
}

fn options() -> Options {
    let kinds = KINDS.map(str::to_owned).to_vec();
    let mut options = Options { place: Place::Here, worlds: Vec::new(), sizes: 0..=usize::MAX, kinds };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap();
        match argument.as_str() {
            "--hosts" => options.place = Place::TwoHosts,
            "--min" => options.sizes = value().parse().unwrap()..=*options.sizes.end(),
            "--max" => options.sizes = *options.sizes.start()..=value().parse().unwrap(),
            "--only" => options.kinds = value().split(',').map(str::to_owned).collect(),
            // Cargo says it to every bench.
            "--bench" => {}
            ranks => options.worlds.push(ranks.parse().unwrap()),
        }
    }
    if options.worlds.is_empty() {
        options.worlds = vec![2, 4, 8];
    }
    options
}

/// One table: all sizes for one number of ranks.
fn compare(options: &Options, world: u32, processors: &[usize]) {
    let place = options.place;
    let store = Store::start(place);
    let mut ours = Team::start(place, world, processors, |rank| {
        let vars = variables(store.port(), place, (rank, world)).to_vars();
        let vars = vars.into_iter().map(|(name, value)| (name.into(), value));
        (vec![env::current_exe().unwrap().into_os_string()], vars.collect())
    });
    // Between hosts much more than a copy goes on.
    let is_wanted =
        |kind: &str| options.kinds.iter().any(|it| it == kind) && (kind != "copy" || place == Place::Here);
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| is_wanted(kind)).collect();
    let python = env::var_os("RANKRUN_TEST_PYTHON").filter(|_| is_wanted("gloo"));
    let mut gloo = python.map(|python| {
        let port = free_port();
        Team::start(place, world, processors, |rank| gloo_rank(&python, place, (rank, world), port))
    });
    println!(
        "{world} ranks on {} processors, {}",
        processors.len(),
        match place {
            Place::Here => "one host",
            Place::TwoHosts => "two hosts",
        }
    );
    println!("{}", header(&kinds));
    for bytes in SIZES.into_iter().filter(|bytes| options.sizes.contains(bytes)) {
        let mut medians = HashMap::new();
        let mut times: HashMap<&str, Vec<Duration>> = HashMap::new();
        for _ in 0..ROUNDS {
            for &kind in &kinds {
                let team = if kind == "gloo" { gloo.as_mut() } else { Some(&mut ours) };
                let Some(team) = team else { continue };
                let known = times.entry(kind).or_default();
                if known.is_empty() {
                    known.extend(team.measure(kind, bytes, 3));
                }
                let calls = TURN.as_nanos() / median(known).as_nanos().max(1);
                let calls = calls.clamp(3, 20_000) as usize;
                known.extend(team.measure(kind, bytes, calls));
            }
        }
        for (kind, times) in &mut times {
            medians.insert(*kind, median(times));
        }
        println!("{}", row(bytes, &kinds, &medians));
    }
    ours.end();
    if let Some(gloo) = gloo {
        gloo.end();
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// What is divided by what.
const RATIOS: [(&str, &str); 4] =
    [("gloo", "direct"), ("gloo", "staged"), ("gloo", "tcp"), ("direct", "copy")];

fn header(kinds: &[&str]) -> String {
    let kinds: String = kinds.iter().map(|kind| format!("{kind:>14}")).collect();
    let ratios: String =
        RATIOS.iter().map(|(one, other)| format!("{:>14}", format!("{one}/{other}"))).collect();
    format!("{:>10}{kinds}{ratios}", "bytes")
}

fn row(bytes: usize, kinds: &[&str], medians: &HashMap<&str, Duration>) -> String {
    let show = |kind: &&str| medians.get(*kind).map_or_else(|| "-".to_owned(), |&time| show(time));
    let ratio = |&(one, other): &(&str, &str)| match (medians.get(one), medians.get(other)) {
        (Some(one), Some(other)) => format!("{:.2}", one.as_secs_f64() / other.as_secs_f64()),
        _ => "-".to_owned(),
    };
    let times: String = kinds.iter().map(|kind| format!("{:>14}", show(kind))).collect();
    let ratios: String = RATIOS.iter().map(|it| format!("{:>14}", ratio(it))).collect();
    format!("{bytes:>10}{times}{ratios}")
}

fn show(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1000.0 { format!("{micros:.2} µs") } else { format!("{:.2} ms", micros / 1000.0) }
}

fn variables(port: u16, place: Place, (rank, world): (u32, u32)) -> WorkerEnv {
    let world_size = WorldSize::new(world).unwrap();
    let addr = if place == Place::Here { "127.0.0.1" } else { SEAT };
    WorkerEnv {
        rank: Rank(rank),
        local_rank: LocalRank(rank),
        world_size,
        local_world_size: LocalWorldSize(world_size.0),
        node_rank: NodeRank(0),
        node_count: NodeCount::ONE,
        role: Role { name: "default".to_owned(), rank: Rank(rank), world_size },
        master: Master { addr: addr.to_owned(), port, agent_store: true },
        restart_count: RestartCount(0),
        max_restarts: RestartCount(0),
        run_id: RunId("bench".to_owned()),
        error_file: None,
        signals_to_handle: String::new(),
        rankrun: None,
    }
}

fn gloo_rank(python: &OsString, place: Place, (rank, world): (u32, u32), port: u16) -> Line {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/all_reduce/gloo.py");
    let (addr, device) = match place {
        Place::Here => ("127.0.0.1", "lo"),
        Place::TwoHosts => (FIRST_HOST, "eth0"),
    };
    let vars = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world.to_string()),
        ("MASTER_ADDR", addr.to_owned()),
        ("MASTER_PORT", port.to_string()),
        ("GLOO_SOCKET_IFNAME", device.to_owned()),
        ("OMP_NUM_THREADS", "1".to_owned()),
    ];
    let vars = vars.map(|(name, value)| (name.into(), value.into())).to_vec();
    (vec![python.clone(), script.into_os_string()], vars)
}

/// A port that nobody listens on now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((IpAddr::from([127, 0, 0, 1]), 0)).unwrap();
    listener.local_addr().unwrap().port()
}
