//! Training in Rust through crashes: whatever is killed, and with however many workers it goes on, the end is that of an undisturbed
//! run; and nodes that come and go. And disks that are full or cannot be written.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{
    Fleet, Job, Launch, Machine, Name, Outcome, Process, Random, Scratch, can_use_namespaces, example,
    is_rankrun, is_soak,
};
use nix::sys::signal::Signal;

use crate::nodes::{ENDPOINT, c10d};

const STEPS: u64 = 200;

/// So many workers share a device: the switch of the examples for tests.
const SHARE: &str = "RANKRUN_TEST_SHARE_DEVICE";

/// A step, long enough that kills come in time on a busy machine.
const STEP_MS: u64 = 20;

/// What is killed, without warning.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// One worker, of any rank; the launcher starts all of them again.
    Worker,
    /// The launcher's first process, or its second one.
    Launcher,
    /// Every process of the job, as when the machine stops.
    Machine,
}

fn training_launch(workers: usize, scratch: &Scratch) -> Launch {
    training_with_launch(Launch::standalone(Name::Rankrun, workers).args(["--max-restarts", "9"]), scratch)
}

fn training_with_launch(launch: Launch, scratch: &Scratch) -> Launch {
    training_with_steps(launch, STEPS, scratch)
}

fn training_with_steps(launch: Launch, steps: u64, scratch: &Scratch) -> Launch {
    let launch = launch.args([example("ddp_training")]).args(["--steps", &steps.to_string()]);
    let launch = launch.args(["--print-every", "1", "--weights-out", &scratch.at("weights")]);
    launch.args(["--checkpoint", &scratch.at("state"), "--checkpoint-every", "7"])
}

fn read_weights(scratch: &Scratch) -> Vec<f64> {
    let text = std::fs::read_to_string(scratch.at("weights")).expect("the weights were written");
    text.split_whitespace().map(|number| number.parse().expect("a weight")).collect()
}

/// The losses by step that a run told, of which a step that was taken again has several.
fn losses_by_step(outcome: &Outcome) -> Vec<(u64, f64)> {
    let loss = |line: String| {
        let (step, rest) = line.strip_prefix("step ")?.split_once(": loss ")?;
        Some((step.parse().ok()?, rest.split(',').next()?.parse().ok()?))
    };
    outcome.lines_with("step ").into_iter().filter_map(loss).collect()
}

/// An undisturbed run: its weights, and its loss at each step.
fn run_undisturbed(workers: usize) -> (Vec<f64>, BTreeMap<u64, f64>) {
    let scratch = Scratch::new();
    let outcome = training_launch(workers, &scratch).run();
    outcome.expect_exit_code(0);
    (read_weights(&scratch), losses_by_step(&outcome).into_iter().collect())
}

/// A training that is hit again and again.
struct Disturbed {
    scratch: Scratch,
    workers: usize,
    job: Job,
    /// How often the launcher has started the workers of this job again.
    restarts: usize,
    /// How many of the jobs before have saved something.
    is_resumed: bool,
    losses: Vec<(u64, f64)>,
}

impl Disturbed {
    fn start(workers: usize) -> Self {
        let scratch = Scratch::new();
        let job = start_slow_training(workers, &scratch);
        Self { scratch, workers, job, restarts: 0, is_resumed: false, losses: Vec::new() }
    }

    /// Kills at a step, or a moment later; what runs then are so many workers.
    fn kill(&mut self, victim: Victim, step: u64, random: &mut Random, workers: usize) {
        self.job.wait_for_line(&format!("step {step}: "));
        random.pause(Duration::from_millis(STEP_MS));
        match victim {
            Victim::Worker => {
                let rank = random.below(self.workers as u64);
                let place = format!("rank {rank} of {}: pid ", self.workers);
                let attempts = self.job.wait_for_lines(&place, self.restarts + 1);
                let pid = attempts
                    .last()
                    .and_then(|line| number_after(line, "pid "))
                    .expect("each rank says its pid");
                Process::open(pid).expect("the worker lives").signal(Signal::SIGKILL);
                self.restarts += 1;
            }
            Victim::Launcher => {
                let guard = self.job.pid();
                let agent = self.job.only_child_of(guard);
                self.job.signal_to(random.either(guard, agent), Signal::SIGKILL);
                self.restart_job(workers);
            }
            Victim::Machine => {
                self.job.processes().iter().for_each(|process| process.signal(Signal::SIGKILL));
                self.restart_job(workers);
            }
        }
        let attempts = self.restarts + usize::from(self.is_resumed);
        self.job.wait_for_lines("resumed from step ", attempts);
    }

    /// Starts the job anew where the one before was killed.
    fn restart_job(&mut self, workers: usize) {
        let job = std::mem::replace(&mut self.job, start_slow_training(workers, &self.scratch));
        (self.workers, self.restarts, self.is_resumed) = (workers, 0, true);
        let outcome = job.wait();
        assert!(outcome.lines_with("finished: ").is_empty(), "the kill came too late\n{outcome}");
        self.losses.extend(losses_by_step(&outcome));
    }

