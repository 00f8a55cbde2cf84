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

#[path = "../peers/mod.rs"]
mod peers;
mod rank;

use std::collections::HashMap;
use std::env;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use peers::place::{Hosts, Place, SERVE, Store};
use peers::{Peers, column, median};

const SIZES: [usize; 10] =
    [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];

const KINDS: [&str; 5] = ["direct", "staged", "tcp", "gloo", "copy"];

/// How often the kinds of calls take turns for one size, and how long each turn is, about.
const ROUNDS: usize = 5;
const TURN: Duration = Duration::from_millis(150);

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
        return peers::place::serve();
    }
    let options = options();
    let _hosts = (options.place == Place::TwoHosts).then(Hosts::up);
    let processors = peers::processors();
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
    let peers = Peers { place, world, processors };
    let mut ours = peers.ours(&store);
    // Between hosts much more than a copy goes on.
    let is_wanted = |kind: &str| {
        options.kinds.iter().any(|chosen| chosen == kind) && (kind != "copy" || place == Place::Here)
    };
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| is_wanted(kind)).collect();
    let python = peers::python().filter(|_| is_wanted("gloo"));
    let mut gloo = python.map(|python| peers.torch(&python, "all_reduce/gloo.py"));
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
                let calls = TURN.as_nanos() / median(known).unwrap().as_nanos().max(1);
                let calls = calls.clamp(3, 20_000) as usize;
                known.extend(team.measure(kind, bytes, calls));
            }
        }
        for (kind, times) in &mut times {
            medians.insert(*kind, median(times).unwrap());
        }
        println!("{}", row(bytes, &kinds, &medians));
    }
    ours.end();
    if let Some(gloo) = gloo {
        gloo.end();
    }
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
    let of = |kind: &str| medians.get(kind).copied();
    let ratio = |&(one, other): &(&str, &str)| {
        let both = of(one).zip(of(other));
        column(both, |(one, other)| format!("{:.2}", one.as_secs_f64() / other.as_secs_f64()))
    };
    let times: String = kinds.iter().map(|kind| format!("{:>14}", column(of(kind), show))).collect();
    let ratios: String = RATIOS.iter().map(|pair| format!("{:>14}", ratio(pair))).collect();
    format!("{bytes:>10}{times}{ratios}")
}

fn show(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1000.0 { format!("{micros:.2} µs") } else { format!("{:.2} ms", micros / 1000.0) }
}
