//! No process of a job survives the launcher, however the launcher dies.
//!
//! The jobs run below the fixture `subreaper`, which inherits every orphan and ends when none is left. It also counts
//! processes without a mark in a session of their own.

mod by_name;
mod bystanders;
mod ends;
mod starts;

use std::time::Duration;

use harness::{Job, Launch, Name, Process, Random, field, fixture, is_rankrun, is_soak, print_notice};
use nix::sys::signal::Signal;

pub(crate) const SWEEP_TIMEOUT: Duration = Duration::from_secs(1);
const WORKERS: usize = 2;
/// What each worker starts; like itself, none of them ends by anything but SIGKILL.
const FAMILY: [&str; 6] =
    ["catch", "helper=plain", "helper=group", "helper=session", "helper=daemon", "helper=bare-daemon"];
/// How many say that they are alive.
const ALIVE_COUNT: usize = WORKERS * FAMILY.len();
/// The last steps of a worker that cannot be found by its name, its command line, its environment or its streams.
const DISGUISED: [&str; 3] = ["rank1:close-stdio", "rename", "forever"];

/// Which of the two processes of the launcher is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Victim {
    Guard,
    Agent,
}

impl Victim {
    const BOTH: [Self; 2] = [Self::Guard, Self::Agent];

    /// The process; nothing where the launcher has ended. An agent that is not there yet is waited for.
    #[track_caller]
    fn find(self, job: &Job) -> Option<Process> {
        let guard = job.first_child_of(job.pid())?;
        match self {
            Self::Guard => Some(guard),
            Self::Agent => job.first_child_of(guard.pid),
        }
    }
}

/// A launch of a job that ends only when nothing of it is left.
pub(crate) fn launch_under_subreaper(name: Name, workers: usize) -> Launch {
    Launch::standalone(name, workers).under([fixture("subreaper")])
}

fn family_steps(middle: &[&'static str]) -> Vec<&'static str> {
    FAMILY.iter().chain(middle).chain(&DISGUISED).copied().collect()
}

/// Kills that often, at a moment that `reach` has come to, and `later` at most: guard and agent in turn, under both
/// names.
#[track_caller]
fn assert_kills_leave_nothing(
    moment: &str,
    max_delay: Duration,
    start_job: impl Fn(Name, &mut Random) -> Job,
) {
    if !is_rankrun() {
        return;
    }
    let rounds = if is_soak() { 100 } else { 6 };
    let mut random = Random::seeded();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let victim = Victim::BOTH[round % 2];
        let job = start_job(Name::both()[round / 2 % 2], &mut random);
        let process = victim.find(&job);
        random.pause(max_delay);
        if let Some(process) = process {
            process.signal(Signal::SIGKILL);
        }
        slowest = slowest.max(job.ends_within(SWEEP_TIMEOUT));
    }
    if is_soak() {
        print_notice(&format!(
            "{moment}: {rounds} of {rounds} kills left nothing; the slowest took {slowest:?}"
        ));
    }
}

#[test]
fn launcher_killed_during_worker_start_leaves_nothing() {
    assert_kills_leave_nothing("start", Duration::from_millis(40), |name, _| {
        launch_under_subreaper(name, 2 * WORKERS).worker(family_steps(&["alive"])).start()
    });
}

/// A job that was seen alive with all its processes. Its rank 0 fails when something is typed.
#[track_caller]
fn start_family(name: Name, grace: &str) -> Job {
    let launch = launch_under_subreaper(name, WORKERS).env("RANKRUN_GRACE", grace).stdin_open();
    let job = launch.worker(family_steps(&["alive", "rank0:read", "rank0:exit=4"])).start();
    job.wait_for_lines("alive rank=", ALIVE_COUNT);
    job
}

#[test]
fn launcher_killed_at_random_moments_leaves_nothing() {
    let later = Duration::from_millis(30);
    assert_kills_leave_nothing("run", later, |name, _| start_family(name, "30"));
}

/// Told to stop, told twice, or after a failure; within the grace, at its end, in the sweep, or during the final report.
#[test]
fn launcher_killed_during_shutdown_leaves_nothing() {
    assert_kills_leave_nothing("stop", Duration::from_millis(20), |name, random| {
        let grace = random.either("3600", "0.005");
        let mut job = start_family(name, grace);
        let guard = Victim::Guard.find(&job).expect("the guard lives until it is told to end");
        match random.below(3) {
            0 => job.type_text("\n"),
            1 => guard.signal(Signal::SIGTERM),
            _ => {
                guard.signal(Signal::SIGTERM);
                random.pause(Duration::from_millis(5));
                guard.signal(Signal::SIGINT);
            }
        }
        job
    });
}

/// Short generations, one after the other.
#[test]
fn launcher_killed_during_restarts_leaves_nothing() {
    assert_kills_leave_nothing("restart", Duration::from_millis(60), |name, _| {
        let launch = launch_under_subreaper(name, WORKERS)
            .args(["--max-restarts", "100000"])
            .env("RANKRUN_GRACE", "0.005");
        let steps = [
            "catch",
            "helper=daemon",
            "helper=session",
            "helper=bare-daemon",
            "alive",
            "rank0:exit=4",
            "forever",
        ];
        let job = launch.worker(steps).start();
        job.wait_for_line(" attempt=2 ");
        job
    });
}

/// Workers that end by themselves leave children, too.
#[test]
fn launcher_killed_after_worker_ended_leaves_no_children() {
    if !is_rankrun() {
        return;
    }
    for victim in Victim::BOTH {
        let launch = launch_under_subreaper(Name::Rankrun, WORKERS);
        let job = launch.worker(family_steps(&["alive", "rank0:exit=0"])).start();
        let lines = job.wait_for_lines("alive rank=", ALIVE_COUNT);
        let worker = lines.iter().find(|line| line.contains("rank=0") && line.contains("process=worker"));
        let pid = worker.and_then(|line| field(line, "pid")?.parse().ok()).expect("rank 0 said its pid");
        if let Some(worker) = Process::open(pid) {
            assert!(worker.reaped_within(Duration::from_secs(20)), "rank 0 is still there\n{job}");
        }
        victim.find(&job).expect("rank 1 runs").signal(Signal::SIGKILL);
        job.ends_within(SWEEP_TIMEOUT);
    }
}

#[test]
fn agent_killed_fails_job() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let job = start_family(*name, "30");
        Victim::Agent.find(&job).expect("the job runs").signal(Signal::SIGKILL);
        let outcome = job.wait();
        assert!(!outcome.status.success(), "{outcome}");
        outcome.expect_stderr("SIGKILL");
    }
}

/// The sweep finds a process that forks and exits, so that each look sees another pid.
#[test]
fn endlessly_forking_process_is_caught() {
    if !is_rankrun() {
        return;
    }
    for victim in Victim::BOTH {
        let job = launch_under_subreaper(Name::Rankrun, 1)
            .worker(["catch", "helper=hopper", "alive", "forever"])
            .start();
        job.wait_for_line("process=worker");
        job.wait_for_line("process=hopper");
        victim.find(&job).expect("the job runs").signal(Signal::SIGKILL);
        let took = job.ends_within(Duration::from_secs(10));
        if is_soak() {
            print_notice(&format!("the forking process was caught after {took:?}"));
        }
    }
}
