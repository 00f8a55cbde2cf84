//! Faults of hosts and networks. Each ends in a finished job with the right result, or in one clear error on every node,
//! and nothing is left running anywhere.

use std::fs;
use std::time::Duration;

use harness::{Fleet, Gate, Job, Name, Process, Refusal, Scratch, field, is_rankrun, is_soak};
use nix::sys::signal::Signal;

use super::{ENDPOINT, Team, assert_all_succeed, c10d, report_soak};

/// How often each fault happens.
fn times() -> usize {
    if is_soak() { 10 } else { 1 }
}

/// Lets the fault happen to a job of three hosts as often as is asked for.
#[track_caller]
fn repeat_fault(what: &str, nodes: &str, options: &[&str], fault: impl Fn(Team)) {
    if !is_rankrun() {
        return;
    }
    for _ in 0..times() {
        match Team::start(3, nodes, options) {
            Some(team) => fault(team),
            None => return,
        }
    }
    report_soak(what, times());
}

#[test]
fn killed_agent_is_dropped_and_peers_continue() {
    repeat_fault("agent killed", "1:3", &[], |mut team| {
        team.job(3).signal_to(team.agent_pid(3), Signal::SIGKILL);
        team.wait_for_world(2, &[(1, 1), (2, 1)]);
        let _ = team.take_job(3).wait();
        team.finish(&[1, 2]);
    });
}

