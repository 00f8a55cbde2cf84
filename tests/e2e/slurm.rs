//! Jobs that a real Slurm starts, without an option about nodes: one task on each node, and one for each rank.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use harness::{
    Gate, Job, Launch, Name, Outcome, ProcessTracking, Scratch, SlurmCluster, checkout, example, field,
    fixture, is_soak, print_notice,
};

/// A worker that meets the others on the store and over connections of its own.
const MEET: [&str; 4] = ["place", "sum", "reduce=3", "print=finished"];

fn launch() -> Launch {
    Launch::new(Name::Rankrun)
}

/// `rank of world, node of nodes, local rank` of each worker, sorted.
pub(crate) fn places(outcome: &Outcome) -> Vec<String> {
    let mut places: Vec<_> = outcome
        .lines_with("place rank=")
        .iter()
        .map(|line| {
            let of = |key| field(line, key).unwrap_or("?").to_owned();
            format!(
                "{} of {}, node {} of {}, local {}",
                of("rank"),
                of("world"),
                of("node"),
                of("nodes"),
                of("local")
            )
        })
        .collect();
    places.sort();
    places
}

/// `place` of each rank where the nodes have these numbers of ranks.
pub(crate) fn expected_places(nodes: &[u32]) -> Vec<String> {
    let world: u32 = nodes.iter().sum();
    let mut rank = 0;
    let mut expected = Vec::new();
    for (node, count) in nodes.iter().enumerate() {
        for local in 0..*count {
            expected.push(format!("{rank} of {world}, node {node} of {}, local {local}", nodes.len()));
            rank += 1;
        }
    }
    expected
}

#[track_caller]
fn form_one_job(cluster: &SlurmCluster, size: u32) {
    let two_each = vec![2; usize::try_from(size).expect("it is small")];
    // Slurm fills the first node.
    let mut uneven = vec![1; two_each.len()];
    uneven[0] = 3;
    let tasks = uneven.iter().sum::<u32>();
    for (step, options, nodes) in [
        (format!("-N{size} --ntasks-per-node=1"), &["--nproc-per-node", "2"][..], two_each.clone()),
        (format!("-N{size} --ntasks-per-node=2"), &[], two_each),
        (format!("-N{size} -n{tasks}"), &[], uneven),
        ("-N1 -n3".to_owned(), &[], vec![3]),
    ] {
        let outcome = cluster.srun(&step, launch().args(options.iter().copied()).worker(MEET)).run();
        outcome.expect_exit_code(0);
        assert_eq!(places(&outcome), expected_places(&nodes), "srun {step}\n{outcome}");
        cluster.expect_empty();
    }
}

/// Task 0 is on the second node of the list.
#[track_caller]
fn arbitrary_tasks_meet_or_end_at_once(cluster: &SlurmCluster) {
    let step = "-N2 -n3 -m arbitrary -w th2,th1,th2";
    let outcome = cluster.srun(step, launch().worker(MEET)).run();
    outcome.expect_stderr("-m block").expect_absent("finished");
    assert_eq!(outcome.lines_with("nothing says on which node").len(), 3, "{outcome}");
    let outcome = cluster.srun(step, launch().args(["--master-addr", "th2"]).worker(MEET)).run();
    outcome.expect_exit_code(0);
    let places = places(&outcome);
    assert_eq!(
        places,
        ["0 of 3, node 1 of 2, local 0", "1 of 3, node 0 of 2, local 0", "2 of 3, node 1 of 2, local 1"],
        "{outcome}"
    );
    cluster.expect_empty();
}

#[test]
fn each_shape_of_step_is_one_job() {
    let size = if is_soak() { 4 } else { 2 };
    let Some(cluster) = SlurmCluster::start(size, ProcessTracking::Parents) else { return };
    form_one_job(&cluster, u32::try_from(size).expect("it is small"));
    arbitrary_tasks_meet_or_end_at_once(&cluster);
    host_lists_are_read_as_slurm_does(&cluster);
}

#[test]
fn each_shape_of_step_is_one_job_in_cgroups() {
    let size = if is_soak() { 4 } else { 2 };
    let Some(cluster) = SlurmCluster::start(size, ProcessTracking::Cgroup) else { return };
    form_one_job(&cluster, u32::try_from(size).expect("it is small"));
}