    /// The weights at the end, and all losses that were told.
    fn finish(mut self) -> (Vec<f64>, Vec<(u64, f64)>) {
        let outcome = self.job.wait();
        outcome.expect_exit_code(0);
        self.losses.extend(losses_by_step(&outcome));
        (read_weights(&self.scratch), self.losses)
    }
}

fn start_slow_training(workers: usize, scratch: &Scratch) -> Job {
    training_launch(workers, scratch).args(["--step-ms", &STEP_MS.to_string()]).start()
}

fn number_after(line: &str, key: &str) -> Option<i32> {
    line.split(key).nth(1)?.split(',').next()?.parse().ok()
}

/// Five moments, far enough from each other that what was killed is at work again, and from the end.
fn kill_steps(random: &mut Random) -> [u64; 5] {
    [10, 40, 70, 100, 130].map(|from| from + random.below(25))
}

fn rounds() -> usize {
    if is_soak() { 20 } else { 1 }
}

#[test]
fn training_with_five_kills_has_same_weights() {
    let mut random = Random::seeded();
    let (expected, curve) = run_undisturbed(4);
    for _ in 0..rounds() {
        let mut training = Disturbed::start(4);
        // The first three are one of each.
        let any = [Victim::Worker, Victim::Launcher, Victim::Machine];
        let mut drawn = || any[usize::try_from(random.below(3)).expect("it is small")];
        let victims = [Victim::Worker, Victim::Launcher, Victim::Machine, drawn(), drawn()];
        for (victim, step) in victims.into_iter().zip(kill_steps(&mut random)) {
            training.kill(victim, step, &mut random, 4);
        }
        let (weights, losses) = training.finish();
        assert!(weights == expected, "{victims:?}");
        assert!(losses.len() > usize::try_from(STEPS).expect("it is small"), "no step was taken twice");
        for (step, loss) in losses {
            assert!(loss == curve[&step], "step {step}: {loss} is not {}, {victims:?}", curve[&step]);
        }
    }
}

#[test]
fn five_kills_with_changing_worker_count_keep_loss_curve() {
    let mut random = Random::seeded();
    let (expected, curve) = run_undisturbed(1);
    for _ in 0..rounds() {
        let mut training = Disturbed::start(4);
        let plan = [
            (Victim::Worker, 4),
            (Victim::Machine, 2),
            (Victim::Worker, 2),
            (Victim::Launcher, 3),
            (Victim::Worker, 3),
        ];
        for ((victim, workers), step) in plan.into_iter().zip(kill_steps(&mut random)) {
            training.kill(victim, step, &mut random, workers);
        }
        let (weights, losses) = training.finish();
        assert!(losses.len() > usize::try_from(STEPS).expect("it is small"), "no step was taken twice");
        assert_close((&weights, &losses), (&expected, &curve));
    }
}

/// One job, of which a second node becomes a member and is lost again.
#[test]
fn joining_and_leaving_node_keeps_loss_curve() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let (expected, curve) = run_undisturbed(1);
    let scratch = Scratch::new();
    let own = |host| {
        let launch = training_with_launch(c10d(Name::Rankrun, ENDPOINT, "1:2"), &scratch);
        fleet.on(host, launch.args(["--step-ms", &STEP_MS.to_string()])).start()
    };
    let stays = own(1);
    stays.wait_for_line("step 20: ");
    let comes = own(2);
    // It has kept its rank. A change of the membership is not a restart.
    let place = stays.wait_for_line("rank 0 of 2: pid ");
    assert!(place.ends_with(", restart 0"), "{place}");
    comes.wait_for_line("rank 1 of 2: pid ");
    stays.wait_for_line("resumed from step ");
    stays.wait_for_line("step 110: ");
    comes.processes().iter().for_each(|process| process.signal(Signal::SIGKILL));
    stays.wait_for_lines("rank 0 of 1: pid ", 2);
    stays.wait_for_lines("resumed from step ", 2);
    let outcome = stays.wait();
    outcome.expect_exit_code(0);
    assert_close((&read_weights(&scratch), &losses_by_step(&outcome)), (&expected, &curve));
    drop(comes);
    fleet.is_empty();
}

/// Three GPUs that compute: of all that is tested here only their speed is not real ones'.
fn three_gpus() -> Machine {
    Machine::gpus(3).computing()
}

