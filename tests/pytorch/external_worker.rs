//! Ranks of PyTorch that a person starts.
#![expect(clippy::disallowed_methods, reason = "the scripts that `explain` prints are run by a shell")]

use std::fs;
use std::process::{Child, Command, Stdio};

use harness::{Launch, Name, Scratch, free_port};

const PROGRAM: &str = "\
import torch, torch.distributed as dist
dist.init_process_group('gloo')
ones = torch.ones(1)
dist.all_reduce(ones)
print(f'rank {dist.get_rank()} has {ones.item()}')
dist.destroy_process_group()
";

#[test]
fn external_rank_joins_job() {
    let scratch = Scratch::new();
    let program = scratch.file("program.py", PROGRAM, 0o644);
    let launch = Launch::standalone(Name::Rankrun, 3).with_torch();
    let job = launch.args(["--leave-out", "1", &program]).start();
    let line = job.wait_for_line("  sh /");
    let script = line.trim_start().strip_prefix("sh ").expect("a command");
    let hand = Launch::new(Name::Rankrun).under(["sh", "-c", "exec sh \"$0\"", script]).with_torch().run();
    hand.expect_exit_code(0).expect_stdout("rank 1 has 3.0");
    job.wait()
        .expect_exit_code(0)
        .expect_stdout("rank 0 has 3.0")
        .expect_stdout("rank 2 has 3.0")
        .expect_absent("rank 1 has");
}

#[test]
fn ranks_start_without_launcher() {
    let scratch = Scratch::new();
    let program = scratch.file("program.py", PROGRAM, 0o644);
    let port = free_port().to_string();
    let start = |rank: &str| -> Child {
        let launch = Launch::new(Name::Rankrun).with_torch().env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        let launch =
            launch.env("TMPDIR", scratch.folder("tmp", 0o755)).env("HOME", scratch.folder("home", 0o755));
        let options = ["explain", "--script", rank, "--nproc-per-node", "2", "--rdzv-id", "x", &program];
        let printed = launch.args(options).run();
        printed.expect_exit_code(0);
        let script = scratch.at(&format!("r{rank}.sh"));
        fs::write(&script, printed.stdout_bytes()).expect("the scratch folder is writable");
        let mut command = Command::new("timeout");
        command.args(["250", "sh", &script]).env("MASTER_PORT", &port).stdout(Stdio::piped());
        command.spawn().expect("there is a shell")
    };
    let ranks = ["0", "1"].map(start);
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().expect("it ends");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && stdout.contains(&format!("rank {rank} has 2.0")), "{output:?}");
    }
}
