//! Mistakes with PyTorch: what it says, and the hint that follows from it.

use harness::{Fleet, Launch, Name, Outcome, Scratch, free_port};

use crate::programs::source;

/// Two ranks on which the script makes this mistake.
fn launch_mistake(mistake: &str) -> Launch {
    let launch = Launch::standalone(Name::Rankrun, 2).with_torch().env("OMP_NUM_THREADS", "1");
    launch.args([source("mistakes.py")]).args([mistake])
}

#[track_caller]
fn hints(outcome: &Outcome, parts: &[&str]) {
    let text = outcome.stderr();
    let hint =
        text.lines().find(|line| line.starts_with("hint: ")).unwrap_or_else(|| panic!("no hint\n{outcome}"));
    parts.iter().for_each(|part| assert!(hint.contains(part), "`{part}` is missing\n{outcome}"));
}

#[test]
fn process_group_not_destroyed_aborts_and_is_named() {
    let scratch = Scratch::new();
    // Python frees all objects at its end, without our own settings of its collections.
    let launch = launch_mistake("no-destroy").without_env("PYTHONPATH");
    let outcome = launch.args([scratch.at("ended")]).run();
    outcome.expect_exit_code(134).expect_stderr("terminate called without an active exception");
    hints(&outcome, &["when the script had ended", "`torch.distributed.destroy_process_group()`"]);
}

#[test]
fn nccl_without_gpus_names_gloo() {
    let outcome = launch_mistake("nccl").env("CUDA_VISIBLE_DEVICES", "-1").run();
    outcome.expect_exit_code(1);
    hints(&outcome, &["`CUDA_VISIBLE_DEVICES=-1` hides every GPU"]);
}

#[test]
fn store_port_in_use_names_port_and_listener() {
    let port = free_port().to_string();
    let outcome = launch_mistake("port").args([&port]).run();
    outcome.expect_exit_code(1).expect_stderr("EADDRINUSE");
    hints(&outcome, &[&format!("port {port}, which is taken"), "`MASTER_PORT`"]);
}

#[test]
fn gloo_on_loopback_of_two_hosts_names_interface() {
    let Some(fleet) = Fleet::start(2) else { return };
    let launch = |host: usize| {
        let launch = Launch::new(Name::Rankrun).with_torch().env("OMP_NUM_THREADS", "1");
        let launch = launch.env("GLOO_SOCKET_IFNAME", "lo").args(["--nnodes", "2", "--nproc-per-node", "1"]);
        let launch = launch.args(["--node-rank", &(host - 1).to_string(), "--master-addr", "th1"]);
        launch.args(["--master-port", "29400"]).args([source("mistakes.py")]).args(["meet"])
    };
    let jobs: Vec<_> = fleet.hosts().map(|host| fleet.on(host, launch(host)).start()).collect();
    let outcomes: Vec<Outcome> = jobs.into_iter().map(harness::Job::wait).collect();
    // Of two ranks that cannot connect one fails first, and its node tells why; the other one shows its last lines.
    let is_of_first = |outcome: &&Outcome| {
        outcome.stderr().contains("Gloo connectFullMesh failed") && !outcome.stderr().contains("says more")
    };
    let stderr = outcomes.iter().find(is_of_first);
    let stderr_text =
        stderr.unwrap_or_else(|| panic!("gloo has not failed\n{}\n{}", outcomes[0], outcomes[1]));
    hints(stderr_text, &["gloo uses the loopback", "`GLOO_SOCKET_IFNAME` is `lo` here", "`--iface`"]);
}