#[test]
fn training_on_gpus_equals_training_on_cpus() {
    let (expected, curve) = run_undisturbed(2);
    for (workers, shared, way) in
        [(1, None, "nccl"), (2, None, "nccl"), (3, None, "nccl"), (2, Some("2"), "the host")]
    {
        let scratch = Scratch::new();
        let launch = training_launch(workers, &scratch).on(&three_gpus());
        let launch = shared.into_iter().fold(launch, |launch, replicas| launch.env(SHARE, replicas));
        let outcome = launch.run();
        outcome.expect_exit_code(0);
        for rank in 0..workers {
            let device = if shared.is_some() { 0 } else { rank };
            let place = format!("device cuda:{device}, gradients by {way}, restart 0");
            let lines = outcome.lines_with(&format!("rank {rank} of {workers}: "));
            assert!(lines.iter().any(|line| line.contains(&place)), "{place}\n{outcome}");
        }
        assert_close((&read_weights(&scratch), &losses_by_step(&outcome)), (&expected, &curve));
    }
}

#[test]
fn training_resumes_on_other_devices() {
    let (expected, curve) = run_undisturbed(2);
    let scratch = Scratch::new();
    let mut losses = Vec::new();
    // On GPUs, of which a worker is killed; on CPUs; and on one GPU.
    let attempts = [
        (Launch::standalone(Name::Rankrun, 2).on(&three_gpus()), 90, Some(60)),
        (Launch::standalone(Name::Rankrun, 3), 140, None),
        (Launch::standalone(Name::Rankrun, 1).on(&three_gpus()), STEPS, None),
    ];
    for (launch, steps, killed) in attempts {
        let launch = launch.args(["--max-restarts", "1"]);
        let launch = training_with_steps(launch, steps, &scratch);
        let launch = killed.into_iter().fold(launch, |launch, step: u64| {
            launch.args(["--fail-rank", "1", "--fail-how", "kill", "--fail-at", &step.to_string()])
        });
        let outcome = launch.run();
        outcome.expect_exit_code(0);
        let resumed = outcome.lines_with("resumed from step ").len();
        assert_eq!(resumed, usize::from(steps != 90 || killed.is_some()), "{outcome}");
        losses.extend(losses_by_step(&outcome));
    }
    assert_close((&read_weights(&scratch), &losses), (&expected, &curve));
}

/// Weights, and losses by step, up to rounding.
#[track_caller]
fn assert_close(
    (weights, losses): (&[f64], &[(u64, f64)]),
    (expected, curve): (&[f64], &BTreeMap<u64, f64>),
) {
    assert_eq!(weights.len(), expected.len());
    for (actual, target) in weights.iter().zip(expected) {
        assert!((actual - target).abs() <= 1e-9 * actual.abs().max(1.0), "{actual} is not {target}");
    }
    for (step, loss) in losses {
        // They are printed with six digits.
        assert!((loss - curve[step]).abs() < 1.5e-6, "step {step}: {loss} is not {}", curve[step]);
    }
}

/// A file system of so many bytes in this folder, which is copied from there in the end.
fn on_disk(launch: Launch, options: &str, scratch: &Scratch) -> Launch {
    let (state, copy) = (scratch.folder("state", 0o755), scratch.at("copy"));
    let line = format!(
        "mount -t tmpfs -o {options} none {state} && {{ \"$@\"; code=$?; cp -r {state} {copy}; exit $code; }}"
    );
    launch.under(["unshare", "--mount", "--propagation", "private", "sh", "-c", &line, "sh"])
}

#[test]
fn full_disk_ends_training_and_keeps_last_checkpoint() {
    if !can_use_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    // Room for two checkpoints and a part of a third one.
    let launch = on_disk(training_launch(2, &scratch), "size=20k", &scratch);
    let outcome = launch.run();
    outcome
        .expect_exit_code(1)
        .expect_stderr("rank 0: error: cannot write `")
        .expect_stderr("for the checkpoint of step 21");
    outcome
        .expect_stderr("caused by: No space left on device")
        .expect_stderr("hint: free disk space, or keep fewer checkpoints");
    outcome.expect_stderr("rank 1: error: on rank 0: cannot write `");
    let files = std::fs::read_dir(scratch.at("copy")).expect("it was copied");
    let mut files: Vec<_> = files.map(|entry| entry.expect("it can be listed").file_name()).collect();
    files.sort();
    assert_eq!(files, ["step-0000000007.safetensors", "step-0000000014.safetensors"], "{outcome}");
    std::fs::remove_dir(scratch.at("state")).expect("nothing is below the mount");
    std::fs::rename(scratch.at("copy"), scratch.at("state")).expect("the scratch folder is ours");
    let outcome = training_launch(2, &scratch).run();
    outcome.expect_exit_code(0).expect_stdout("resumed from step 14 of ");
}

#[test]
fn unwritable_checkpoint_folder_is_refused_before_first_step() {
    if !can_use_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let outcome = on_disk(training_launch(2, &scratch), "ro", &scratch).run();
    outcome.expect_exit_code(1).expect_stderr(&format!(
        "rank 0: error: the checkpoint folder `{}` cannot be used",
        scratch.at("state")
    ));
    outcome.expect_stderr("caused by: ").expect_stderr("hint: choose a folder that this user may write");
    assert!(outcome.lines_with("step 1: ").is_empty(), "{outcome}");
}
