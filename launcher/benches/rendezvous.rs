//! How long agents take to find each other: ours, and torch's own handlers.
//!
//! `cargo bench -p rankrun --bench rendezvous [-- ROUNDS [MOST [TORCH]]]`. Agents are threads of one process, each with
//! connections of its own to one store, which the first one hosts. The first table: from the moment when all are told to
//! take part until the last one has its ranks; first a fresh job, so that connecting and naming oneself counts, and then
//! the next round of the same agents, as after a failure: that is what a restart costs beside the workers' own stop and
//! start. For 2 to MOST (200) agents, the median of ROUNDS (5), and for up to TORCH (16) agents beside it torch's
//! `DynamicRendezvousHandler` in threads of one Python over one `TCPStore` (`rendezvous_torch.py`), which take turns with
//! ours. torch's agents sleep a second between two looks, and up to 0.3 s before the first. Without a torchrun, found as
//! in `common`, its figures are left out.
//!
//! Then one fresh agent is let into a job that runs: from its start until it has its ranks.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench program starts programs, reads clocks, prints, and may panic"
)]

#[expect(dead_code, reason = "other benches use the rest")]
mod common;

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::rank::{LocalWorldSize, NodeCount, RestartCount, RunId};
use rankrun_core::rendezvous::{RendezvousCommand, Round, ShutdownKind};
use rankrun_core::spec::RendezvousSpec;
use rankrun_core::spec::rendezvous::{NetworkSpec, NodeRange, RoundTimes};
use rankrun_host::rendezvous::RendezvousEvent;
use rankrun_host::rendezvous::task::{NetworkRendezvous, Setup};

use common::{median, torchrun};

const DEFAULT_ROUNDS: usize = 5;
const DEFAULT_MOST: u32 = 200;
const DEFAULT_TORCH: u32 = 16;
const COUNTS: [u32; 8] = [2, 4, 8, 16, 25, 50, 100, 200];
/// Nothing takes longer, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let numbers: Vec<usize> = env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let number = |index: usize, default: usize| numbers.get(index).copied().unwrap_or(default);
    let rounds = number(0, DEFAULT_ROUNDS);
    let most = u32::try_from(number(1, DEFAULT_MOST as usize)).unwrap();
    let torch = u32::try_from(number(2, DEFAULT_TORCH as usize)).unwrap();
    let mut peer = torchrun().and_then(|path| Peer::start(&path));
    println!(
        "medians of {rounds}, in milliseconds; what is in brackets is torch's, and how many times ours that is\n"
    );
    println!("| agents | a fresh job | per agent | the next round | per agent |");
    println!("| ---: | ---: | ---: | ---: | ---: |");
    for count in COUNTS.into_iter().filter(|count| *count <= most) {
        row(count, rounds, peer.as_mut().filter(|_| count <= torch));
    }
    let joins: Vec<f64> = (0..rounds * 2).map(|_| newcomer()).collect();
    println!("\na fresh agent has its ranks in a running job of one {:.1} ms after its start", median(joins));
    ExitCode::SUCCESS
}

/// What one job took, in milliseconds.
#[derive(Clone, Copy)]
struct Times {
    fresh: f64,
    next: f64,
}

fn row(count: u32, rounds: usize, mut peer: Option<&mut Peer>) {
    let (mut our_times, mut torch_times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        our_times.push(job(count));
        torch_times.extend(peer.as_mut().map(|peer| peer.job(count)));
    }
    let cell = |pick: fn(&Times) -> f64| {
        let mine = median(our_times.iter().map(pick));
        let beside = if torch_times.is_empty() {
            String::new()
        } else {
            let ratios = our_times.iter().zip(&torch_times).map(|(mine, its)| pick(its) / pick(mine));
            format!(" ({:.0}, {:.0} times)", median(torch_times.iter().map(pick)), median(ratios))
        };
        (format!("{mine:.1}{beside}"), format!("{:.2}", mine / f64::from(count)))
    };
    let ((fresh, fresh_each), (next, next_each)) = (cell(|times| times.fresh), cell(|times| times.next));
    println!("| {count} | {fresh} | {fresh_each} | {next} | {next_each} |");
}

