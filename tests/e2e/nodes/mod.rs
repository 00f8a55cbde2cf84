//! Jobs of several hosts, each with its own network, name and loopback.
//!
//! Workers print their placement (`place`), add up their ranks on the workers' store (`sum`: what an earlier round has left
//! there is an error) and over connections of their own (`reduce`), and wait for the test at a gate.

mod addresses;
mod exclusion;
mod failure_attribution;
mod failure_cause;
mod faults;
mod firewalls;
mod foreign_clients;
mod hangs;
mod interfaces;
mod join_refused;
mod latency;
mod launcher_errors;
mod listening;
mod many_agents;
mod membership;
mod partial_partition;
mod process_groups;
mod protocol_versions;
mod restart_rules;
mod restart_times;
mod same_hostnames;
mod store_unreachable;
mod torchrun_interop;
mod torchrun_interop_losses;
mod wait_messages;
mod world_formation;

use harness::{Fleet, Gate, Job, Launch, Name, Outcome, Scratch, field, print_notice};

/// The endpoint of most jobs: host 1 has the store.
pub(crate) const ENDPOINT: &str = "th1:29400";

/// Short times, so that a dead torchrun agent is noticed within seconds too.
pub(crate) const TIMES: &str =
    "join_timeout=60,read_timeout=30,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=4";

/// An agent of an elastic job with one worker.
pub(crate) fn c10d(name: Name, endpoint: &str, nodes: &str) -> Launch {
    let launch = Launch::new(name).args(["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-backend", "c10d"]);
    launch.args(["--rdzv-endpoint", endpoint, "--rdzv-conf", TIMES])
}

/// An agent of a static job with one worker.
pub(crate) fn static_launch(name: Name, master: &str, nodes: usize, node_rank: usize) -> Launch {
    let launch = Launch::new(name).args(["--nnodes", &nodes.to_string()]);
    let launch = launch.args(["--node-rank", &node_rank.to_string(), "--rdzv-conf", "timeout=60"]);
    launch.args(["--master-addr", master, "--master-port", "29400"])
}

/// `rank of world, node of nodes` of each worker of these jobs, sorted.
pub(crate) fn placements_of(outcomes: &[Outcome]) -> Vec<String> {
    let lines = outcomes.iter().flat_map(|outcome| outcome.lines_with("place rank="));
    let mut placements: Vec<_> = lines
        .map(|line| {
            let of = |key| field(&line, key).unwrap_or("?").to_owned();
            format!("{} of {}, node {} of {}", of("rank"), of("world"), of("node"), of("nodes"))
        })
        .collect();
    placements.sort();
    placements
}

/// Waits for all ends; each must be a success.
#[track_caller]
pub(crate) fn assert_all_succeed(jobs: impl IntoIterator<Item = Job>) -> Vec<Outcome> {
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    for outcome in &outcomes {
        outcome.expect_exit_code(0).expect_absent("panicked");
    }
    outcomes
}

/// Waits until the workers of both hosts have met, and lets them go on to success.
#[track_caller]
pub(crate) fn assert_two_nodes_succeed(jobs: [Job; 2], gate: &Gate) {
    for job in &jobs {
        job.wait_for_line("world=2 total=3");
    }
    gate.open(2);
    assert_all_succeed(jobs);
}

/// A running job of our own agents with one worker each, which wait at the gate; a short lease. Its hosts come up with
/// it and go with it.
struct Team {
    jobs: Vec<Option<Job>>,
    gate: Gate,
    nodes: String,
    options: Vec<String>,
    _scratch: Scratch,
    fleet: Fleet,
}

/// The lease of a node without heartbeats, in seconds.
const LEASE: &str = "2";

impl Team {
    /// An agent on each of `hosts` hosts, of a job of so many nodes, once all workers have met.
    #[track_caller]
    fn start(hosts: usize, nodes: &str, options: &[&str]) -> Option<Self> {
        let fleet = Fleet::start(hosts)?;
        let scratch = Scratch::new();
        let gate = Gate::new(&scratch, "gate");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let jobs = (0..=hosts).map(|_| None).collect();
        let mut team = Self { jobs, gate, nodes: nodes.to_owned(), options, _scratch: scratch, fleet };
        for host in team.fleet.hosts() {
            team.start_agent(host);
        }
        team.wait_for_world(hosts, &team.fleet.hosts().map(|host| (host, 1)).collect::<Vec<_>>());
        Some(team)
    }

    /// Starts an agent on a host.
    #[track_caller]
    fn start_agent(&mut self, host: usize) {
        let launch = c10d(Name::Rankrun, ENDPOINT, &self.nodes).args(["--lease", LEASE]);
        let steps = ["place", "reduce=3", "sum", &self.gate.step(), "reduce=3", "print=finished"];
        let launch = launch.args(self.options.clone()).worker(steps);
        self.jobs[host] = Some(self.fleet.on(host, launch).start());
    }

    fn job(&self, host: usize) -> &Job {
        self.jobs[host].as_ref().expect("the agent was started")
    }

    /// Waits until the workers of these hosts have met in a world of that size, so often.
    #[track_caller]
    fn wait_for_world(&self, world: usize, hosts: &[(usize, usize)]) {
        let text = format!("world={world} total={}", world * (world + 1) / 2);
        for (host, times) in hosts {
            self.job(*host).wait_for_lines(&text, *times);
        }
    }

    /// The agent on a host, as the kernel calls it: the only child of the process that the test started.
    #[track_caller]
    fn agent_pid(&self, host: usize) -> i32 {
        self.job(host).only_child_of(self.job(host).pid())
    }

    /// The pid of the newest worker of a host.
    #[track_caller]
    fn worker_pid(&self, host: usize) -> i32 {
        let lines = self.job(host).wait_for_lines("place rank=", 1);
        let pid = lines.last().and_then(|line| field(line, "pid"));
        pid.and_then(|pid| pid.parse().ok()).expect("a worker says its pid")
    }

    /// Lets all workers of these hosts go on; every agent must end well, and nothing may be left on any host.
    #[track_caller]
    fn finish(self, hosts: &[usize]) {
        self.gate.open(hosts.len());
        self.assert_success(hosts);
    }

    /// As [`Team::finish`], where the network may part the nodes again at any time: workers that are started once
    /// more find the gate open.
    #[track_caller]
    fn finish_after_partitions(self, hosts: &[usize]) {
        self.gate.open(100 * hosts.len());
        self.assert_success(hosts);
    }

    #[track_caller]
    fn assert_success(mut self, hosts: &[usize]) {
        for host in hosts {
            self.take_job(*host)
                .wait()
                .expect_exit_code(0)
                .expect_stdout("finished")
                .expect_absent("panicked");
        }
        self.wait_for_all();
    }

    /// The agent of a host, to wait for its end.
    #[track_caller]
    fn take_job(&mut self, host: usize) -> Job {
        self.jobs[host].take().expect("the agent was started")
    }

    /// Waits for every agent that is left, also a killed one; nothing may be left on any host.
    #[track_caller]
    fn wait_for_all(mut self) {
        for job in self.jobs.iter_mut().filter_map(Option::take) {
            let _ = job.wait();
        }
        self.fleet.is_empty();
    }
}

/// Says what a soak has done.
pub(crate) fn report_soak(what: &str, times: usize) {
    if harness::is_soak() {
        print_notice(&format!("{what}: {times} of {times}"));
    }
}