#[test]
fn crashed_host_rejoins_after_healing() {
    repeat_fault("host crashed", "1:3", &[], |mut team| {
        team.fleet.crash(3);
        let _ = team.take_job(3).wait();
        team.wait_for_world(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.start_agent(3);
        team.wait_for_world(3, &[(1, 2), (2, 2), (3, 1)]);
        team.finish(&[1, 2, 3]);
    });
}

#[test]
fn partitioned_host_rejoins_after_healing() {
    repeat_fault("host cut off and healed", "1:3", &[], |team| {
        let worker = Process::open(team.worker_pid(3)).expect("the worker lives");
        team.fleet.disconnect(3);
        // The cut node ends its own workers without a message from its peers.
        team.job(3).expect_processes_gone(&[worker], Duration::from_secs(30));
        team.wait_for_world(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.wait_for_world(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finish(&[1, 2, 3]);
    });
}

/// The peers see the connection break, and the host gets resets for its packets. Its agent ends with an error that
/// names the store, long before a silent network makes it give up (after 30 s). A new agent may join.
#[test]
fn host_with_reset_connections_ends_with_store_error() {
    repeat_fault("host cut off by resets", "1:3", &[], |mut team| {
        let worker = Process::open(team.worker_pid(3)).expect("the worker lives");
        team.fleet.reject(3, Refusal::Reset);
        team.job(3).expect_processes_gone(&[worker], Duration::from_secs(30));
        let _ = team.job(3).ends_within(Duration::from_secs(20));
        team.take_job(3).wait().expect_exit_code(1).expect_stderr("th1:29400").expect_absent("panicked");
        team.wait_for_world(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.start_agent(3);
        team.wait_for_world(3, &[(1, 2), (2, 2), (3, 1)]);
        team.finish(&[1, 2, 3]);
    });
}

/// Open connections get no answer, as in a silent network. The agent waits until the route is back, and joins again.
#[test]
fn host_unreachable_by_icmp_rejoins() {
    repeat_fault("host cut off by ICMP", "1:3", &[], |team| {
        let worker = Process::open(team.worker_pid(3)).expect("the worker lives");
        team.fleet.reject(3, Refusal::Icmp);
        team.job(3).expect_processes_gone(&[worker], Duration::from_secs(30));
        team.wait_for_world(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.wait_for_world(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finish(&[1, 2, 3]);
    });
}

/// The peers try to reach the store until the join timeout is over: no message says that it will not come back.
#[test]
fn crash_of_store_host_ends_peers_with_store_error() {
    let times = ["--rdzv-conf", "join_timeout=8,read_timeout=8"];
    repeat_fault("store's host lost", "1:3", &times, |mut team| {
        team.fleet.crash(1);
        let _ = team.take_job(1).wait();
        for host in [2, 3] {
            let outcome = team.take_job(host).wait();
            outcome.expect_exit_code(1).expect_stderr("th1:29400").expect_absent("panicked");
        }
        team.wait_for_all();
    });
}

#[test]
fn simultaneous_worker_deaths_restart_job() {
    repeat_fault("a worker killed on each node", "3", &["--max-restarts", "3"], |team| {
        let workers = [1, 2, 3].map(|host| Process::open(team.worker_pid(host)).expect("the worker lives"));
        for worker in &workers {
            worker.signal(Signal::SIGKILL);
        }
        team.wait_for_world(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finish(&[1, 2, 3]);
    });
}

/// A lease of some seconds covers what TCP needs to send a packet again and again; where it does not, the nodes part and
/// meet once more.
#[test]
fn packet_loss_job_restarts_and_finishes() {
    repeat_fault("5 % of the packets lost", "3", &["--max-restarts", "3", "--lease", "5"], |team| {
        team.fleet.hosts().for_each(|host| team.fleet.drop_packets(host, 5));
        let worker = Process::open(team.worker_pid(2)).expect("the worker lives");
        worker.signal(Signal::SIGKILL);
        team.wait_for_world(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finish_after_partitions(&[1, 2, 3]);
    });
}

#[test]
fn packet_delay_job_finishes() {
    repeat_fault("50 ms of delay", "3", &["--max-restarts", "3", "--lease", "5"], |team| {
        team.fleet.hosts().for_each(|host| team.fleet.delay(host, Duration::from_millis(50)));
        let worker = Process::open(team.worker_pid(2)).expect("the worker lives");
        worker.signal(Signal::SIGKILL);
        team.wait_for_world(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finish_after_partitions(&[1, 2, 3]);
    });
}

/// Lost and late packets make no live node look dead: TCP retransmits them in time.
#[test]
fn packet_loss_within_lease_loses_no_node() {
    if !is_rankrun() {
        return;
    }
    let (times, millis) = if is_soak() { (10, 60_000) } else { (1, 15_000) };
    for _ in 0..times {
        let Some(fleet) = Fleet::start(4) else { return };
        for host in fleet.hosts() {
            fleet.drop_packets(host, 5);
            fleet.delay(host, Duration::from_millis(50));
        }
        let steps = ["place", "sum", &format!("sleep-ms={millis}"), "print=finished"];
        let start = |host| fleet.on(host, c10d(Name::Rankrun, ENDPOINT, "4").worker(steps)).start();
        let jobs: Vec<_> = fleet.hosts().map(start).collect();
        for outcome in assert_all_succeed(jobs) {
            assert_eq!(outcome.lines_with("place rank=").len(), 1, "{outcome}");
        }
        fleet.is_empty();
    }
    report_soak("5 % of the packets lost and 50 ms of delay", times);
}

/// When the first and the last instant of a worker were, in nanoseconds.
#[track_caller]
fn lifespan(scratch: &Scratch, pid: i32) -> (u64, u64) {
    let text = fs::read(scratch.path().join("lifespans").join(pid.to_string())).expect("it has lived");
    let number = |at: usize| u64::from_le_bytes(text[at..at + 8].try_into().expect("eight bytes"));
    (number(0), number(8))
}

/// Three agents with one worker each, which notes when it lives; those of the third stop for nothing but SIGKILL.
struct ThreeNodeJob {
    jobs: [Job; 3],
    gate: Gate,
    scratch: Scratch,
    fleet: Fleet,
}

impl ThreeNodeJob {
    #[track_caller]
    fn start() -> Option<Self> {
        let fleet = Fleet::start(3)?;
        let scratch = Scratch::new();
        let gate = Gate::new(&scratch, "gate");
        let lifespan_step = format!("lifespan={}", scratch.folder("lifespans", 0o777));
        let jobs = [1, 2, 3].map(|host| {
            let ignores_sigterm = (host == 3).then(|| "deaf".to_owned());
            let common = [lifespan_step.clone(), "place".to_owned(), "sum".to_owned(), gate.step()];
            let launch = c10d(Name::Rankrun, ENDPOINT, "2:3").args(["--lease", super::LEASE]);
            fleet.on(host, launch.worker(ignores_sigterm.into_iter().chain(common))).start()
        });
        jobs.iter().for_each(|job| drop(job.wait_for_line("world=3 total=6")));
        Some(Self { jobs, gate, scratch, fleet })
    }

    /// The pid of the newest worker of an agent.
    #[track_caller]
    fn newest_worker_pid(&self, at: usize) -> i32 {
        let line = self.jobs[at].wait_for_lines("place rank=", 1).pop().expect("a placement");
        field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a worker says its pid")
    }

    /// Lets the third node fall silent, and waits until the others have gone on without it: its worker was gone by then.
    #[track_caller]
    fn partition_third_node(&self, silence: impl FnOnce(&Self)) {
        let old = self.newest_worker_pid(2);
        let worker = Process::open(old).expect("the worker lives");
        silence(self);
        self.jobs[..2].iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
        // Without a kill it runs as long as this test waits.
        assert!(!worker.is_alive(), "the old round runs on beside the new one\n{}", self.jobs[2]);
        let (_, last) = lifespan(&self.scratch, old);
        for at in [0, 1] {
            let (first, _) = lifespan(&self.scratch, self.newest_worker_pid(at));
            assert!(last < first, "the old round ended {} us after the new one began", (last - first) / 1000);
        }
    }
}

/// A worker that ends by SIGKILL alone is gone when the peers, without a message of its node, go on without it.
#[test]
fn silent_node_ends_workers_before_next_round() {
    if !is_rankrun() {
        return;
    }
    for _ in 0..times() {
        let Some(nodes) = ThreeNodeJob::start() else { return };
        nodes.partition_third_node(|nodes| nodes.fleet.disconnect(3));
        let ThreeNodeJob { jobs: [one, two, three], gate, fleet, .. } = nodes;
        drop(three);
        gate.open(2);
        assert_all_succeed([one, two]);
        fleet.is_empty();
    }
    report_soak("the old round ends before the new one begins", times());
}

/// A stopped agent cannot end its workers: its guard does. When the agent continues, it joins again.
#[test]
fn stopped_agent_ends_workers_before_next_round() {
    if !is_rankrun() {
        return;
    }
    for _ in 0..times() {
        let Some(nodes) = ThreeNodeJob::start() else { return };
        let guard = nodes.jobs[2].pid();
        let agent = nodes.jobs[2].only_child_of(guard);
        nodes.partition_third_node(|nodes| nodes.jobs[2].signal_to(agent, Signal::SIGSTOP));
        nodes.jobs[2].signal_to(agent, Signal::SIGCONT);
        nodes.jobs.iter().for_each(|job| drop(job.wait_for_lines("world=3 total=6", 2)));
        assert_eq!(nodes.jobs[2].only_child_of(guard), agent, "the same agent");
        let ThreeNodeJob { jobs, gate, fleet, .. } = nodes;
        gate.open(3);
        let outcomes = assert_all_succeed(jobs);
        // The first round, and the one in which it is back; the others had one between the two.
        let round_counts: Vec<_> =
            outcomes.iter().map(|outcome| outcome.lines_with("place rank=").len()).collect();
        assert_eq!(round_counts, [3, 3, 2]);
        outcomes[2]
            .expect_stderr("this launcher stood still for longer than its lease")
            .expect_absent("failed");
        fleet.is_empty();
    }
    report_soak("an agent that stands still has no workers beside the next round", times());
}

/// A node that is cut off from the store ends at once on the user's signal, without a wait for the store.
#[test]
fn signal_ends_partitioned_node_at_once() {
    repeat_fault("cut-off node told to stop", "1:3", &["--lease", "6"], |mut team| {
        team.fleet.disconnect(3);
        team.job(3).signal(Signal::SIGTERM);
        team.job(3).ends_within(Duration::from_millis(1_500));
        team.take_job(3).wait().expect_exit_code(128 + Signal::SIGTERM as i32);
        team.fleet.heal(3);
        team.wait_for_world(2, &[(1, 1), (2, 1)]);
        team.finish(&[1, 2]);
    });
}
