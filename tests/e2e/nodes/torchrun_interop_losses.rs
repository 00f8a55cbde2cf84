//! Nodes of torchrun 2.15 and of ours in one job, of which one is killed with its workers: the others go on, and a spare of
//! the other kind takes its place.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::time::{Duration, Instant};

use harness::{Fleet, Gate, Job, Launch, Name, is_soak, print_notice};
use nix::sys::signal::Signal;

use super::{TIMES, assert_all_succeed};

/// A dead torchrun agent is noticed within seconds; but no round is without one that is slow to start.
const PATIENT: &str = "join_timeout=60,last_call_timeout=40,keep_alive_interval=1,keep_alive_max_attempt=4";
/// torchrun's own times: a node is dead after 15 s. The last call is twice as long, so that it shows where it is waited out.
const DEFAULT: &str = "keep_alive_interval=5,keep_alive_max_attempt=3,last_call_timeout=60";
/// With either of these settings the others go on before a last call is over, whichever torchrun agent finds the dead
/// one first.
const SOON: Duration = Duration::from_secs(35);

/// A job of one agent on each of some hosts; the first of them has rank 0 in every round.
struct Mixed<'a> {
    fleet: &'a Fleet,
    gate: &'a Gate,
    /// The host of the store.
    store: usize,
    nodes: &'a str,
    /// `--rdzv-conf`
    times: &'a str,
}

impl Mixed<'_> {
    fn start(&self, host: usize, name: Name) -> Job {
        let launch = Launch::new(name).args(["--nnodes", self.nodes, "--rdzv-id", "job"]);
        let endpoint = format!("th{}:29400", self.store);
        let launch = launch.args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
        // Ranks follow the addresses as text; torchrun says that it is a spare only in its own debugging words.
        let launch = launch.args(["--rdzv-conf", self.times, "--local-addr", &Fleet::address(host)]);
        let launch = launch.env("TORCH_LOGS", "+torch.distributed.elastic.rendezvous.dynamic_rendezvous");
        let launch = launch.limit(Duration::from_secs(120));
        self.fleet.on(host, launch.worker(["place", "sum", &self.gate.step()])).start()
    }
}

/// No process of the job's is left, and no word is said.
#[track_caller]
fn kill(job: Job) {
    for process in job.processes() {
        process.signal(Signal::SIGKILL);
    }
    let _ = job.wait();
}

/// Waits until the workers of these agents have met so often in a world of that size.
#[track_caller]
fn wait_for_rounds(jobs: &[Job], world: usize, times: usize) {
    for job in jobs {
        job.wait_for_lines(&format!("world={world} total={}", world * (world + 1) / 2), times);
    }
}

/// The last of these agents, torchrun's, is killed: the others go on.
#[track_caller]
fn kill_torchrun_agent(kinds: &[Name], store: usize, times: &str) {
    let world = kinds.len();
    let Some(fleet) = Fleet::start(world) else { return };
    let gate = Gate::closed();
    let nodes = format!("{}:{world}", world - 1);
    let mixed = Mixed { fleet: &fleet, gate: &gate, store, nodes: &nodes, times };
    let mut jobs: Vec<_> = kinds.iter().zip(1..).map(|(name, host)| mixed.start(host, *name)).collect();
    wait_for_rounds(&jobs, world, 1);
    let killed = jobs.pop().expect("there are agents");
    let began = Instant::now();
    kill(killed);
    wait_for_rounds(&jobs, world - 1, 1);
    let took = began.elapsed();
    assert!(took < SOON, "every live agent was there, and the others went on after {took:?} only");
    if is_soak() {
        print_notice(&format!("all but the last of {kinds:?} go on after {took:?} (`{times}`)"));
    }
    gate.open(world - 1);
    for outcome in assert_all_succeed(jobs) {
        assert_eq!(outcome.lines_with("place rank=").len(), 2, "{outcome}");
    }
    fleet.is_empty();
}

use Name::{Rankrun as Ours, Reference as Torchrun};

#[test]
fn killed_torchrun_agent_with_rankrun_rank_0_is_dropped() {
    kill_torchrun_agent(&[Ours, Torchrun, Ours, Torchrun], 1, PATIENT);
}

/// Only our agent is there to find it dead.
#[test]
fn killed_only_torchrun_agent_is_dropped() {
    kill_torchrun_agent(&[Ours, Torchrun], 1, PATIENT);
}

#[test]
fn killed_torchrun_agent_with_torchrun_rank_0_and_store_is_dropped() {
    kill_torchrun_agent(&[Torchrun, Ours, Ours, Torchrun], 1, PATIENT);
}

#[test]
fn killed_torchrun_agent_with_default_timeouts_is_dropped() {
    if is_soak() {
        kill_torchrun_agent(&[Ours, Torchrun, Ours, Torchrun], 1, DEFAULT);
        kill_torchrun_agent(&[Torchrun, Ours, Ours, Torchrun], 2, DEFAULT);
    }
}

/// The last of these members is killed, and there is a spare of that kind on the next host.
#[track_caller]
fn replace_with_spare(members: &[Name], spare: Name) {
    let world = members.len();
    let Some(fleet) = Fleet::start(world + 1) else { return };
    let gate = Gate::closed();
    let mixed = Mixed { fleet: &fleet, gate: &gate, store: 1, nodes: &world.to_string(), times: TIMES };
    let mut jobs: Vec<_> = members.iter().zip(1..).map(|(name, host)| mixed.start(host, *name)).collect();
    wait_for_rounds(&jobs, world, 1);
    let waits = mixed.start(world + 1, spare);
    waits.wait_for_line(if spare == Torchrun { "is in redundancy list" } else { "spare" });
    let killed = jobs.pop().expect("there are members");
    let began = Instant::now();
    kill(killed);
    wait_for_rounds(std::slice::from_ref(&waits), world, 1);
    wait_for_rounds(&jobs, world, 2);
    if is_soak() {
        let took = began.elapsed();
        print_notice(&format!("a spare {spare:?} takes over from the last of {members:?} after {took:?}"));
    }
    gate.open(world);
    assert_eq!(assert_all_succeed([waits])[0].lines_with("place rank=").len(), 1);
    for outcome in assert_all_succeed(jobs) {
        assert_eq!(outcome.lines_with("place rank=").len(), 2, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn torchrun_spare_replaces_rankrun_node() {
    replace_with_spare(&[Ours, Ours], Torchrun);
}

#[test]
fn rankrun_spare_replaces_torchrun_node() {
    replace_with_spare(&[Torchrun, Torchrun], Ours);
}

/// Those that are left; but without one of ours two of torchrun cannot meet where the first one has published already
/// (contract 8.2).
#[test]
fn spares_of_other_mixed_jobs_replace_lost_node() {
    if is_soak() {
        replace_with_spare(&[Ours, Torchrun], Torchrun);
        replace_with_spare(&[Ours, Torchrun], Ours);
        replace_with_spare(&[Torchrun, Ours], Ours);
        replace_with_spare(&[Torchrun, Ours, Torchrun], Torchrun);
    }
}
