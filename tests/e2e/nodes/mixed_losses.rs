//! Nodes of torchrun 2.15 and of ours in one job, of which one is killed with its workers: the others go on, and a spare of
//! the other kind takes its place.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::time::{Duration, Instant};

use harness::{Fleet, Gate, Job, Launch, Name, soak, tell};
use nix::sys::signal::Signal;

use super::{TIMES, succeed};

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
        self.fleet.on(host, launch.worker(["seat", "sum", &self.gate.step()])).start()
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
fn met(jobs: &[Job], world: usize, times: usize) {
    for job in jobs {
        job.lines(&format!("world={world} total={}", world * (world + 1) / 2), times);
    }
}

/// The last of these agents, torchrun's, is killed: the others go on.
#[track_caller]
fn one_of_torchrun_is_killed(kinds: &[Name], store: usize, times: &str) {
    let world = kinds.len();
    let Some(fleet) = Fleet::up(world) else { return };
    let gate = Gate::closed();
    let nodes = format!("{}:{world}", world - 1);
    let mixed = Mixed { fleet: &fleet, gate: &gate, store, nodes: &nodes, times };
    let mut jobs: Vec<_> = kinds.iter().zip(1..).map(|(name, host)| mixed.start(host, *name)).collect();
    met(&jobs, world, 1);
    let killed = jobs.pop().expect("there are agents");
    let began = Instant::now();
    kill(killed);
    met(&jobs, world - 1, 1);
    let took = began.elapsed();
    assert!(took < SOON, "every live agent was there, and the others went on after {took:?} only");
    if soak() {
        tell(&format!("all but the last of {kinds:?} go on after {took:?} (`{times}`)"));
    }
    gate.open(world - 1);
    for outcome in succeed(jobs) {
        assert_eq!(outcome.lines_with("seat rank=").len(), 2, "{outcome}");
    }
    fleet.is_empty();
}

use Name::{Rankrun as Ours, Reference as Torchrun};

#[test]
fn a_torchrun_agent_is_killed_where_we_have_rank_0() {
    one_of_torchrun_is_killed(&[Ours, Torchrun, Ours, Torchrun], 1, PATIENT);
}

/// Only our agent is there to find it dead.
#[test]
fn the_only_torchrun_agent_is_killed() {
    one_of_torchrun_is_killed(&[Ours, Torchrun], 1, PATIENT);
}

#[test]
fn a_torchrun_agent_is_killed_where_torchrun_has_rank_0_and_the_store() {
    one_of_torchrun_is_killed(&[Torchrun, Ours, Ours, Torchrun], 1, PATIENT);
}

#[test]
fn a_torchrun_agent_is_killed_and_nobody_has_set_any_time() {
    if soak() {
        one_of_torchrun_is_killed(&[Ours, Torchrun, Ours, Torchrun], 1, DEFAULT);
        one_of_torchrun_is_killed(&[Torchrun, Ours, Ours, Torchrun], 2, DEFAULT);
    }
}

/// The last of these members is killed, and there is a spare of that kind on the next host.
#[track_caller]
fn a_spare_takes_over(members: &[Name], spare: Name) {
    let world = members.len();
    let Some(fleet) = Fleet::up(world + 1) else { return };
    let gate = Gate::closed();
    let mixed = Mixed { fleet: &fleet, gate: &gate, store: 1, nodes: &world.to_string(), times: TIMES };
    let mut jobs: Vec<_> = members.iter().zip(1..).map(|(name, host)| mixed.start(host, *name)).collect();
    met(&jobs, world, 1);
    let waits = mixed.start(world + 1, spare);
    waits.line(if spare == Torchrun { "is in redundancy list" } else { "spare" });
    let killed = jobs.pop().expect("there are members");
    let began = Instant::now();
    kill(killed);
    met(std::slice::from_ref(&waits), world, 1);
    met(&jobs, world, 2);
    if soak() {
        let took = began.elapsed();
        tell(&format!("a spare {spare:?} takes over from the last of {members:?} after {took:?}"));
    }
    gate.open(world);
    assert_eq!(succeed([waits])[0].lines_with("seat rank=").len(), 1);
    for outcome in succeed(jobs) {
        assert_eq!(outcome.lines_with("seat rank=").len(), 2, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn a_spare_of_torchrun_takes_the_place_of_ours() {
    a_spare_takes_over(&[Ours, Ours], Torchrun);
}

#[test]
fn a_spare_of_ours_takes_the_place_of_torchruns() {
    a_spare_takes_over(&[Torchrun, Torchrun], Ours);
}

/// Those that are left; but without one of ours two of torchrun cannot meet where the first one has published already
/// (contract 8.2).
#[test]
fn other_spares_of_mixed_jobs() {
    if soak() {
        a_spare_takes_over(&[Ours, Torchrun], Torchrun);
        a_spare_takes_over(&[Ours, Torchrun], Ours);
        a_spare_takes_over(&[Torchrun, Ours], Ours);
        a_spare_takes_over(&[Torchrun, Ours, Torchrun], Torchrun);
    }
}
