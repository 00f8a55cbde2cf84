//! Processes and hosts that are lost: the job ends with the name of the host, and no process is left anywhere.
//! With `RANKRUN_SOAK=1` each happens ten times.

use std::time::Duration;

use harness::{Gate, Job, Process, SshFleet, is_soak};
use nix::sys::signal::Signal;

use super::{run, start_pair};
use crate::nodes::report_soak;

fn rounds() -> usize {
    if is_soak() { 10 } else { 1 }
}

/// The processes of a host with this in their command, as soon as there is one.
#[track_caller]
fn find(ssh: &SshFleet, job: &Job, host: usize, part: &str) -> Process {
    let found = || ssh.fleet().processes(host).into_iter().find(|one| one.command.contains(part));
    job.wait_until(part, || found().is_some());
    found().expect("it was just there")
}

#[test]
fn killed_ssh_client_ends_job_everywhere() {
    let Some(ssh) = SshFleet::start(2) else { return };
    for round in 0..rounds() {
        let gate = Gate::new(ssh.scratch(), &format!("gate{round}"));
        let job = start_pair(&ssh, &gate, &[]);
        // The client is started in the wrapper's place.
        find(&ssh, &job, 0, "-- th2 sh -c").signal(Signal::SIGKILL);
        let outcome = job.wait();
        outcome.expect_exit_code(1).expect_absent("finished");
        outcome.expect_stderr("the connection to the host `th2` is lost: ssh ended (killed by SIGKILL)");
    }
    ssh.assert_nothing_left();
    report_soak("an ssh client was killed", rounds());
}

#[test]
fn killed_remote_processes_end_job_everywhere() {
    let Some(ssh) = SshFleet::start(2) else { return };
    for (what, code) in [("rr-agent", 1), ("--rankrun-ssh-node", 137)] {
        for round in 0..rounds() {
            let gate = Gate::new(ssh.scratch(), &format!("gate-{code}-{round}"));
            let job = start_pair(&ssh, &gate, &[]);
            kill_agent(&ssh, &job, what);
            let outcome = job.wait();
            outcome.expect_exit_code(code).expect_absent("finished");
        }
    }
    ssh.assert_nothing_left();
    report_soak("a remote agent was killed", 2 * rounds());
}

/// The guard is the process with the hidden word and no shell; the agent is its child.
#[track_caller]
fn kill_agent(ssh: &SshFleet, job: &Job, what: &str) {
    let is_guard = |one: &Process| {
        one.command.contains("--rankrun-ssh-node")
            && !one.command.contains("sh -c")
            && comm(one) != "rr-agent"
    };
    let found = || {
        ssh.fleet()
            .processes(2)
            .into_iter()
            .find(|one| if what == "rr-agent" { comm(one) == what } else { is_guard(one) })
    };
    job.wait_until(what, || found().is_some());
    found().expect("it was just there").signal(Signal::SIGKILL);
}

fn comm(process: &Process) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
    text.trim().to_owned()
}

#[test]
fn silent_host_is_named_at_its_limit() {
    let Some(ssh) = SshFleet::start(2) else { return };
    for _ in 0..rounds() {
        // A host whose link-layer address is known does not answer; another one has no route.
        ssh.fleet().heal(2);
        let _ = ssh.fleet().run(0, &["bash", "-c", "exec 3<>/dev/tcp/th2/2222"]);
        ssh.fleet().disconnect(2);
        let launch = ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1", "--join-timeout", "2s"]);
        let outcome = run(launch, &["place"]);
        outcome.expect_exit_code(1).expect_stderr("error: no answer within 2s from `th2`");
        outcome.expect_absent("place rank=");
    }
    ssh.fleet().heal(2);
    ssh.assert_nothing_left();
    report_soak("a host was silent", rounds());
}

#[test]
fn killed_local_launcher_leaves_nothing() {
    let Some(ssh) = SshFleet::start(2) else { return };
    for round in 0..rounds() {
        let gate = Gate::new(ssh.scratch(), &format!("gate{round}"));
        let job = start_pair(&ssh, &gate, &[]);
        job.signal(Signal::SIGKILL);
        job.expect_no_processes_within(Duration::from_secs(10));
        job.wait().expect_signal(Signal::SIGKILL).expect_absent("finished");
    }
    ssh.assert_nothing_left();
    report_soak("the local launcher was killed", rounds());
}

#[test]
fn host_cut_off_ends_job_by_its_lease() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let gate = Gate::new(ssh.scratch(), "gate");
    let options = ["--ssh", "ssh -o ServerAliveInterval=1 -o ServerAliveCountMax=2"];
    let job = start_pair(&ssh, &gate, &options);
    ssh.fleet().disconnect(2);
    let outcome = job.wait();
    assert!(outcome.stderr().contains("the connection to the host `th2` is lost"), "{outcome}");
    ssh.fleet().heal(2);
    ssh.assert_nothing_left();
}
