//! A real Slurm cluster on several hosts of this machine, made by `tests/hosts/slurm-cluster.sh`.
#![expect(clippy::disallowed_methods, reason = "the cluster is asked and awaited")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::fleet::Fleet;
use crate::launch::Launch;
use crate::processes::Process;
use crate::settings::print_notice;

/// Slurm notices a lost node within 30 s, ends what is left of a step after its `KillWait`, 5 s here, and looks at time
/// limits, which are whole minutes, every 30 s.
const LIMIT: Duration = Duration::from_secs(120);

/// How Slurm finds the processes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessTracking {
    /// By their parents: each process gets Slurm's signals, and what has left its parents stays.
    Parents,
    /// By a cgroup, as most clusters do: the task alone gets the signals, and all are killed at the end.
    Cgroup,
}

/// Nodes `th1`, `th2`, …, each with 8 CPUs and 8 devices that are none, and `th0`, from which jobs are submitted.
#[derive(Debug)]
pub struct SlurmCluster {
    fleet: Fleet,
    size: usize,
}

impl SlurmCluster {
    /// A cluster with so many nodes, all idle; nothing where this machine permits no namespaces or lacks Slurm.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    #[track_caller]
    pub fn start(size: usize, tracking: ProcessTracking) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
        if let Some(missing) = ["slurmctld", "slurmd", "srun", "munged"].iter().find(|name| !is_there(name)) {
            print_notice(&format!("skipped: `{missing}` is not installed; `tests/run e2e` installs it"));
            return None;
        }
        let plugin = match tracking {
            ProcessTracking::Parents => "linuxproc",
            ProcessTracking::Cgroup if !Path::new("/sys/fs/cgroup/freezer").is_dir() => {
                print_notice("skipped: proctrack/cgroup of this Slurm needs cgroup v1's freezer");
                return None;
            }
            ProcessTracking::Cgroup => "cgroup",
        };
        let fleet = Fleet::start_by(&script(), size, &[("PROCTRACK", plugin)])?;
        Some(Self { fleet, size })
    }

    /// The hosts, for faults.
    #[must_use]
    pub const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The launch as tasks of `srun` with these options.
    #[must_use]
    pub fn srun(&self, options: &str, launch: Launch) -> Launch {
        let words = ["exec", "srun"].into_iter().chain(options.split_whitespace());
        launch
            .env("TH_ID", self.fleet.id())
            .under([script().into_os_string()])
            .under(words)
            .limit(Duration::from_secs(150))
    }

    /// Runs a command on `th0`, and gives its output.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn run(&self, variables: &[(&str, &str)], line: &[&str]) -> String {
        self.fleet.run_by(&script(), variables, &[&["exec"], line].concat())
    }

    /// Starts the daemon of a node again, after a crash.
    #[track_caller]
    pub fn start_node(&self, node: usize) {
        self.fleet.run_by(&script(), &[], &["start", &node.to_string()]);
    }

    /// The id of the only job that is queued or running.
    #[track_caller]
    #[must_use]
    pub fn only_job(&self) -> String {
        let jobs = self.run(&[], &["squeue", "-h", "-o", "%A"]);
        let ids: Vec<&str> = jobs.split_whitespace().collect();
        assert_eq!(ids.len(), 1, "one job is expected: {jobs}");
        ids[0].to_owned()
    }

    /// Waits until the cluster says so.
    #[track_caller]
    pub fn wait_until(&self, what: &str, line: &[&str], holds: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let said = self.run(&[], line);
            if holds(&said) {
                return said;
            }
            assert!(Instant::now() < until, "{what}: `{}` says {said}", line.join(" "));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until no job is left.
    #[track_caller]
    pub fn wait_until_idle(&self) {
        let _ = self.wait_until("no job is left", &["squeue", "-h"], |jobs| jobs.trim().is_empty());
    }

    /// Fails unless all processes of steps end: only Slurm's own are left.
    ///
    /// # Panics
    /// With the list of those that are left.
    #[track_caller]
    pub fn expect_empty(&self) {
        let until = Instant::now() + LIMIT;
        let is_daemon = |process: &Process| process.command.starts_with("slurmd");
        loop {
            let all = (1..=self.size).flat_map(|host| self.fleet.processes(host));
            let left: Vec<Process> =
                all.filter(|process| !is_daemon(process) && process.is_alive()).collect();
            if left.is_empty() {
                return;
            }
            let names: Vec<_> = left.iter().map(|one| format!("{} `{}`", one.pid, one.command)).collect();
            assert!(Instant::now() < until, "left: {}", names.join(", "));
            let _ = left[0].ended_by(until);
        }
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts/slurm-cluster.sh")
}
