//! Nobody survives the launcher, however it dies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Job, Launch, Name, Process, field, only_ours, soak};
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(1);
const WORKERS: usize = 2;
/// Each of them has a plain helper and a daemon, and says so itself.
const ALIVE: usize = 3 * WORKERS;

/// Which of the two processes of the launcher is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Guard,
    Agent,
}

/// A job whose every process ignores SIGTERM and was seen alive.
#[track_caller]
fn stubborn_family(name: Name) -> Job {
    let launch = Launch::standalone(name, WORKERS).args(["--max-restarts", "3"]);
    let job = launch.worker(["catch", "helper=plain", "helper=daemon", "alive", "forever"]).start();
    job.lines("alive rank=", ALIVE);
    job
}

#[track_caller]
fn kill(job: &Job, victim: Victim) {
    let pid = match victim {
        Victim::Guard => job.pid(),
        Victim::Agent => job.only_child_of(job.pid()),
    };
    job.signal_to(pid, Signal::SIGKILL);
}

#[test]
fn killed_at_random_moments_nothing_is_left() {
    if !only_ours() {
        return;
    }
    let rounds = if soak() { 50 } else { 6 };
    let mut random = Random::seeded();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let victim = if round % 2 == 0 { Victim::Guard } else { Victim::Agent };
        let name = Name::both()[round / 2 % 2];
        let job = stubborn_family(name);
        // The moment is what is tested; nothing is waited for.
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        kill(&job, victim);
        slowest = slowest.max(job.leaves_nothing_within(LIMIT));
    }
    if soak() {
        harness::tell(&format!("{rounds} of {rounds} kills left nothing; the slowest took {slowest:?}"));
    }
}

#[test]
fn killed_while_workers_start_nothing_is_left() {
    if !only_ours() {
        return;
    }
    let mut random = Random::seeded();
    for round in 0..if soak() { 50 } else { 6 } {
        let launch = Launch::standalone(Name::Rankrun, 8);
        let job = launch.worker(["catch", "helper=daemon", "alive", "forever"]).start();
        job.line("alive rank=");
        std::thread::sleep(Duration::from_micros(random.below(5_000)));
        kill(&job, if round % 2 == 0 { Victim::Guard } else { Victim::Agent });
        job.leaves_nothing_within(LIMIT);
    }
}

#[test]
fn killed_while_workers_are_stopped_nothing_is_left() {
    if !only_ours() {
        return;
    }
    for victim in [Victim::Guard, Victim::Agent] {
        let launch = Launch::standalone(Name::Rankrun, 2).args(["--shutdown-timeout", "3600"]);
        let job = launch.worker(["catch", "helper=daemon", "alive", "signal", "forever"]).start();
        job.lines("alive rank=", 4);
        job.signal(Signal::SIGTERM);
        job.lines("got SIGTERM", 2);
        kill(&job, victim);
        job.leaves_nothing_within(LIMIT);
    }
}

#[test]
fn daemons_without_our_mark_are_found_as_descendants() {
    if !only_ours() {
        return;
    }
    for victim in [Victim::Guard, Victim::Agent] {
        let job =
            Launch::standalone(Name::Rankrun, 1).worker(["helper=bare-daemon", "alive", "forever"]).start();
        job.line("who=worker");
        let line = job.line("who=bare-daemon");
        let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a pid");
        let daemon = Process::open(pid).expect("the daemon lives");
        kill(&job, victim);
        job.leaves_nothing_within(LIMIT);
        job.outlived_by_none(&[daemon], LIMIT);
    }
}

#[test]
fn a_killed_agent_is_no_success() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let job = stubborn_family(*name);
        kill(&job, Victim::Agent);
        let outcome = job.wait();
        assert!(!outcome.status.success(), "{outcome}");
        outcome.complains("SIGKILL");
    }
}

/// Moments from a seed that is printed: a failure can be repeated with `RANKRUN_SEED`.
struct Random(u64);

impl Random {
    #[expect(clippy::disallowed_methods, reason = "the seed comes from outside")]
    fn seeded() -> Self {
        let given = std::env::var("RANKRUN_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |age| u64::from(age.subsec_nanos()));
        let seed = given.unwrap_or_else(clock);
        harness::tell(&format!("RANKRUN_SEED={seed}"));
        Self(seed | 1)
    }

    /// xorshift64.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
