//! A rank of a gloo job dies once: the group starts again, joins a fresh store, and goes on from the checkpoint.

use std::time::Duration;

use harness::{Job, Launch, Name, Outcome, Random, Scratch, is_rankrun, is_soak, print_notice};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ddp::{ddp, loss};
use crate::programs::source;

const STEPS: &str = "30";

/// A job of a script under this name, with so many workers.
type Script = fn(Name, usize) -> Launch;

/// Rank 1 of the job fails before step 17, after the checkpoint of step 15.
fn failing(launch: Launch, scratch: &Scratch) -> Launch {
    let launch = launch.args(["--steps", STEPS, "--fail-at", "17", "--fail-rank", "1"]);
    launch.args(["--checkpoint", &scratch.at("state.pt"), "--checkpoint-every", "5"])
}

/// A job of the script that imports little, and says which loss the same steps have without a failure.
fn resuming(name: Name, workers: usize) -> Launch {
    let launch = Launch::standalone(name, workers).with_torch().env("OMP_NUM_THREADS", "1");
    launch.args(["--max-restarts", "3"]).args([source("resume.py")])
}

/// Fails unless the job had this loss, up to rounding.
#[track_caller]
fn assert_undisturbed_loss(outcome: &Outcome, undisturbed: &str) {
    assert!(same(&loss(outcome), undisturbed), "without a failure the loss is {undisturbed}\n{outcome}");
}

/// The loss without a failure, as the script says it.
#[track_caller]
fn loss_alone(outcome: &Outcome) -> String {
    let line = outcome.expect_exit_code(0).lines_with(", alone ").pop();
    let loss = line.as_deref().and_then(|line| line.split(", alone ").nth(1));
    loss.unwrap_or_else(|| panic!("no loss\n{outcome}")).to_owned()
}

/// Runs the failing job that often and fails unless each run ends with the loss of an undisturbed one.
#[track_caller]
fn every_restart_succeeds(workers: usize, job: Script, undisturbed: impl Fn(&Outcome) -> String) {
    // Each run imports torch in every worker of two generations, which is most of what it costs.
    let rounds = if is_soak() { 20 } else { 1 };
    for _ in 0..rounds {
        let scratch = Scratch::new();
        let outcome = failing(job(Name::Rankrun, workers), &scratch).run();
        outcome.expect_exit_code(0).expect_stdout("restart 1, from step 15");
        assert_undisturbed_loss(&outcome, &undisturbed(&outcome));
    }
    if is_soak() {
        let torchrun = || job(Name::Reference, workers);
        let torchrun_successes = (0..rounds).filter(|_| restart_succeeds(torchrun())).count();
        print_notice(&format!(
            "{workers} gloo workers, one dies once: rankrun {rounds} of {rounds}, torchrun {torchrun_successes} of {rounds}"
        ));
    }
}

/// Equal up to rounding: other workers, or DDP's buckets of its first step, order the sums otherwise.
fn same(first: &str, second: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().expect("a loss is a number");
    (number(first) - number(second)).abs() < 1e-5
}

fn restart_succeeds(launch: Launch) -> bool {
    let scratch = Scratch::new();
    let job = failing(launch, &scratch).limit(Duration::from_secs(120)).start();
    job.wait_or_kill().is_ok_and(|outcome| outcome.status.success())
}

#[test]
fn killed_worker_of_two_is_restarted() {
    // One worker takes the same batches alone.
    let undisturbed = loss(&ddp(Name::Rankrun, 1).args(["--steps", STEPS]).run());
    every_restart_succeeds(2, ddp, |_| undisturbed.clone());
}

#[test]
fn killed_worker_of_four_is_restarted() {
    every_restart_succeeds(4, resuming, loss_alone);
}

/// A job of two. The test may kill its workers from outside, three times at most.
fn killable_launch(scratch: &Scratch) -> Launch {
    let launch = resuming(Name::Rankrun, 2).args(["--steps", "200"]);
    launch.args(["--checkpoint", &scratch.at("state.pt")]).args(["--checkpoint-every", "20"])
}

/// The workers, once both are there.
fn workers(job: &Job) -> Vec<i32> {
    loop {
        let agent = job.children_of(job.pid());
        let workers = agent.first().map(|agent| job.children_of(*agent)).unwrap_or_default();
        if workers.len() >= 2 || job.elapsed() > Duration::from_secs(60) {
            return workers;
        }
        std::thread::yield_now();
    }
}

/// How long an undisturbed job takes until its workers have met, and from then to its end; and its loss.
fn time_undisturbed_run() -> (Duration, Duration, String) {
    let scratch = Scratch::new();
    let job = killable_launch(&scratch).start();
    job.wait_for_line("world size 2, restart 0");
    let met = job.elapsed();
    let outcome = job.wait();
    (met, outcome.took - met, loss(&outcome))
}

/// From before `init_process_group` to the last step.
#[test]
fn worker_killed_at_random_time_is_restarted() {
    if !is_rankrun() {
        return;
    }
    let wanted = if is_soak() { 100 } else { 3 };
    let (together, training, expected) = time_undisturbed_run();
    let mut random = Random::seeded();
    let (mut hits, mut named, mut slowest) = (0, 0, Duration::ZERO);
    // A kill that comes after the worker's own end is none.
    for _ in 0..2 * wanted {
        let scratch = Scratch::new();
        let job = killable_launch(&scratch).start();
        let workers = workers(&job);
        assert_eq!(workers.len(), 2, "{workers:?}\n{job}");
        if random.either(true, false) {
            random.pause(together);
        } else {
            job.wait_for_line("world size 2, restart 0");
            random.pause(training);
        }
        let victim = random.either(workers[0], workers[1]);
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(victim), Signal::SIGKILL);
        let outcome = job.wait();
        assert_undisturbed_loss(&outcome, &expected);
        outcome.expect_absent("(restart 2 of 3)");
        slowest = slowest.max(outcome.took);
        hits += usize::from(!outcome.lines_with("(restart 1 of 3)").is_empty());
        let cause = format!("(pid {victim}) failed: killed by SIGKILL");
        named += usize::from(!outcome.lines_with(&cause).is_empty());
        if hits == wanted {
            break;
        }
    }
    assert_eq!(hits, wanted, "the workers were killed too late");
    if is_soak() {
        print_notice(&format!(
            "{hits} of {hits} gloo jobs got over a kill, {named} of which saw it first; the slowest took {slowest:?}"
        ));
    }
}
