//! Nodes with hundreds of milliseconds between them: they meet, restart, and come back after a cut.

use std::time::Duration;

use harness::{Fleet, Gate, Job, Name, Process, field, is_rankrun, is_soak};
use nix::sys::signal::Signal;

use super::{ENDPOINT, assert_all_succeed, c10d, static_launch};

/// Steps of each worker before the gate; the worker that waits for its turn at the store shows that the store answers.
const STEPS: [&str; 2] = ["place", "sum"];

/// Two hosts with this round trip between them: every packet waits for half of it where it arrives.
#[track_caller]
fn hosts_apart(round_trip: Duration) -> Option<Fleet> {
    let fleet = Fleet::start(2)?;
    fleet.hosts().for_each(|host| fleet.delay(host, round_trip / 2));
    Some(fleet)
}

/// Kills the newest worker of a job.
#[track_caller]
fn kill_worker(job: &Job) {
    let line = job.wait_for_lines("place rank=", 1).pop().expect("a worker sat");
    let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a worker says its pid");
    Process::open(pid).expect("the worker lives").signal(Signal::SIGKILL);
}

/// The nodes meet, a worker of the node without the store dies, the nodes meet again, and all succeed.
#[track_caller]
fn meet_and_restart(round_trip: Duration, agent: impl Fn(usize) -> harness::Launch) {
    let Some(fleet) = hosts_apart(round_trip) else { return };
    let gate = Gate::closed();
    let jobs = [1, 2].map(|host| {
        let launch = agent(host).args(["--max-restarts", "1"]);
        fleet.on(host, launch.worker([STEPS[0], STEPS[1], &gate.step(), "print=finished"])).start()
    });
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
    kill_worker(&jobs[1]);
    jobs.iter().for_each(|job| drop(job.wait_for_lines("world=2 total=3", 2)));
    gate.open(2);
    for outcome in assert_all_succeed(jobs) {
        // A node that was taken for lost would have started its workers once more.
        assert_eq!(outcome.expect_stdout("finished").lines_with("place rank=").len(), 2, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn nodes_250_ms_apart_meet_and_restart() {
    if is_rankrun() {
        meet_and_restart(Duration::from_millis(250), |_| c10d(Name::Rankrun, ENDPOINT, "2"));
    }
}

#[test]
fn nodes_500_ms_apart_meet_and_restart() {
    if is_rankrun() {
        meet_and_restart(Duration::from_millis(500), |_| c10d(Name::Rankrun, ENDPOINT, "2"));
    }
}

#[test]
fn static_nodes_500_ms_apart_meet_and_restart() {
    if is_rankrun() {
        meet_and_restart(Duration::from_millis(500), |host| static_launch(Name::Rankrun, "th1", 2, host - 1));
    }
}

/// The default lease of 5 s holds, and one of 60 s does not make it worse.
#[test]
fn nodes_1_s_apart_meet_and_restart() {
    if !is_rankrun() || !is_soak() {
        return;
    }
    let second = Duration::from_secs(1);
    // As by default: a node that writes its torchrun heartbeat every second would be in the way of the other's writes.
    let agent = |lease| {
        let launch =
            c10d(Name::Rankrun, ENDPOINT, "2").args(["--rdzv-conf", "join_timeout=60,read_timeout=30"]);
        launch.args(["--lease", lease])
    };
    meet_and_restart(second, |_| agent("5"));
    meet_and_restart(second, |_| agent("60"));
    meet_and_restart(second, |host| static_launch(Name::Rankrun, "th1", 2, host - 1));
}

#[test]
fn node_500_ms_away_rejoins_after_partition() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = hosts_apart(Duration::from_millis(500)) else { return };
    let gate = Gate::closed();
    let jobs = [1, 2].map(|host| {
        let steps = [STEPS[0], STEPS[1], &gate.step(), "print=finished"];
        fleet.on(host, c10d(Name::Rankrun, ENDPOINT, "1:2").worker(steps)).start()
    });
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
    let line = jobs[1].wait_for_line("place rank=");
    let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a worker says its pid");
    let worker = Process::open(pid).expect("the worker lives");
    fleet.disconnect(2);
    jobs[1].expect_processes_gone(&[worker], Duration::from_secs(30));
    jobs[0].wait_for_line("world=1 total=1");
    // The delay goes with the fault.
    fleet.heal(2);
    fleet.delay(2, Duration::from_millis(250));
    jobs.iter().for_each(|job| drop(job.wait_for_lines("world=2 total=3", 2)));
    gate.open(2);
    assert_all_succeed(jobs);
    fleet.is_empty();
}

/// One limit is in the error: the time for which the store was looked for.
#[test]
fn silent_store_error_names_applied_timeout() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    // Nothing arrives at host 1, and host 2 hears no refusal.
    fleet.disconnect(1);
    for lease in ["5", "60"] {
        let launch =
            c10d(Name::Rankrun, &format!("{}:29400", Fleet::address(1)), "2").args(["--lease", lease]);
        let launch = launch.args(["--rdzv-conf", "read_timeout=4"]).worker(["place"]);
        let outcome = fleet.on(2, launch).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("cannot reach the rendezvous store at `198.18.0.11:29400` within 4s");
        outcome.expect_stderr("no answer to any connection request");
        assert!(!outcome.stderr().contains("within 1.5s"), "{outcome}");
    }
    fleet.is_empty();
}
