//! `rankrun deepspeed` beside DeepSpeed's own launcher: the same command line and environment, and what each worker gets.
//! The real tool imports PyTorch twice for each start, so that a test covers several rows of
//! docs/dev/launchers-contract.md, 2.4 and 2.6.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use harness::{Launch, Name, Outcome, Scratch, frameworks, free_port, is_rankrun, python, python_modules};
use serde_json::Value;

use crate::programs::{number_after, source};

/// Variables that only one of both launchers sets, and the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("GROUP_RANK", "rankrun sets what torchrun does"),
    ("GROUP_WORLD_SIZE", "rankrun sets what torchrun does"),
    ("LOCAL_WORLD_SIZE", "rankrun sets what torchrun does"),
    ("ROLE_", "rankrun sets what torchrun does"),
    ("TORCHELASTIC_", "rankrun sets what torchrun does; the store is the agent's"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "rankrun sets what torchrun does"),
    ("RANKRUN_", "rankrun's own, and the mark of the test"),
    ("OMP_NUM_THREADS", "rankrun shares the CPUs among the workers"),
    (
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "the real tool imports DeepSpeed, which sets it; so does a script's own import",
    ),
    ("TMPDIR", "each launch has a folder of its own"),
    ("HOME", "each launch has a folder of its own"),
    ("SHOW_FOLDER", "each launch has a folder of its own"),
];

/// What one worker wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    /// The command line of the process, and what Python makes of it.
    command: [Value; 2],
    environment: BTreeMap<String, String>,
}

/// Both launchers on one command line.
struct Pair {
    scratch: Scratch,
    environment: Vec<(&'static str, String)>,
    line: Vec<String>,
}

impl Pair {
    /// Four shares of the CPUs, on a free port.
    fn new(line: &str) -> Self {
        let line = line.split(' ').map(str::to_owned);
        let port = ["--master_port".to_owned(), free_port().to_string()];
        let environment = [("DS_ACCELERATOR", "cpu"), ("LOCAL_SIZE", "4")];
        Self {
            scratch: Scratch::new(),
            environment: environment.map(|(name, value)| (name, value.to_owned())).to_vec(),
            line: port.into_iter().chain(line).collect(),
        }
    }

    fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    fn run(&self, launch: Launch, folder: &str) -> (Outcome, Vec<Given>) {
        let programs = source("show_worker.py").parent().expect("a file has a folder").to_owned();
        let folder = self.scratch.folder(folder, 0o755);
        let launch = launch.args(self.line.iter().map(|word| word.replace("FOLDER", &folder)));
        let launch = launch.env("SHOW_FOLDER", &folder);
        let launch = launch.env("PYTHONPATH", python_modules(&[frameworks(), programs]));
        let launch = self.environment.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        let outcome = launch.run();
        (outcome, read_all(Path::new(&folder)))
    }

    fn ours(&self) -> (Outcome, Vec<Given>) {
        self.run(Launch::new(Name::Rankrun).with_torch().args(["deepspeed"]), "ours")
    }

    fn real(&self) -> (Outcome, Vec<Given>) {
        let launch = Launch::new(Name::Rankrun).with_torch().program_at(python());
        self.run(launch.args(["-m", "deepspeed.launcher.runner"]), "real")
    }

