//! How fast the memory of several ranks is reduced on one core, by element type and number of ranks, beside a copy of the same
//! memory: `cargo bench -p rankrun-worker --bench reduce`, with the bytes of one rank as an argument (64 MiB, unless said).
//!
//! GB/s of memory traffic: all sources are read and one target is written, as a copy reads one and writes one. Best of several
//! rounds, since the machine may be shared.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and its arguments")]
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rankrun_worker::ReduceOp;
use rankrun_worker::process_group::{Element, bf16, f16};

const RANKS: [usize; 6] = [2, 3, 4, 5, 6, 8];
const REDUCTIONS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Max];

/// How long each cell of the table is measured.
const TIME: Duration = Duration::from_millis(200);

fn main() {
    let bytes = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(64 << 20);
    println!("one rank has {bytes} bytes; GB/s of traffic");
    println!("{:<14}{}", "ranks", RANKS.map(|ranks| format!("{ranks:>8}")).concat());
    let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
    let copy = best(2 * bytes, || black_box(&mut target).copy_from_slice(black_box(&source)));
    println!("{:<14}{copy:>8.1}", "copy");
    row::<f32>(bytes, |value| value as f32);
    row::<f64>(bytes, f64::from);
    row::<f16>(bytes, |value| f16::from_bits(value as u16 & 0x3FFF));
    row::<bf16>(bytes, |value| bf16::from_bits(value as u16 & 0x3FFF));
    row::<i32>(bytes, |value| value as i32);
    row::<i64>(bytes, i64::from);
    row::<u8>(bytes, |value| value as u8);
}

/// A line for each reduction of one type.
fn row<T: Element>(bytes: usize, value: impl Fn(u32) -> T) {
    let rank =
        |rank: u32| (0..bytes / size_of::<T>()).map(|index| value(index as u32 ^ rank)).collect::<Vec<T>>();
    let mut target = rank(0);
    let sources: Vec<Vec<T>> = (1..8).map(rank).collect();
    let sources: Vec<&[T]> = sources.iter().map(Vec::as_slice).collect();
    for op in REDUCTIONS {
        let cells = RANKS.map(|ranks| {
            let speed = best((ranks + 1) * bytes, || {
                op.fold(black_box(&mut target), black_box(&sources[..ranks - 1]))
            });
            format!("{speed:>8.1}")
        });
        println!("{:<14}{}", format!("{} {op}", T::DATA_TYPE), cells.concat());
    }
}

/// GB/s of the best round.
fn best(traffic: usize, mut round: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut least = Duration::MAX;
    while started.elapsed() < TIME {
        let now = Instant::now();
        round();
        least = least.min(now.elapsed());
    }
    traffic as f64 / least.as_secs_f64() / 1e9
}
