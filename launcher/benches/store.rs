//! Operations per second of the training store with PyTorch's own client: our server beside torch's (libuv).
//!
//! `cargo bench -p rankrun --bench store [-- ROUNDS [NAME=PROGRAM...]]`. 1, 16 and 64 clients are processes of their own. All
//! servers run at the same time and take turns, ROUNDS (5) times. A row has the median rate of each server, how many times
//! the rate of torch's server that is, and the server's processor time for an operation (`store_torch.py`).
//!
//! PROGRAM is this bench program of another version, with `--serve`: it prints its port and ends with its input.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a bench program starts programs, prints, and may panic"
)]

#[expect(dead_code, reason = "other benches use the rest")]
mod common;

use std::env;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, ExitCode};

use rankrun_host::store::StoreServer;

const DEFAULT_ROUNDS: usize = 5;

fn main() -> ExitCode {
    if env::args().any(|word| word == "--serve") {
        return serve();
    }
    let Some(torchrun) = common::torchrun() else {
        eprintln!("no torchrun, and so no PyTorch: set RANKRUN_BENCH_TORCHRUN");
        return ExitCode::FAILURE;
    };
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let rounds = words.iter().find_map(|word| word.parse().ok()).unwrap_or(DEFAULT_ROUNDS);
    let status = Command::new(torchrun.with_file_name("python"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/store_torch.py"))
        .args([rounds.to_string(), format!("rankrun={} --serve", env::current_exe().unwrap().display())])
        .args(words.iter().filter(|word| word.contains('=')))
        .status();
    if status.unwrap().success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A store until the end of the input.
fn serve() -> ExitCode {
    let store = StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    println!("{}", store.local_addr().port());
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    ExitCode::SUCCESS
}