fn setup(port: u16, min: u32, max: u32) -> Setup {
    let nodes = |count| NodeCount::new(count).unwrap();
    Setup {
        spec: RendezvousSpec::C10d {
            named_by: None,
            run_id: RunId("bench".to_owned()),
            host: "localhost".to_owned(),
            port,
            local_addr: None,
            worker_store: false,
            nodes: NodeRange { min: nodes(min), max: nodes(max) },
            is_host: None,
            node_rank: None,
            // Hundreds of agents on a few processors may be late with a heartbeat.
            times: RoundTimes {
                lease: Duration::from_secs(60),
                last_call: Duration::from_millis(50),
                ..RoundTimes::default()
            },
        },
        network: NetworkSpec::default(),
        role: "default".to_owned(),
        workers: LocalWorldSize::ONE,
        entrypoint: "bench".to_owned(),
        version: "bench".to_owned(),
        max_restarts: RestartCount(0),
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn join(agents: &[NetworkRendezvous]) {
    for agent in agents {
        agent.send_command(JOIN);
    }
}

fn joined(agent: &NetworkRendezvous) -> Round {
    match next_event(agent) {
        RendezvousEvent::Joined { round, .. } => *round,
        next_event => panic!("{next_event:?}"),
    }
}

/// The next event that is not a mere message to the user.
fn next_event(agent: &NetworkRendezvous) -> RendezvousEvent {
    loop {
        match agent.receive() {
            Some(
                RendezvousEvent::Note(_) | RendezvousEvent::StoreUnreached(_) | RendezvousEvent::Waiting(_),
            ) => {}
            Some(event) => return event,
            None => {
                let mut fds = [PollFd::new(agent.as_fd(), PollFlags::POLLIN)];
                let ready = poll(&mut fds, PollTimeout::try_from(PATIENCE).unwrap()).unwrap();
                assert!(ready > 0, "nothing happens");
            }
        }
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

fn end(agents: Vec<NetworkRendezvous>) {
    // The host ends last, so that no agent waits for another.
    for agent in agents.into_iter().rev() {
        agent.end(ShutdownKind::Close { succeeded: true, failure: None, rule: None }, PATIENCE);
    }
}

const JOIN: RendezvousCommand =
    RendezvousCommand::Join { workers: LocalWorldSize::ONE, leaves_if_possible: false };

/// A job of so many agents.
fn job(count: u32) -> Times {
    let port = free_port();
    let start = Instant::now();
    let agents: Vec<_> =
        (0..count).map(|_| NetworkRendezvous::open(setup(port, count, count)).unwrap()).collect();
    join(&agents);
    for agent in &agents {
        assert_eq!(joined(agent).nodes.get(), count);
    }
    let fresh = millis(start);
    let start = Instant::now();
    join(&agents);
    for agent in &agents {
        // An agent that sees its peers before its own request is told that they wait.
        let round = loop {
            match next_event(agent) {
                RendezvousEvent::Joined { round, .. } => break round,
                RendezvousEvent::Changed(_) => {}
                next_event => panic!("{next_event:?}"),
            }
        };
        assert_eq!((round.number, round.nodes.get()), (1, count));
    }
    let next = millis(start);
    end(agents);
    Times { fresh, next }
}

/// One more agent in a running job.
fn newcomer() -> f64 {
    let port = free_port();
    let first = NetworkRendezvous::open(setup(port, 1, 2)).unwrap();
    first.send_command(JOIN);
    // No other agent joins: the last call is over only when it was given.
    joined(&first);
    let start = Instant::now();
    let second = NetworkRendezvous::open(setup(port, 1, 2)).unwrap();
    second.send_command(JOIN);
    assert!(matches!(next_event(&first), RendezvousEvent::Changed(_)));
    first.send_command(JOIN);
    assert_eq!(joined(&second).nodes.get(), 2);
    let took = millis(start);
    end(vec![first, second]);
    took
}

/// Torch's own agents, in one Python.
struct Peer {
    child: Child,
    jobs: ChildStdin,
    times: BufReader<ChildStdout>,
}

impl Peer {
    fn start(torchrun: &Path) -> Option<Self> {
        let python = torchrun.with_file_name("python");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/rendezvous_torch.py");
        let mut child =
            Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (jobs, times) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        Some(Self { child, jobs, times })
    }

    fn job(&mut self, count: u32) -> Times {
        writeln!(self.jobs, "{count}").unwrap();
        let mut line = String::new();
        self.times.read_line(&mut line).unwrap();
        let times: Vec<f64> = line.split_whitespace().map(|field| field.parse().unwrap()).collect();
        Times { fresh: times[0], next: times[1] }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
