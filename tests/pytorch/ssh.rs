//! gloo over hosts that `rankrun --hosts` has started by ssh.

use harness::{SshFleet, is_soak};

use crate::programs::source;

#[test]
fn hosts_started_by_ssh_train_over_gloo() {
    let count = if is_soak() { 4 } else { 2 };
    let Some(ssh) = SshFleet::start(count) else { return };
    let names: Vec<String> = (1..=count).map(|host| format!("th{host}")).collect();
    let launch = ssh.launch(["--hosts", &names.join(","), "--nproc-per-node", "1"]).with_torch();
    let launch =
        launch.env("OMP_NUM_THREADS", "1").args(["--export", "PYTHON_EXEC,PYTHONPATH,OMP_NUM_THREADS"]);
    let outcome = launch.args([source("meet.py")]).run();
    outcome.expect_exit_code(0);
    let right = format!("world={count} total={}", count * (count + 1) / 2);
    assert_eq!(outcome.lines_with(&right).len(), count, "{outcome}");
    assert_eq!(outcome.lines_with("finished rank=").len(), count, "{outcome}");
    ssh.assert_nothing_left();
}