/// The oracle is `scontrol show hostnames`. The launcher also refuses a list of another length.
#[track_caller]
fn host_lists_are_read_as_slurm_does(cluster: &SlurmCluster) {
    for list in [
        "n[001-003,010]",
        "gpu-a[09-11]",
        "n[9-11]",
        "a1,b1,a2",
        "r1n[1-2],r2n[1-2]",
        "r[1-2]n[1-2]",
        "x[1-2]-ib[3-4]",
        "n[08-10,15],login",
    ] {
        let names = cluster.run(&[], &["scontrol", "show", "hostnames", list]);
        let names: Vec<&str> = names.split_whitespace().collect();
        let count = names.len().to_string();
        let explain = launch().args(["explain", "--no-python", "true"]);
        let explain = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NODELIST", list),
            ("SLURM_STEP_NUM_NODES", &count),
            ("SLURM_STEP_NUM_TASKS", &count),
        ]
        .iter()
        .fold(explain, |explain, (name, value)| explain.env(name, *value));
        let outcome = explain.run();
        outcome.expect_exit_code(0);
        let shown = outcome.lines_with("master-addr");
        assert!(shown.iter().any(|line| line.contains(names[0])), "{list}: {names:?}\n{outcome}");
    }
}

/// The shapes of a step in which a fault strikes, with two workers on each of two nodes.
const SHAPES: [(&str, &[&str]); 2] =
    [("-N2 --ntasks-per-node=1", &["--nproc-per-node", "2"]), ("-N2 --ntasks-per-node=2", &[])];

/// Four workers that have met and wait.
fn start_waiting(cluster: &SlurmCluster, srun: &str, options: &[&str], gate: &Gate) -> Job {
    let steps = ["place", "reduce=3", "print=met", &gate.step()];
    let job = cluster.srun(srun, launch().args(options.iter().copied()).worker(steps)).start();
    job.wait_for_lines("met", 4);
    job
}

#[track_caller]
fn cancel(cluster: &SlurmCluster) {
    for (step, options) in SHAPES {
        let gate = Gate::closed();
        let job = start_waiting(cluster, step, options, &gate);
        cluster.run(&[], &["scancel", &cluster.only_job()]);
        let outcome = job.wait();
        assert!(!outcome.stderr().contains("panicked"), "{outcome}");
        cluster.wait_until_idle();
        cluster.expect_empty();
    }
}

#[test]
fn cancelled_step_leaves_nothing() {
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Parents) else { return };
    for _ in 0..if is_soak() { 10 } else { 1 } {
        cancel(&cluster);
    }
}

#[test]
fn cancelled_step_leaves_nothing_in_cgroups() {
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Cgroup) else { return };
    for _ in 0..if is_soak() { 10 } else { 1 } {
        cancel(&cluster);
    }
}

/// Slurm notices a lost node after half a minute; the launchers on the others do within the lease, and wait for another one
/// until Slurm ends the job.
#[test]
fn lost_node_leaves_nothing() {
    if !is_soak() {
        print_notice("skipped: it takes minutes (RANKRUN_SOAK=1)");
        return;
    }
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Parents) else { return };
    for turn in 0..10 {
        let (step, options) = SHAPES[turn % 2];
        let gate = Gate::closed();
        let job = start_waiting(&cluster, step, options, &gate);
        cluster.fleet().crash(2);
        let outcome = job.wait();
        assert!(!outcome.stderr().contains("panicked"), "{outcome}");
        cluster.fleet().heal(2);
        cluster.start_node(2);
        cluster.wait_until_idle();
        cluster.expect_empty();
        let is_up = |nodes: &str| nodes.lines().filter(|line| *line == "idle").count() == 2;
        let _ = cluster.wait_until("both nodes are idle", &["sinfo", "-h", "-N", "-o", "%T"], is_up);
    }
}

/// The batch scripts of `docs/slurm.md`, in their order.
fn scripts_of_guide() -> Vec<String> {
    let text = fs::read_to_string(checkout().join("docs/slurm.md")).expect("the guide is there");
    let blocks = text.split("```bash\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.starts_with("#!/bin/bash\n")).map(str::to_owned).collect()
}

/// Knows the options of the guide. The command gets the variables that are named, and mounts of its own.
const PODMAN: &str = "\
#!/bin/bash
while :; do
  case $1 in
    run | --rm) shift ;;
    --network) shift 2 ;;
    --env) pattern=$2; shift 2 ;;
    *) break ;;
  esac
