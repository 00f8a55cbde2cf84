//! `rankrun accelerate launch` beside the real `accelerate launch`: what a worker gets. And programs of accelerate under it.
#![expect(
    clippy::disallowed_methods,
    reason = "the real accelerate is started for many command lines at once"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use harness::{Launch, Name, Scratch, frameworks, free_port, python, python_modules};
use serde_json::{Value, json};

use crate::programs::{number_after, source};

type Variables = BTreeMap<String, String>;

/// What the harness and Python itself add on either side.
const OF_HARNESS: [&str; 9] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "HOME",
    "TERM",
    "RUST_BACKTRACE",
    "RANKRUN_E2E_MARK",
    "LC_CTYPE",
    "SHOW_FOLDER",
];

/// Variables whose values may differ from accelerate's, and why.
const DIFFERENT_VALUES: [(&str, &str); 3] = [
    ("MASTER_PORT", "where no port is named, a free one is taken in place of 29500"),
    ("TORCHELASTIC_RUN_ID", "a stand-alone job has a UUID, where accelerate has the word `none`"),
    ("TORCHELASTIC_ERROR_FILE", "the file is in a folder of the job"),
];

/// Variables that one side may set alone, in which cases, and why.
const ONE_SIDED: [(&str, Occasion, &str); 5] = [
    ("PYTHON_EXEC", Occasion::Always, "the harness names the Python to rankrun alone"),
    ("RANKRUN_", Occasion::Always, "rankrun's own, which programs may read"),
    ("OMP_NUM_THREADS", Occasion::DeepSpeed, "torchrun sets 1, rankrun an even share of the CPUs"),
    ("TORCHELASTIC_ERROR_FILE", Occasion::OneWorker, "rankrun reports the error of a single process too"),
    (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        Occasion::OneWorker,
        "PyTorch's own default, and a single process has no NCCL",
    ),
];

/// In which cases a variable may be set on one side alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occasion {
    Always,
    DeepSpeed,
    OneWorker,
}

/// A command line for both.
struct Case {
    words: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
    workers: usize,
}

/// What one worker got.
#[derive(Debug, Clone, PartialEq)]
struct Worker {
    argv: Vec<String>,
    environment: Variables,
}

fn case(options: &str, arguments: &str) -> Case {
    let script = source("show_worker.py").display().to_string();
    let words = options.split_whitespace().map(str::to_owned).chain([script]);
    let words = words.chain(arguments.split_whitespace().map(str::to_owned)).collect();
    Case { words, environment: Vec::new(), workers: 2 }
}

impl Case {
    fn inheriting(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    fn is_on(&self, occasion: Occasion) -> bool {
        match occasion {
            Occasion::Always => true,
            Occasion::DeepSpeed => self.words.iter().any(|word| word == "--use_deepspeed"),
            Occasion::OneWorker => self.workers == 1,
        }
    }

    fn of_one_worker(mut self) -> Self {
        self.workers = 1;
        self
    }
}

/// PyTorch's modules, the frameworks, and the folder of the programs, for `-m`.
fn modules() -> String {
    let programs = source("show_worker.py").parent().expect("it is in a folder").to_owned();
    python_modules(&[frameworks(), programs]).into_string().expect("a path is text")
}

/// What the workers wrote into the folder, by rank.
#[track_caller]
fn workers_in(folder: &str) -> Vec<Worker> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let bytes = fs::read(entry.expect("the folder is ours").path()).expect("the file is whole");
        let mut shown: Value = serde_json::from_slice(&bytes).expect("a worker wrote it");
        let [argv, environment] = ["argv", "environment"].map(|key| shown[key].take());
        let argv = serde_json::from_value(argv).expect("arguments are texts");
        Worker { argv, environment: serde_json::from_value(environment).expect("variables are texts") }
    };
    let mut workers: Vec<Worker> = fs::read_dir(folder).expect("the folder is ours").map(read).collect();
    workers.sort_by_key(|worker| worker.environment.get("RANK").cloned());
    workers
}

fn ours(case: &Case, folder: &str) {
    let launch =
        Launch::new(Name::Rankrun).with_torch().args(["accelerate", "launch"]).args(case.words.clone());
    let launch = launch.env("PYTHONPATH", modules()).env("SHOW_FOLDER", folder);
    let launch = case.environment.iter().fold(launch, |launch, (name, value)| launch.env(name, *value));
    launch.run().expect_exit_code(0);
}

