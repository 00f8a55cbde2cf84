//! How long a restart and a join take over several hosts; the figures are told with `RANKRUN_SOAK=1`.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::time::{Duration, Instant};

use harness::{Fleet, Gate, Job, Launch, Name, Process, field, is_rankrun, is_soak, print_notice};
use nix::sys::signal::Signal;

use super::{ENDPOINT, assert_all_succeed, c10d};

/// Kills a worker of the first agent, and gives the time until every agent has its workers again.
#[track_caller]
fn time_restart(jobs: &[Job], workers: usize, attempts: usize) -> Duration {
    let lines = jobs[0].wait_for_lines("place rank=", workers * attempts);
    let pid = lines.last().and_then(|line| field(line, "pid")?.parse().ok()).expect("a pid");
    let worker = Process::open(pid).expect("the worker lives");
    let began = Instant::now();
    worker.signal(Signal::SIGKILL);
    for job in jobs {
        job.wait_for_lines("place rank=", workers * (attempts + 1));
    }
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The median of some restarts of these agents, which then end.
#[track_caller]
fn median_restart_time(launches: impl IntoIterator<Item = Launch>, workers: usize, times: usize) -> Duration {
    let gate = Gate::closed();
    let start =
        |launch: Launch| launch.args(["--max-restarts", "100"]).worker(["place", &gate.step()]).start();
    let jobs: Vec<_> = launches.into_iter().map(start).collect();
    for job in &jobs {
        job.wait_for_lines("place rank=", workers);
    }
    let all = (1..=times).map(|attempt| time_restart(&jobs, workers, attempt)).collect();
    gate.open(jobs.len() * workers);
    assert_all_succeed(jobs);
    median(all)
}

#[test]
fn restart_time_of_four_hosts() {
    if !is_rankrun() {
        return;
    }
    let times = if is_soak() { 20 } else { 2 };
    let Some(fleet) = Fleet::start(4) else { return };
    let launches = fleet.hosts().map(|host| fleet.on(host, c10d(Name::Rankrun, ENDPOINT, "4")));
    let four = median_restart_time(launches, 1, times);
    fleet.is_empty();
    let alone = median_restart_time([Launch::standalone(Name::Rankrun, 4)], 4, times);
    if is_soak() {
        print_notice(&format!(
            "restart of 4 workers: on 4 hosts {four:?}, on one {alone:?} (medians of {times})"
        ));
        let torchrun_jobs = fleet.hosts().map(|host| fleet.on(host, c10d(Name::Reference, ENDPOINT, "4")));
        print_notice(&format!(
            "restart of 4 workers on 4 hosts by torchrun: {:?}",
            median_restart_time(torchrun_jobs, 1, 3)
        ));
    }
}

#[test]
fn join_time_of_new_agent() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let gate = Gate::closed();
    let own = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "1:2").worker(["place", "sum", &gate.step()]);
        fleet.on(host, launch).start()
    };
    let first = own(1);
    first.wait_for_line("world=1 total=1");
    let joins = if is_soak() { 20 } else { 1 };
    let mut all = Vec::new();
    for join in 1..=joins {
        let began = Instant::now();
        let second = own(2);
        second.wait_for_line("place rank=");
        all.push(began.elapsed());
        second.wait_for_line("world=2 total=3");
        second.signal(Signal::SIGTERM);
        second.wait().expect_exit_code(128 + Signal::SIGTERM as i32);
        first.wait_for_lines("world=1 total=1", join + 1);
    }
    gate.open(1);
    first.wait().expect_exit_code(0);
    fleet.is_empty();
    if is_soak() {
        print_notice(&format!("a fresh agent has its worker after {:?} (median of {joins})", median(all)));
    }
}
