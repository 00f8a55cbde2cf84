//! The look at the devices after a failure: `--check-devices` and `--exclude-unhealthy` with restarts.

use harness::{Fault, Gate, Job, Launch, Lost, Machine, Name, Outcome, Scratch, field, fixture, is_rankrun};
use nix::sys::signal::Signal;

use super::launch_from_line;

/// Rank 0 of the job fails in its first generation, once the machine has changed.
struct Failing {
    job: Job,
    gate: Gate,
    description: String,
    workers: usize,
    /// Where the gate is.
    _scratch: Scratch,
}

impl Failing {
    fn start(line: &str, machine: &Machine, workers: usize) -> Self {
        Self::start_launch(launch_from_line(line).worker([""; 0]), machine, workers)
    }

    /// The steps of the workers are still missing.
    fn start_launch(launch: Launch, machine: &Machine, workers: usize) -> Self {
        let scratch = Scratch::new();
        let gate = Gate::new(&scratch, "gate");
        let launch = launch.on(machine);
        let description = launch.machine_file();
        let wait = format!("attempt0:{}", gate.step());
        let steps = ["alive", "device=cuda", &wait, "attempt0:rank0:exit=4", "attempt0:forever"];
        let job = launch.args(steps).start();
        job.wait_for_lines("device rank=", workers);
        Self { job, gate, description, workers, _scratch: scratch }
    }

    /// The workers go on, on this machine.
    fn continue_on(&self, machine: &Machine) {
        let _ = machine.describe(&self.description);
        self.gate.open(self.workers);
    }

    /// They go on, to the end of the job.
    fn finish_on(self, machine: &Machine) -> Outcome {
        self.continue_on(machine);
        self.job.wait()
    }
}

/// Rank and card of each worker of the second generation: what was said behind the first.
fn second_attempt(outcome: &Outcome, first: usize) -> Vec<(String, String)> {
    let lines = outcome.lines_with("device rank=");
    let of = |line: &str, key| field(line, key).expect("a worker says it").to_owned();
    let mut found: Vec<_> = lines[first..].iter().map(|line| (of(line, "rank"), of(line, "is"))).collect();
    found.sort();
    found
}

fn cards(machine: &Machine, cards: &[usize]) -> Vec<(String, String)> {
    let is = |card: &usize| machine.uuid(*card)[4..].to_owned();
    cards.iter().enumerate().map(|(rank, card)| (rank.to_string(), is(card))).collect()
}

#[test]
fn failure_report_names_dead_device_and_its_rank() {
    let machine = Machine::gpus(2);
    for (was, name) in [(Lost::Calls, "GPU 1 NVIDIA H100"), (Lost::Handle, "GPU 1 NVIDIA H100")] {
        let failing = Failing::start("rankrun --check-devices --max-restarts 3", &machine, 2);
        let outcome = failing.finish_on(&machine.clone().lost(1, was));
        outcome.expect_exit_code(4).expect_absent("attempt=1").expect_stderr("rank 0 failed first");
        let row = outcome.lines_with("  dead ");
        let [row] = &row[..] else { panic!("one row in the card\n{outcome}") };
        assert!(row.contains(name) && row.contains("of rank 1:") && row.contains("lost"), "{outcome}");
        outcome.expect_stderr("no restart, since the device is dead; `--exclude-unhealthy`");
    }
}

#[test]
fn restart_excludes_dead_device_with_fewer_workers() {
    let machine = Machine::gpus(3);
    let failing = Failing::start("rankrun --exclude-unhealthy --max-restarts 3", &machine, 3);
    let outcome = failing.finish_on(&machine.clone().lost(1, Lost::Calls));
    outcome.expect_exit_code(0).expect_stderr("GPU 1").expect_stderr("going on with 2 workers");
    assert_eq!(second_attempt(&outcome, 3), cards(&machine, &[0, 2]), "{outcome}");
}

#[test]
fn restart_replaces_dead_device_with_spare() {
    let machine = Machine::gpus(3);
    let line = "rankrun --exclude-unhealthy --max-restarts 3 --devices 2,0,1 --nproc-per-node 2";
    let outcome = Failing::start(line, &machine, 2).finish_on(&machine.clone().lost(2, Lost::Calls));
    outcome.expect_exit_code(0).expect_stderr("GPU 2").expect_stderr("going on with 2 workers");
    assert_eq!(second_attempt(&outcome, 2), cards(&machine, &[0, 1]), "{outcome}");
    let device_lines = outcome.lines_with("→");
    assert_eq!(device_lines.len(), 4, "the devices of the ranks are told for each attempt\n{outcome}");
}

