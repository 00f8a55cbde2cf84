//! `rankrun --hosts`: the launchers of several hosts, started by ssh from one that has no worker.

mod bad_hosts;
mod deepspeed;
mod faults;

use harness::{Gate, Job, Launch, SshFleet, example, is_soak};
use nix::sys::signal::Signal;

/// A job of two hosts with one worker each, whose workers have met and wait.
#[track_caller]
fn start_pair(ssh: &SshFleet, gate: &Gate, options: &[&str]) -> Job {
    let launch =
        ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1", "--lease", "2"]).args(options.to_vec());
    let job = launch.worker(["place", "reduce=3", &gate.step(), "print=finished"]).start();
    job.wait_for_lines("world=2 times=3", 2);
    job
}

#[track_caller]
fn run(launch: Launch, steps: &[&str]) -> harness::Outcome {
    launch.worker(steps.to_vec()).run()
}

#[test]
fn hosts_meet_and_their_lines_have_their_names() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let launch = ssh.launch(["--hosts", "alias1,th2:2", "--nproc-per-node", "1"]);
    let outcome = run(launch, &["place", "sum", "eprint=error of {rank}"]);
    outcome.expect_exit_code(0).expect_stdout("alias1| place rank=0").expect_stdout("th2| place rank=1");
    outcome.expect_stderr("alias1| error of 0").expect_stderr("th2| error of 1");
    // An only host has no name in front of its lines.
    let outcome = run(ssh.launch(["--hosts", "th2:2"]), &["place"]);
    assert_eq!(outcome.expect_exit_code(0).lines_with("place rank=").len(), 2, "{outcome}");
    outcome.expect_absent("th2| ");
    ssh.assert_nothing_left();
}

#[test]
fn hosts_with_other_families_and_backends_meet() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let c10d = ["--hosts", "th1,th2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-conf"];
    let outcome = run(ssh.launch(c10d).args(["last_call_timeout=1"]), &["place", "sum"]);
    assert_eq!(outcome.expect_exit_code(0).lines_with("world=2 total=3").len(), 2, "{outcome}");
    let v6 = ["--hosts", "th1-v6,th2-v6", "--nproc-per-node", "1"];
    assert_eq!(
        run(ssh.launch(v6), &["place", "sum"]).expect_exit_code(0).lines_with("world=2 total=3").len(),
        2
    );
    // Two families for one name.
    for host in 0..=2 {
        ssh.fleet().shell(host, "echo 'fd00:7468::11 both\n198.18.0.11 both' >>/etc/hosts");
    }
    let options = ["--hosts", "th1,th2", "--nproc-per-node", "1", "--master-addr", "both"];
    assert_eq!(
        run(ssh.launch(options), &["place", "sum"]).expect_exit_code(0).lines_with("world=2 total=3").len(),
        2
    );
}

#[test]
fn rust_program_trains_over_hosts() {
    let count = if is_soak() { 4 } else { 2 };
    let Some(ssh) = SshFleet::start(count) else { return };
    let names: Vec<String> = (1..=count).map(|host| format!("th{host}")).collect();
    let launch = ssh.launch(["--hosts", &names.join(","), "--nproc-per-node", "1"]);
    let outcome = launch.args([example("data_parallel")]).run();
    outcome.expect_exit_code(0).expect_stdout(&format!("th1| Let's use {count} CPU devices!"));
    assert_eq!(outcome.lines_with("In Model:").len(), 4 * count, "{outcome}");
}

#[test]
fn exported_variables_reach_workers_and_no_command_line() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let gate = Gate::new(ssh.scratch(), "gate");
    let launch = ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1", "--export", "KEPT,TOKEN"]);
    let launch =
        launch.env("KEPT", "a 'b'").env("TOKEN", "s3cret").env("LOST", "1").args(["--no-python", "sh", "-c"]);
    let line = format!(
        "echo \"kept=$KEPT lost=$LOST token=${{#TOKEN}} in $PWD\"; read x <{}",
        gate.path().display()
    );
    let job = launch.args([line]).start();
    let lines = job.wait_for_lines("kept=a 'b' lost= token=6 in ", 2);
    assert!(lines[0].contains(&ssh.scratch().at("")[..8]), "{lines:?}");
    let commands = ssh.fleet().run(0, &["ps", "-eww", "-o", "args="]);
    assert!(!commands.contains("s3cret") && commands.contains("BatchMode=yes"), "{commands}");
    gate.open_lines(2);
    job.wait().expect_exit_code(0);
}

#[test]
fn failed_worker_gives_its_status_and_one_report() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let outcome = run(
        ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1"]),
        &["place", "reduce=3", "rank1:exit=7", "forever"],
    );
    outcome.expect_exit_code(7);
    outcome.expect_stderr("th1| hint: the launcher on node 1 (th2, 198.18.0.12) says more");
    assert_eq!(outcome.lines_with("|   worker    rank 1").len(), 1, "{outcome}");
    ssh.assert_nothing_left();
}

#[test]
fn signals_go_to_workers_of_all_hosts() {
    let Some(ssh) = SshFleet::start(2) else { return };
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let launch = ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1"]);
        let job = launch.worker(["catch=SIGINT,SIGTERM", "print=ready", "signal=SIGINT,SIGTERM"]).start();
        job.wait_for_lines("ready", 2);
        job.signal(signal);
        let outcome = job.wait();
        // One host may hear of the other's stop before its own signal: then its worker gets SIGTERM.
        outcome.expect_exit_code(code).expect_stdout(&format!("got {signal} rank="));
        assert_eq!(outcome.stdout().matches("got SIG").count(), 2, "{outcome}");
    }
    ssh.assert_nothing_left();
}

#[test]
fn signal_for_workers_stops_nothing() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let gate = Gate::new(ssh.scratch(), "gate");
    let launch = ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1"]);
    let job = launch.worker(["catch=SIGUSR1", "print=ready", "signal=SIGUSR1", &gate.step()]).start();
    job.wait_for_lines("ready", 2);
    job.signal(Signal::SIGUSR1);
    job.wait_for_lines("got SIGUSR1 rank=", 2);
    // The end of the launcher is still a stop.
    job.signal(Signal::SIGKILL);
    let _ = job.wait();
    ssh.assert_nothing_left();
}

#[test]
fn workers_of_unequal_hosts_have_local_ranks_of_their_host() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let _ = ssh.scratch().file("hosts", "# all\nth1 slots=3\nth2:2\n", 0o644);
    let show = "echo \"rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK/$LOCAL_WORLD_SIZE\"";
    let outcome = ssh.launch(["--hostfile", "hosts"]).shell(show).run();
    let mut lines = outcome.expect_exit_code(0).lines_with("rank=");
    lines.sort();
    let expected = ["th1| rank=0/5 local=0/3", "th1| rank=1/5 local=1/3", "th1| rank=2/5 local=2/3"];
    assert_eq!(lines, [&expected[..], &["th2| rank=3/5 local=0/2", "th2| rank=4/5 local=1/2"]].concat());
}
