//! How long a restart and a join take over several hosts; the figures are told with `RANKRUN_SOAK=1`.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::time::{Duration, Instant};

use harness::{Fleet, Gate, Job, Launch, Name, Process, field, only_ours, soak, tell};
use nix::sys::signal::Signal;

use super::{ENDPOINT, c10d, succeed};

/// Kills a worker of the first agent, and gives the time until every agent has its workers again.
#[track_caller]
fn restart(jobs: &[Job], workers: usize, lives: usize) -> Duration {
    let lines = jobs[0].lines("seat rank=", workers * lives);
    let pid = lines.last().and_then(|line| field(line, "pid")?.parse().ok()).expect("a pid");
    let worker = Process::open(pid).expect("the worker lives");
    let began = Instant::now();
    worker.signal(Signal::SIGKILL);
    for job in jobs {
        job.lines("seat rank=", workers * (lives + 1));
    }
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The median of some restarts of these agents, which then end.
#[track_caller]
fn restarts(launches: impl IntoIterator<Item = Launch>, workers: usize, times: usize) -> Duration {
    let gate = Gate::closed();
    let start =
        |launch: Launch| launch.args(["--max-restarts", "100"]).worker(["seat", &gate.step()]).start();
    let jobs: Vec<_> = launches.into_iter().map(start).collect();
    for job in &jobs {
        job.lines("seat rank=", workers);
    }
    let all = (1..=times).map(|life| restart(&jobs, workers, life)).collect();
    gate.open(jobs.len() * workers);
    succeed(jobs);
    median(all)
}

#[test]
fn a_restart_of_four_hosts() {
    if !only_ours() {
        return;
    }
    let times = if soak() { 20 } else { 2 };
    let Some(fleet) = Fleet::up(4) else { return };
    let launches = fleet.hosts().map(|host| fleet.on(host, c10d(Name::Rankrun, ENDPOINT, "4")));
    let four = restarts(launches, 1, times);
    fleet.is_empty();
    let alone = restarts([Launch::standalone(Name::Rankrun, 4)], 4, times);
    if soak() {
        tell(&format!("restart of 4 workers: on 4 hosts {four:?}, on one {alone:?} (medians of {times})"));
        let theirs = fleet.hosts().map(|host| fleet.on(host, c10d(Name::Reference, ENDPOINT, "4")));
        tell(&format!("restart of 4 workers on 4 hosts by torchrun: {:?}", restarts(theirs, 1, 3)));
    }
}

#[test]
fn a_fresh_agent_joins() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let gate = Gate::closed();
    let own = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "1:2").worker(["seat", "sum", &gate.step()]);
        fleet.on(host, launch).start()
    };
    let first = own(1);
    first.line("world=1 total=1");
    let joins = if soak() { 20 } else { 1 };
    let mut all = Vec::new();
    for join in 1..=joins {
        let began = Instant::now();
        let second = own(2);
        second.line("seat rank=");
        all.push(began.elapsed());
        second.line("world=2 total=3");
        second.signal(Signal::SIGTERM);
        second.wait().exits(128 + Signal::SIGTERM as i32);
        first.lines("world=1 total=1", join + 1);
    }
    gate.open(1);
    first.wait().exits(0);
    fleet.is_empty();
    if soak() {
        tell(&format!("a fresh agent has its worker after {:?} (median of {joins})", median(all)));
    }
}
