//! `rankrun deepspeed --hostfile` with other hosts.

use harness::{Launch, Name, Outcome, SshFleet};

/// Prints what a worker gets, in one line.
const SHOW: &str = "#!/bin/sh
echo \"args=$* rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK/$LOCAL_SIZE cross=$CROSS_RANK/$CROSS_SIZE devices=$CUDA_VISIBLE_DEVICES \
extra=$EXTRA\"
";

fn show(ssh: &SshFleet, line: &str) -> Outcome {
    let program = ssh.scratch().file("show", SHOW, 0o755);
    let launch = Launch::new(Name::Rankrun).args(["deepspeed"]).args(line.split(' '));
    let launch = launch.args(["--no_python", &program]).env("DS_ACCELERATOR", "cpu");
    ssh.prepare(launch).run()
}

fn sorted_lines(outcome: &Outcome) -> Vec<String> {
    let mut lines = outcome.expect_exit_code(0).lines_with("args=");
    lines.sort();
    lines
}

#[test]
fn deepspeed_hosts_are_started_by_ssh() {
    let Some(ssh) = SshFleet::start(2) else { return };
    let _ = ssh.scratch().file("hosts", "th1 slots=3\nth2 slots=2\n", 0o644);
    let _ = ssh.scratch().file(".deepspeed_env", "EXTRA=of file\n", 0o644);
    let worker = |host: &str, rank: usize, world: usize, local: &str, cross: &str, devices: &str| {
        let own = local.split('/').next().unwrap_or_default();
        format!(
            "{host}args=--local_rank={own} rank={rank}/{world} local={local} cross={cross} devices={devices} extra=of file"
        )
    };
    let all = [
        worker("th1| ", 0, 5, "0/3", "0/2", "0,1,2"),
        worker("th1| ", 1, 5, "1/3", "0/2", "0,1,2"),
        worker("th1| ", 2, 5, "2/3", "0/2", "0,1,2"),
        worker("th2| ", 3, 5, "0/2", "1/2", "0,1"),
        worker("th2| ", 4, 5, "1/2", "1/2", "0,1"),
    ];
    assert_eq!(sorted_lines(&show(&ssh, "--hostfile hosts")), all);
    assert_eq!(sorted_lines(&show(&ssh, "--hostfile hosts --num_nodes 2")), all);
    let one = [worker("", 0, 1, "0/1", "0/1", "1")];
    assert_eq!(sorted_lines(&show(&ssh, "--hostfile hosts --include th2:1")), one);
    let two = [worker("", 0, 2, "0/2", "0/1", "0,1"), worker("", 1, 2, "1/2", "0/1", "0,1")];
    assert_eq!(sorted_lines(&show(&ssh, "--hostfile hosts --exclude th1")), two);
}