/// The real accelerate, once for all cases.
fn theirs(cases: &[(Case, String, String)], scratch: &Scratch) {
    let line = |(case, _, folder): &(Case, String, String)| {
        let mut environment = json!({
            "PATH": std::env::var("PATH").unwrap_or_default(),
            "HOME": scratch.folder("home", 0o755),
            "TMPDIR": scratch.folder("tmp", 0o755),
            "PYTHONPATH": modules(),
            "SHOW_FOLDER": folder,
        });
        for (name, value) in &case.environment {
            environment[*name] = json!(value);
        }
        format!("{}\n", json!({ "words": case.words, "environment": environment }))
    };
    let lines: String = cases.iter().map(line).collect();
    let mut command = Command::new(python());
    command.arg(source("accelerate_runs.py")).env("PYTHONPATH", modules());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut input = child.stdin.take().expect("it is a pipe");
    input.write_all(lines.as_bytes()).expect("Python reads its input");
    drop(input);
    let output = child.wait_with_output().expect("Python ends");
    let statuses = String::from_utf8_lossy(&output.stdout).into_owned();
    let all_succeeded =
        statuses.lines().count() == cases.len() && statuses.lines().all(|status| status == "0");
    assert!(all_succeeded, "{statuses}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The variables that both sides must agree on.
fn compared(case: &Case, worker: &Worker) -> Variables {
    let is_one_sided = |name: &str| {
        ONE_SIDED.iter().any(|(row, occasion, _)| {
            (*row == name || (row.ends_with('_') && name.starts_with(row))) && case.is_on(*occasion)
        })
    };
    let is_kept = |name: &String| !OF_HARNESS.contains(&name.as_str()) && !is_one_sided(name);
    let mut variables = worker.environment.clone();
    variables.retain(|name, _| is_kept(name));
    let has_port = case.words.iter().any(|word| word == "--main_process_port");
    for (name, _) in DIFFERENT_VALUES {
        let is_compared = has_port && name != "TORCHELASTIC_ERROR_FILE";
        if let Some(value) = variables.get_mut(name).filter(|_| !is_compared) {
            "…".clone_into(value);
        }
    }
    variables
}

/// Runs all cases on both sides and compares argv and variables of each worker.
#[track_caller]
fn assert_workers_equal(cases: Vec<Case>, scratch: &Scratch) {
    let folders = |at: usize, side: &str| scratch.folder(&format!("{side}{at}"), 0o755);
    let cases: Vec<_> = cases
        .into_iter()
        .enumerate()
        .map(|(at, case)| (case, folders(at, "ours"), folders(at, "theirs")))
        .collect();
    // One after the other, since a case may name a port.
    theirs(&cases, scratch);
    for (case, folder, _) in &cases {
        ours(case, folder);
    }
    let differences: Vec<String> = cases
        .iter()
        .flat_map(|(case, ours, theirs)| {
            let (ours, theirs) = (workers_in(ours), workers_in(theirs));
            assert_eq!((ours.len(), theirs.len()), (case.workers, case.workers), "{:?}", case.words);
            let pairs = ours.iter().zip(&theirs).flat_map(|(ours, theirs)| differences(case, ours, theirs));
            pairs.map(|difference| format!("{}: {difference}", case.words.join(" "))).collect::<Vec<_>>()
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// What the two workers do not agree on.
fn differences(case: &Case, ours: &Worker, theirs: &Worker) -> Vec<String> {
    let (our_variables, their_variables) = (compared(case, ours), compared(case, theirs));
    let names: BTreeSet<&String> = our_variables.keys().chain(their_variables.keys()).collect();
    let of_variables = names.into_iter().filter_map(|name| {
        let values = (our_variables.get(name), their_variables.get(name));
        (values.0 != values.1).then(|| format!("{name}: {:?}, accelerate has {:?}", values.0, values.1))
    });
    let of_words =
        (ours.argv != theirs.argv).then(|| format!("{:?}, accelerate has {:?}", ours.argv, theirs.argv));
    of_variables.chain(of_words).collect()
}

#[test]
fn worker_of_several_gets_what_accelerate_gives_it() {
    let scratch = Scratch::new();
    let two = "--multi_gpu --num_processes 2";
    let module = |line: &str| Case {
        words: format!("{two} {line}").split_whitespace().map(str::to_owned).collect(),
        environment: Vec::new(),
        workers: 2,
    };
    let port = format!("--main_process_port {}", free_port());
    let file = scratch.file("fsdp.yaml", FSDP_FILE, 0o644);
    let deepspeed = scratch.file("deepspeed.yaml", DEEPSPEED_FILE, 0o644);
    let fp8 = scratch.file("fp8.json", FP8_FILE, 0o644);
    let cases = vec![
        case(two, "a --num_processes 7 -- b").inheriting("OMP_NUM_THREADS", "5"),
        case(
            "--multi-gpu --num-processes=2 --mixed-precision bf16 --num_cpu_threads_per_process 3 --debug \
             --enable_cpu_affinity --dynamo_backend eager --dynamo-mode max-autotune --dynamo_use_dynamic --",
            "-- x -- y",
        ),
        module("-m show_worker a"),
        module(&format!("--no_python {} {} a", python().display(), source("show_worker.py").display())),
        case(
            &format!(
                "{two} {port} --max_restarts 2 --role trainer --monitor_interval 0.5 --rdzv_conf timeout=60"
            ),
            "",
        ),
        case("--use_fsdp --num_processes 2", ""),
        case(
            "--use_fsdp --num_processes 2 --fsdp_version 2 --fsdp_offload_params True --use_parallelism_config \
             --parallelism_config_cp_size 2 --fsdp_state_dict_type FULL_STATE_DICT",
            "",
        ),
        case(&format!("--config_file {file} --fsdp_min_num_params 1_000"), ""),
        case(
            "--use_megatron_lm --num_processes 2 --megatron_lm_gradient_clipping 1e-5 --megatron_lm_no_load_optim false \
             --megatron_lm_tp_degree 2",
            "",
        ),
        case(
            "--use_deepspeed --num_processes 2 --zero_stage 3 --gradient_clipping 1 --offload_param_device CPU",
            "",
        ),
        case(&format!("--use_deepspeed --config_file {deepspeed}"), ""),
        case(&format!("--config_file {fp8} --fp8_override_linear_precision true,false,yes"), ""),
    ];
    assert_workers_equal(cases, &scratch);
}

#[test]
fn worker_of_one_gets_what_accelerate_gives_it() {
    let scratch = Scratch::new();
    let single = scratch.file("single.yaml", "distributed_type: 'NO'\nmixed_precision: 'no'\n", 0o644);
    let cases = vec![
        case("--num_processes 1", "a -- b").of_one_worker(),
        case("--cpu --num_processes 1 --debug", "").of_one_worker().inheriting("OMP_NUM_THREADS", "2"),
        case(&format!("--config_file {single} --dynamo_use_fullgraph"), "").of_one_worker(),
    ];
    assert_workers_equal(cases, &scratch);
}

/// Written by `accelerate config`, with values of each type.
const FSDP_FILE: &str = "\
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: GPT2Block
  fsdp_use_orig_params: null
  fsdp_version: 1
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
";

const DEEPSPEED_FILE: &str = "\
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: auto
  offload_optimizer_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: no
  zero_stage: 2
mixed_precision: fp16
num_processes: 2
";

const FP8_FILE: &str = r#"{
    "distributed_type": "MULTI_GPU",
    "num_processes": 2,
    "mixed_precision": "fp8",
    "fp8_config": {"backend": "TE", "amax_history_length": 16, "fp8_format": "E4M3", "use_autocast_during_eval": true},
    "dynamo_config": {"dynamo_backend": "INDUCTOR", "use_dynamic": false}
}"#;

const CPU_FILE: &str =
    "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\nmixed_precision: bf16\n";

/// A program under `rankrun accelerate launch` on two CPU ranks.
fn two_ranks(program: &str, scratch: &Scratch) -> Launch {
    let file = scratch.file("config.yaml", CPU_FILE, 0o644);
    let launch =
        Launch::new(Name::Rankrun).with_torch().args(["accelerate", "launch", "--config_file", &file]);
    let launch = launch.args([source(program)]).env("OMP_NUM_THREADS", "1");
    launch.env("PYTHONPATH", python_modules(&[frameworks()])).env("HF_HUB_OFFLINE", "1")
}

#[test]
fn accelerator_trains_on_both_ranks() {
    let scratch = Scratch::new();
    let outcome = two_ranks("accelerate_train.py", &scratch).run();
    let lines = outcome.expect_exit_code(0).lines_with(": loss ");
    let [line] = &lines[..] else { panic!("one rank reports: {lines:?}\n{outcome}") };
    assert!(line.starts_with("MULTI_CPU of 2 on cpu, bf16: loss "), "{line}");
    assert!(number_after(line, "loss ") < 0.5, "{line}");
}

#[test]
fn hugging_face_trainer_trains_under_accelerate_launch() {
    let scratch = Scratch::new();
    let outcome = two_ranks("hf_trainer.py", &scratch).args([scratch.at("output")]).run();
    let lines = outcome.expect_exit_code(0).lines_with(": loss ");
    let [line] = &lines[..] else { panic!("one rank reports: {lines:?}\n{outcome}") };
    assert!(line.starts_with("distributed, world size 2: loss "), "{line}");
    assert!(number_after(line, "loss ") < 2.5, "{line}");
}