#[test]
fn restart_probes_driver_order_again() {
    let machine = Machine::mixed();
    let line = "rankrun --exclude-unhealthy --max-restarts 3 --device-order fastest";
    let mut worn = machine.clone();
    worn.card(1).ecc = Some(3);
    let outcome = Failing::start(line, &machine, 3).finish_on(&worn);
    outcome.expect_exit_code(0).expect_stderr("ECC");
    assert_eq!(second_attempt(&outcome, 3), cards(&machine, &[2, 0]), "{outcome}");
    // A driver that has lost a card says nothing any more.
    let outcome = Failing::start(line, &machine, 3).finish_on(&machine.clone().lost(1, Lost::Calls));
    outcome
        .expect_exit_code(4)
        .expect_absent("attempt=1")
        .expect_stderr("no restart without the dead device")
        .expect_stderr("fastest");
}

/// The words are read again with the Python that was torchrun; there is no other one here.
#[test]
fn restart_uses_shim_python() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let worker = fixture("worker");
    let python = format!("#!/bin/sh\nshift 2\nexec '{}' \"$@\"\n", worker.display());
    let python = scratch.file("python", &python, 0o755);
    let line = "PATH=/nowhere rankrun --exclude-unhealthy --max-restarts 3";
    let launch =
        launch_from_line(line).env("RANKRUN_SHIM_PYTHON", python).args([scratch.file("train.py", "", 0o644)]);
    let machine = Machine::gpus(2);
    let outcome = Failing::start_launch(launch, &machine, 2).finish_on(&machine.clone().lost(1, Lost::Calls));
    outcome.expect_exit_code(0).expect_stderr("going on with 1 worker");
    assert_eq!(second_attempt(&outcome, 2), cards(&machine, &[0]), "{outcome}");
}

#[test]
fn too_few_devices_for_nproc_prevents_restart() {
    let machine = Machine::gpus(2);
    let line = "rankrun --exclude-unhealthy --max-restarts 3 --nproc-per-node 2";
    let outcome = Failing::start(line, &machine, 2).finish_on(&machine.clone().lost(1, Lost::Calls));
    outcome
        .expect_exit_code(4)
        .expect_absent("attempt=1")
        .expect_stderr("no restart without the dead device")
        .expect_stderr("2 workers");
}

/// The restart goes on as without the option.
#[test]
fn failing_library_does_not_prevent_restart() {
    for (fault, expected) in [
        (Fault::Error(9), "NVML"),
        (Fault::Hang, "NVML did not answer within 1 second"),
        (Fault::Crash, "NVML crashed: killed by SIGABRT"),
    ] {
        let machine = Machine::gpus(2);
        let line = "rankrun --check-devices --max-restarts 1 --probe-timeout 1";
        let failing = Failing::start(line, &machine, 2);
        let outcome = failing.finish_on(&machine.clone().with_fault("nvmlInit_v2", fault));
        outcome
            .expect_exit_code(0)
            .expect_stderr("not every device could be checked")
            .expect_stderr(expected);
        outcome.expect_stdout("rank=1 attempt=1");
    }
}

/// A job that looks at its devices, and gets no answer for a minute.
fn start_with_hanging_probe() -> Failing {
    let machine = Machine::gpus(2);
    let line = "rankrun --check-devices --max-restarts 3 --probe-timeout 60";
    let failing = Failing::start(line, &machine, 2);
    failing.continue_on(&machine.clone().with_fault("nvmlInit_v2", Fault::Hang));
    failing.job.wait_for_line("waiting up to 60 s for the devices to be checked");
    failing
}

#[test]
fn signal_ends_device_probe_after_failure() {
    let Failing { job, .. } = start_with_hanging_probe();
    job.signal(Signal::SIGINT);
    job.wait().expect_exit_code(130).expect_absent("attempt=1").expect_stderr("rank 0 failed first");
}

/// No probe is left, whichever process is killed: the harness counts the processes of the job.
#[test]
fn probe_ends_with_killed_launcher() {
    for victim in ["guard", "agent"] {
        let Failing { job, .. } = start_with_hanging_probe();
        let (guard, agent) = (job.pid(), job.only_child_of(job.pid()));
        job.signal_to(if victim == "guard" { guard } else { agent }, Signal::SIGKILL);
        let outcome = job.wait();
        assert_ne!(outcome.status.code(), Some(0), "{outcome}");
        outcome.expect_absent("attempt=1");
    }
}

#[test]
fn invalid_probe_request_is_refused() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        for question in ["", "{", "\"everything\"", "{\"nvidia\":{}}", "\"cuda_order\"x"] {
            let outcome =
                Launch::new(*name).args([format!("--rankrun-probe={question}"), "--help".to_owned()]).run();
            outcome.expect_exit_code(2).expect_stderr("is not a question");
            assert_eq!((outcome.stderr().lines().count(), outcome.stdout().len()), (1, 0), "{outcome}");
        }
    }
}