    /// Both, where workers get the same but for [`ALLOWED`] and these variables.
    #[track_caller]
    fn assert_same(&self, workers: usize, differs: &[&str]) {
        let ((outcome, ours), (real_outcome, real)) = (self.ours(), self.real());
        outcome.expect_exit_code(0);
        real_outcome.expect_exit_code(0);
        assert_eq!((ours.len(), real.len()), (workers, workers), "{outcome}\n{real_outcome}");
        for (ours, real) in ours.into_iter().zip(real) {
            assert_eq!(ours.command, real.command, "{outcome}\n{real_outcome}");
            for name in differs {
                assert_ne!(ours.environment.get(*name), real.environment.get(*name), "{name}");
            }
            assert_eq!(compared(ours, differs), compared(real, differs), "{outcome}\n{real_outcome}");
        }
    }
}

fn compared(given: Given, differs: &[&str]) -> BTreeMap<String, String> {
    let is_allowed = |name: &str| {
        let mut allowed = ALLOWED.iter().map(|(allowed, _)| *allowed);
        differs.contains(&name)
            || allowed.any(|allowed| name == allowed || (allowed.ends_with('_') && name.starts_with(allowed)))
    };
    given.environment.into_iter().filter(|(name, _)| !is_allowed(name)).collect()
}

/// In the order of the ranks.
fn read_all(folder: &Path) -> Vec<Given> {
    let read = |rank: usize| {
        let text = fs::read_to_string(folder.join(format!("{rank}.json"))).ok()?;
        let mut given: Value = serde_json::from_str(&text).expect("a worker writes JSON");
        let environment = serde_json::from_value(given["environment"].take()).expect("variables are texts");
        Some(Given { command: ["command", "argv"].map(|key| given[key].take()), environment })
    };
    (0..).map_while(read).collect()
}

/// The program without arguments, by its path.
fn script() -> String {
    source("show_worker.py").to_str().expect("the checkout has a plain name").to_owned()
}

#[test]
fn deepspeed_script_on_all_shares_gets_the_same() {
    if is_rankrun() {
        Pair::new(&format!("{} a --num_gpus 9", script())).assert_same(4, &[]);
    }
}

#[test]
fn deepspeed_count_ignores_list_and_may_exceed_shares() {
    if is_rankrun() {
        let pair = Pair::new(&format!("--num_gpu 5 --no_local_rank -- {} -- a", script()));
        pair.env("CUDA_VISIBLE_DEVICES", "3").env("OMP_NUM_THREADS", "2").assert_same(5, &[]);
    }
}

#[test]
fn deepspeed_included_ids_keep_their_order() {
    if is_rankrun() {
        // The real tool sorts them.
        let pair = Pair::new("--include localhost:3,1,1 --module show_worker a");
        pair.assert_same(2, &["CUDA_VISIBLE_DEVICES"]);
    }
}

#[test]
fn deepspeed_excluded_id_and_program_get_the_same() {
    if is_rankrun() {
        let programs = Scratch::new();
        let text = format!("#!/bin/sh\nexec '{}' '{}' \"$@\"\n", python().display(), script());
        let program = programs.file("program", &text, 0o755);
        Pair::new(&format!("-e localhost:0 --no_python {program} a")).assert_same(3, &[]);
    }
}

#[test]
fn deepspeed_inherited_list_keeps_its_order() {
    if is_rankrun() {
        // The real tool sorts it.
        let pair = Pair::new(&script()).env("CUDA_VISIBLE_DEVICES", "2,0");
        pair.assert_same(2, &["CUDA_VISIBLE_DEVICES"]);
    }
}

#[test]
fn deepspeed_host_file_with_localhost_gets_the_same() {
    if is_rankrun() {
        let files = Scratch::new();
        let hosts = files.file("hosts", "# one\nlocalhost slots=2 more\n", 0o644);
        let line = format!("-H {hosts} --no_ssh_check --master_addr 127.0.0.1 -i localhost:1 {}", script());
        Pair::new(&line).assert_same(1, &[]);
    }
}

#[test]
fn deepspeed_rank_logs_hold_output_of_both_launchers() {
    if !is_rankrun() {
        return;
    }
    let pair = Pair::new(&format!("--enable_each_rank_log FOLDER/logs {}", script()));
    let ((outcome, ours), (real_outcome, real)) = (pair.ours(), pair.real());
    assert_eq!((ours.len(), real.len()), (4, 4), "{outcome}\n{real_outcome}");
    outcome.expect_exit_code(0).expect_absent("was shown");
    real_outcome.expect_exit_code(0).expect_absent("was shown");
}

#[test]
fn deepspeed_trains_under_rankrun_without_change() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::new(Name::Rankrun).with_torch().env("DS_ACCELERATOR", "cpu");
    let launch = launch.env("PYTHONPATH", python_modules(&[frameworks()])).env("OMP_NUM_THREADS", "1");
    let port = free_port().to_string();
    let launch = launch.args(["deepspeed", "--num_gpus", "2", "--master_port", &port]);
    let outcome = launch.args([source("deepspeed_train.py")]).args(["--steps", "30"]).run();
    let mut lines = outcome.expect_exit_code(0).lines_with(": loss ");
    lines.sort();
    let [first, second] = &lines[..] else { panic!("each rank reports\n{outcome}") };
    assert!(
        first.contains("rank 0 of 2, argument 0") && second.contains("rank 1 of 2, argument 1"),
        "{outcome}"
    );
    let sums = [first, second].map(|line| number_after(line, "sum "));
    assert!(sums[0] == sums[1] && sums[0] > 3.0, "the ranks have one model\n{outcome}");
}