done
shift # the image
variables=(\"PATH=$PATH\" \"HOME=$HOME\" container=podman)
while IFS= read -r -d '' variable; do
  case ${variable%%=*} in $pattern) variables+=(\"$variable\") ;; esac
done < <(env -0)
exec unshare --mount env -i \"${variables[@]}\" \"$@\"
";

/// A training program without PyTorch: each rank says where it is, counts its starts, and saves what it is told to save.
const TRAIN: &str = "\
import os, signal, sys, time
from pathlib import Path

rank = os.environ['RANK']
keys = ['WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'GROUP_WORLD_SIZE', 'TORCHELASTIC_RUN_ID']
restarts = os.environ.get('SLURM_RESTART_COUNT', '0')
print('train', f'rank={rank}', f'restarts={restarts}', *(f'{key}={os.environ[key]}' for key in keys), *sys.argv[1:], flush=True)
if Path('wait').exists() and restarts == '0':
    def save(number, _):
        # Slurm may send it to this process too, after the launcher, and Python's end would let a second one kill it.
        signal.signal(number, signal.SIG_IGN)
        Path(f'checkpoint-{rank}').write_text('saved')
        sys.exit(0 if Path('succeed').exists() else 75)
    signal.signal(signal.SIGUSR1, save)
    signal.signal(signal.SIGTERM, save)
    Path(f'started-{rank}').write_text('')
    while True:
        time.sleep(1)
";

/// A folder from which a script of the guide is submitted: `rankrun` is in its `PATH`, and a program is there.
struct Submission<'a> {
    cluster: &'a SlurmCluster,
    scratch: Scratch,
    path: String,
}

impl<'a> Submission<'a> {
    #[expect(clippy::disallowed_methods, reason = "the job finds its programs where the tests do")]
    fn new(cluster: &'a SlurmCluster) -> Self {
        let scratch = Scratch::new();
        let bin = scratch.folder("bin", 0o755);
        let rankrun = fixture("launcher-under-test");
        std::os::unix::fs::symlink(rankrun, scratch.path().join("bin/rankrun")).expect("a link can be made");
        let _ = scratch.file("train.py", TRAIN, 0o644);
        let path = std::env::var("PATH").unwrap_or_default();
        Self { cluster, scratch, path: format!("{bin}:{path}") }
    }

    fn submit(&self, script: &str) {
        let file = self.scratch.file("job.sh", script, 0o755);
        let folder = self.scratch.path().display().to_string();
        let line = ["sbatch", "-D", &folder, "-o", "out-%a", "--open-mode=append", &file];
        self.cluster.run(&[("PATH", &self.path)], &line);
    }

    /// The output of the tasks of an array, or of the one job.
    fn output(&self) -> String {
        let entries = fs::read_dir(self.scratch.path()).expect("the folder is there").flatten();
        let outputs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("out-"));
        outputs.map(|entry| fs::read_to_string(entry.path()).unwrap_or_default()).collect()
    }

    #[track_caller]
    fn wait_for_files(&self, name: &str, count: usize) {
        let folder = self.scratch.path().display().to_string();
        let is_there = |names: &str| names.lines().filter(|line| line.starts_with(name)).count() == count;
        let _ = self.cluster.wait_until(name, &["ls", &folder], is_there);
    }

    /// A requeued job waits for minutes, unless it is told to begin. Slurm counts in seconds: in the second of the requeue
    /// it refuses the job's new credential as revoked.
    #[track_caller]
    fn start_queued_job(&self) {
        let line = ["squeue", "-h", "-o", "%A %T"];
        let is_decided = |jobs: &str| jobs.trim().is_empty() || jobs.contains("PENDING");
        let jobs = self.cluster.wait_until("the job is requeued", &line, is_decided);
        let id = jobs.split_whitespace().next();
        let id = id.unwrap_or_else(|| panic!("the job has ended without a requeue\n{}", self.output()));
        self.cluster.run(&[], &["scontrol", "update", &format!("JobId={id}"), "StartTime=now+2"]);
    }

    #[track_caller]
    fn wait_for_end(&self) -> String {
        self.cluster.wait_until_idle();
        self.cluster.expect_empty();
        let output = self.output();
        assert!(!output.contains("panicked"), "{output}");
        output
    }
}

fn count(output: &str, parts: &[&str]) -> usize {
    output.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

/// Plain, one task for each rank, array, and the one that is requeued.
#[test]
fn scripts_of_guide_run() {
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Parents) else { return };
    let scripts = scripts_of_guide();
    let [plain, per_rank, array, requeue, ..] = scripts.as_slice() else {
        panic!("the guide has {} scripts", scripts.len())
    };
    for (script, ranks) in [(plain, 16), (per_rank, 16)] {
        // `python3` starts slowly eight times on two CPUs.
        let script = script.replace("=8", "=2");
        let job = Submission::new(&cluster);
        job.submit(&script);
        let output = job.wait_for_end();
        let of_world = ["train rank=", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "GROUP_WORLD_SIZE=2"];
        assert_eq!(count(&output, &of_world), 4, "{ranks}: {script}\n{output}");
    }
    let job = Submission::new(&cluster);
    job.submit(&array.replace("=8", "=1"));
    let output = job.wait_for_end();
    for task in ["0", "1", "2", "3"] {
        assert_eq!(count(&output, &["train rank=", &format!("--seed {task}")]), 1, "{output}");
    }
    let job = Submission::new(&cluster);
    let _ = job.scratch.file("wait", "", 0o644);
    job.submit(&requeue.replace("=8", "=1"));
    job.wait_for_files("started-", 2);
    cluster.run(&[], &["scancel", "-s", "USR1", &cluster.only_job()]);
    job.wait_for_files("checkpoint-", 2);
    job.start_queued_job();
    let output = job.wait_for_end();
    assert_eq!(count(&output, &["train rank=", "restarts=1", "-restart1", "WORLD_SIZE=2"]), 2, "{output}");
}

