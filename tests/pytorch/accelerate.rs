//! `rankrun accelerate launch` beside the real `accelerate launch`: what a worker gets. And programs of accelerate under it.

use std::net::TcpListener;

use harness::{Launch, Machine, Name, Scratch, frameworks, free_port, python, python_modules};

use crate::comparison::{Case, Compared, RealLauncher, path_with, show_worker};
use crate::programs::{number_after, source};

const ACCELERATE: RealLauncher =
    RealLauncher { program: "accelerate_runs.py", words: &["accelerate", "launch"], compared };

/// Variables whose values may differ from accelerate's, and why.
const DIFFERENT_VALUES: [(&str, &str); 3] = [
    ("MASTER_PORT", "where no port is named, a free one is taken in place of 29500"),
    ("TORCHELASTIC_RUN_ID", "a stand-alone job has a UUID, where accelerate has the word `none`"),
    ("TORCHELASTIC_ERROR_FILE", "the file is in a folder of the job"),
];

/// Variables that one side may set alone, in which cases, and why.
const ONE_SIDED: [(&str, Occasion, &str); 4] = [
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

impl Occasion {
    fn is_of(self, case: &Case) -> bool {
        match self {
            Self::Always => true,
            Self::DeepSpeed => case.has_word("--use_deepspeed"),
            Self::OneWorker => case.workers == 1,
        }
    }
}

fn compared(case: &Case, name: &str) -> Compared {
    let is_one_sided = |(row, occasion, _): &(&str, Occasion, &str)| {
        (*row == name || (row.ends_with('_') && name.starts_with(row))) && occasion.is_of(case)
    };
    let has_port = case.has_word("--main_process_port");
    let is_different = DIFFERENT_VALUES.iter().any(|(row, _)| *row == name);
    match name {
        _ if ONE_SIDED.iter().any(is_one_sided) => Compared::Nothing,
        "TORCHELASTIC_ERROR_FILE" => Compared::Presence,
        _ if is_different && !has_port => Compared::Presence,
        _ => Compared::Value,
    }
}

/// The options, the program that shows what it gets, and its arguments.
fn case(options: &str, arguments: &str) -> Case {
    Case::line(&format!("{options} {} {arguments}", show_worker()))
}

/// accelerate starts a single process without torchrun.
fn of_one(options: &str, arguments: &str) -> Case {
    Case { workers: 1, is_buffered: true, ..case(options, arguments) }
}

const TWO: &str = "--multi_gpu --num_processes 2";

#[test]
fn worker_of_several_gets_what_accelerate_gives_it() {
    let scratch = Scratch::new();
    let port = format!("--main_process_port {}", free_port());
    let file = scratch.file("fsdp.yaml", FSDP_FILE, 0o644);
    let deepspeed = scratch.file("deepspeed.yaml", DEEPSPEED_FILE, 0o644);
    let fp8 = scratch.file("fp8.json", FP8_FILE, 0o644);
    let cases = vec![
        case(TWO, "a --num_processes 7 -- b").inheriting("OMP_NUM_THREADS", "5"),
        case(
            "--multi-gpu --num-processes=2 --mixed-precision bf16 --num_cpu_threads_per_process 3 --debug \
             --enable_cpu_affinity --dynamo_backend eager --dynamo-mode max-autotune --dynamo_use_dynamic --",
            "-- x -- y",
        ),
        Case::line(&format!("{TWO} -m show_worker a")),
        Case::line(&format!("{TWO} --no_python {} {} a", python().display(), show_worker())),
        case(
            &format!(
                "{TWO} {port} --max_restarts 2 --role trainer --monitor_interval 0.5 --rdzv_conf timeout=60"
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
    ACCELERATE.compare(&cases, &scratch);
}

#[test]
fn workers_of_two_machines_get_what_accelerate_gives_them() {
    let machine = |options: &str, port: u16, rank: u32| {
        let place = format!("--machine_rank {rank} --main_process_ip 127.0.0.1 --main_process_port {port}");
        let case = case(&format!("--num_machines 2 {place} {options}"), "a");
        // Ours finds the interface that leads to the other machine.
        case.differs(&["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"])
    };
    let two = |options: &str| {
        let port = free_port();
        machine(options, port, 0).and(machine(options, port, 1))
    };
    let busy = TcpListener::bind("127.0.0.1:0").expect("the machine has a free port");
    let busy_port = busy.local_addr().expect("it is bound").port();
    let scratch = Scratch::new();
    let cases = [
        two("--multi_gpu --num_processes 4").of_workers(4),
        two(
            "--multi_gpu --num_processes 2 --same_network --mixed_precision bf16 --role trainer --max_restarts 1",
        ),
        two("--num_processes 4 --use_fsdp --num_cpu_threads_per_process 3").of_workers(4),
        machine("--multi_gpu --num_processes 2", busy_port, 0).fails([1, 1]),
        case("--multi_gpu --num_machines 2 --num_processes 4 --main_process_ip 127.0.0.1", "").fails([1, 1]),
    ];
    ACCELERATE.compare(&cases, &scratch);
}

#[test]
fn port_and_torchrun_variables_count_as_under_accelerate() {
    let busy = TcpListener::bind("127.0.0.1:0").expect("the machine has a free port");
    let port = busy.local_addr().expect("it is bound").port();
    let own_port = ["MASTER_PORT", "TORCHELASTIC_RUN_ID"];
    let cases = [
        // The loopback by its name and by its address.
        case(&format!("{TWO} --main_process_port {port}"), "").differs(&own_port).differs(&["MASTER_ADDR"]),
        case(&format!("{TWO} --main_process_port 0"), "").differs(&own_port),
        case(TWO, "")
            .inheriting("PET_REDIRECTS", "3")
            .inheriting("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGUSR1")
            .inheriting("PET_RDZV_ID", "job7"),
        case(TWO, "").inheriting("PET_STANDALONE", "1").differs(&["MASTER_ADDR"]),
        case(TWO, "")
            .inheriting("PET_NPROC_PER_NODE", "3")
            .inheriting("PET_ROLE", "other")
            .inheriting("PET_MAX_RESTARTS", "3")
            .inheriting("PET_NO_PYTHON", "1")
            .differs(&["PET_NPROC_PER_NODE", "PET_ROLE", "PET_MAX_RESTARTS", "PET_NO_PYTHON"]),
        // Of one machine it counts under accelerate.
        case(TWO, "").inheriting("PET_MASTER_ADDR", "127.0.0.2").differs(&["PET_MASTER_ADDR", "MASTER_ADDR"]),
    ];
    let scratch = Scratch::new();
    for compared in &ACCELERATE.compare(&cases, &scratch)[..2] {
        for worker in compared.workers.iter().flatten() {
            assert!(!["0", &port.to_string()].contains(&worker.environment["MASTER_PORT"].as_str()));
        }
    }
}

/// docs/dev/launchers-contract.md, 1.4.
#[test]
fn accelerate_refusals_have_its_exit_codes() {
    let scratch = Scratch::new();
    let file = |name: &str, text: &str| format!("--config_file {}", scratch.file(name, text, 0o644));
    let one_gpu = "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 1\ngpu_ids: '0'\n";
    let refused = |options: &str| case(options, "").fails([1, 1]);
    let unread = |options: &str| case(options, "").fails([2, 2]);
    let failing = scratch.file("fail", "#!/bin/sh\nexit 7\n", 0o755);
    let cases = [
        refused("--cpu --multi_gpu"),
        refused("--use_fsdp --use_deepspeed"),
        refused("--multi_gpu --num_processes 1"),
        refused(&file("one_gpu.yaml", one_gpu)),
        refused("--config_file absent.yaml"),
        refused(&file("unknown.yaml", "distributed_type: MULTI_GPU\nnum_proceses: 2\n")),
        refused(&file("no_number.yaml", "distributed_type: MULTI_GPU\n")),
        refused(&format!("{TWO} -m --no_python")),
        unread(&format!("{TWO} --mixed_precision fp17")),
        unread("--num_proc 2"),
        unread("--num_processes two"),
        Case::line("--num_processes 2").fails([2, 2]),
        // The real exit code is in its report alone.
        Case::line(&format!("{TWO} --no_python {failing}")).fails([7, 1]),
        Case::line(&format!("--num_processes 1 --no_python {failing}")).fails([7, 1]),
    ];
    ACCELERATE.compare(&cases, &scratch);
}

/// accelerate asks `nvidia-smi` for the cards, and writes the list without a look at them.
#[test]
fn gpu_ids_reach_workers_as_under_accelerate() {
    let on = |gpu_ids: &str| case(&format!("{TWO} --gpu_ids {gpu_ids}"), "").on(Machine::gpus(4));
    let scratch = Scratch::new();
    let name = "NVIDIA GeForce RTX 4090";
    let answer =
        format!("case $* in *driver*) echo 535.54.03 ;; *) echo '2, {name}'; echo '2, {name}' ;; esac");
    let bin = scratch.folder("bin", 0o755);
    let _ = scratch.file("bin/nvidia-smi", &format!("#!/bin/sh\n{answer}\n"), 0o755);
    let mut old_driver = Machine::gpus(2).with_driver("535.54.03");
    (0..2).for_each(|at| name.clone_into(&mut old_driver.card(at).name));
    let cases = [
        on("0,1").differs(&["CUDA_DEVICE_ORDER", "NCCL_RAS_ADDR"]),
        on("2,0").inheriting("CUDA_VISIBLE_DEVICES", "3,1").differs(&["CUDA_DEVICE_ORDER", "NCCL_RAS_ADDR"]),
        on("all").inheriting("CUDA_VISIBLE_DEVICES", "3,1").differs(&["NCCL_RAS_ADDR"]),
        case(TWO, "").on(old_driver).inheriting("PATH", path_with(&bin)).differs(&[
            "NCCL_P2P_DISABLE",
            "NCCL_IB_DISABLE",
            "NCCL_RAS_ADDR",
        ]),
    ];
    ACCELERATE.compare(&cases, &scratch);
}

#[test]
fn worker_of_one_gets_what_accelerate_gives_it() {
    let scratch = Scratch::new();
    let single = scratch.file("single.yaml", "distributed_type: 'NO'\nmixed_precision: 'no'\n", 0o644);
    let cases = vec![
        of_one("--num_processes 1", "a -- b"),
        of_one("--cpu --num_processes 1 --debug", "").inheriting("OMP_NUM_THREADS", "2"),
        of_one(&format!("--config_file {single} --dynamo_use_fullgraph"), "")
            .inheriting("PET_REDIRECTS", "3"),
    ];
    ACCELERATE.compare(&cases, &scratch);
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
