//! Hosts that cannot take part, each named with the way out.

use harness::{SshFleet, fixture};

use super::run;

#[test]
fn host_without_rankrun_or_with_another_version_is_named() {
    let Some(ssh) = SshFleet::start(2) else { return };
    // Each host has a /dev/shm of its own.
    let launcher = fixture("launcher-under-test");
    let copy = |host| ssh.fleet().shell(host, &format!("cp {} /dev/shm/rankrun", launcher.display()));
    copy(0);
    copy(1);
    let start = || {
        let launch =
            ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1"]).program_at("/dev/shm/rankrun");
        run(launch, &["place"])
    };
    let outcome = start();
    outcome.expect_exit_code(1).expect_absent("place rank=");
    outcome.expect_stderr(
        "error: the host `th2` has no rankrun: neither `/dev/shm/rankrun` nor `rankrun` in its PATH",
    );
    outcome.expect_stderr(
        "hint: it is one file: `ssh th2 mkdir -p /dev/shm && scp /dev/shm/rankrun th2:/dev/shm/rankrun`",
    );
    let other =
        r#"#!/bin/sh\necho 'rankrun-ssh-node {"protocol":1,"version":"0.0.1","port":9}'; cat >/dev/null\n"#;
    ssh.fleet().shell(
        2,
        &format!("printf '{}' >/dev/shm/rankrun; chmod 755 /dev/shm/rankrun", other.replace('\'', "'\\''")),
    );
    let outcome = start();
    outcome.expect_exit_code(1).expect_absent("place rank=");
    outcome.expect_stderr(&format!(
        "error: the host `th2` has rankrun 0.0.1, and this one is {}",
        env!("CARGO_PKG_VERSION")
    ));
    ssh.assert_nothing_left();
}

#[test]
fn two_names_of_one_host_are_refused() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let outcome = run(ssh.launch(["--hosts", "th1,th2,alias1", "--nproc-per-node", "1"]), &["place"]);
    outcome.expect_exit_code(1).expect_absent("place rank=");
    outcome.expect_stderr("error: `th1` and `alias1` are names of one host");
    outcome.expect_stderr("hint: name it once, with all its workers, as in `th1:2`");
    ssh.assert_nothing_left();
}

#[test]
fn unreachable_host_is_named_with_words_of_ssh() {
    let Some(ssh) = SshFleet::start(2) else { return };
    ssh.stop_server(2);
    for (hosts, part) in [
        ("th1,th2", "error: no agent on the host `th2`: ssh ended (exit code 255): "),
        ("th1,th9", "error: no agent on the host `th9`: ssh ended (exit code 255): "),
    ] {
        let outcome = run(ssh.launch(["--hosts", hosts, "--nproc-per-node", "1"]), &["place"]);
        outcome.expect_exit_code(1).expect_stderr(part).expect_stderr("hint: `ssh -o BatchMode=yes th");
        outcome.expect_absent("place rank=");
    }
}

#[test]
fn missing_ssh_client_is_named() {
    let Some(ssh) = SshFleet::start(1) else { return };
    let outcome = run(ssh.launch(["--hosts", "th1", "--ssh", "no-such-ssh -v"]), &["place"]);
    outcome.expect_exit_code(1).expect_stderr("error: cannot start the ssh client `no-such-ssh`");
    outcome.expect_stderr("hint: install OpenSSH's client, or name another one with `--ssh`");
}

#[test]
fn folder_that_a_host_lacks_is_named() {
    let Some(ssh) = SshFleet::start(1) else { return };
    ssh.fleet().shell(0, "mkdir /dev/shm/here");
    let launch = ssh.launch(["--hosts", "th1"]).cwd("/");
    // The launcher enters the folder after it is on its host.
    let launch = launch.under(["env", "--chdir=/dev/shm/here"]);
    let outcome = run(launch, &["place"]);
    outcome
        .expect_exit_code(1)
        .expect_stderr("the working folder `/dev/shm/here` cannot be entered on this host");
}

#[test]
fn name_of_first_host_may_resolve_late() {
    let Some(ssh) = SshFleet::start(2) else { return };
    ssh.fleet().remove_host_names(2);
    let job = ssh.launch(["--hosts", "th1,th2", "--nproc-per-node", "1"]).worker(["place", "sum"]).start();
    job.wait_for_line("no address is known for the host");
    ssh.fleet().shell(2, "echo '198.18.0.11 th1' >/etc/hosts");
    assert_eq!(job.wait().expect_exit_code(0).lines_with("world=2 total=3").len(), 2);
}