#[test]
fn container_line_of_guide_runs() {
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Parents) else { return };
    let text = fs::read_to_string(checkout().join("docs/slurm.md")).expect("the guide is there");
    let line = text.lines().find(|line| line.contains("podman run")).expect("the guide has it");
    for (tasks, line) in [(2, line.to_owned()), (1, line.replace("rankrun", "rankrun --nproc-per-node 2"))] {
        let job = Submission::new(&cluster);
        let _ = job.scratch.file("bin/podman", PODMAN, 0o755);
        job.submit(&format!("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node={tasks}\n{line}\n"));
        let output = job.wait_for_end();
        let of_world = ["train rank=", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "GROUP_WORLD_SIZE=2"];
        assert_eq!(count(&output, &of_world), 4, "{line}\n{output}");
    }
}

/// Slurm 22.05 does not set the variable.
#[test]
#[expect(clippy::disallowed_methods, reason = "the end of a job is a time of the clock")]
fn end_of_job_in_variable_ends_it() {
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Parents) else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right").as_secs();
    let launch = launch()
        .args(["--nproc-per-node", "1", "--warn-signal", "USR1@2"])
        .env("SLURM_JOB_END_TIME", (now + 10).to_string())
        .worker(["catch=SIGUSR1", "signal=SIGUSR1", "forever"]);
    let outcome = cluster.srun("-N2 --ntasks-per-node=1", launch).run();
    outcome.expect_exit_code(124);
    assert_eq!(outcome.stdout().matches("got SIGUSR1 rank=").count(), 2, "{outcome}");
    cluster.expect_empty();
}

#[test]
fn requeued_job_starts_anew_and_leaves_nothing() {
    if !is_soak() {
        print_notice("skipped: it takes minutes (RANKRUN_SOAK=1); `scripts_of_guide_run` requeues once");
        return;
    }
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Parents) else { return };
    let per_rank = scripts_of_guide().swap_remove(1).replace("=8", "=2");
    for _ in 0..10 {
        let job = Submission::new(&cluster);
        let _ = job.scratch.file("wait", "", 0o644);
        job.submit(&per_rank);
        job.wait_for_files("started-", 4);
        cluster.run(&[], &["scontrol", "requeue", &cluster.only_job()]);
        job.start_queued_job();
        let output = job.wait_for_end();
        assert_eq!(count(&output, &["train rank=", "restarts=1", "-restart1"]), 4, "{output}");
    }
}

/// Limits are whole minutes, and the warning comes up to half a minute early.
#[test]
fn time_limit_with_warning_leaves_nothing() {
    if !is_soak() {
        print_notice("skipped: it takes minutes (RANKRUN_SOAK=1)");
        return;
    }
    let Some(cluster) = SlurmCluster::start(2, ProcessTracking::Parents) else { return };
    let script = scripts_of_guide().swap_remove(1).replace("=8", "=2");
    let limited = script.replacen("#SBATCH", "#SBATCH --time=1 --signal=USR1@30\n#SBATCH", 1);
    for _ in 0..10 {
        let job = Submission::new(&cluster);
        for name in ["wait", "succeed"] {
            let _ = job.scratch.file(name, "", 0o644);
        }
        job.submit(&limited);
        job.wait_for_files("checkpoint-", 4);
        let _ = job.wait_for_end();
    }
}

/// A Rust program over its own process groups, which checks that all ranks have the same model at the end.
#[test]
fn rust_training_runs_in_both_shapes() {
    train_in_rust(ProcessTracking::Parents);
}

#[test]
fn rust_training_runs_in_both_shapes_in_cgroups() {
    train_in_rust(ProcessTracking::Cgroup);
}

#[track_caller]
fn train_in_rust(tracking: ProcessTracking) {
    let size = if is_soak() { 4 } else { 2 };
    let Some(cluster) = SlurmCluster::start(size, tracking) else { return };
    for (tasks, options) in [(1, &["--nproc-per-node", "2"][..]), (2, &[])] {
        let step = format!("-N{size} --ntasks-per-node={tasks}");
        let program =
            launch().args(options.iter().copied()).args(["--no-python"]).args([example("data_parallel")]);
        let outcome = cluster.srun(&step, program).run();
        outcome.expect_exit_code(0).expect_absent("panicked");
        cluster.expect_empty();
    }
}
