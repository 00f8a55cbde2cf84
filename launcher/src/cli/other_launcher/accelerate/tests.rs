//! Command lines and files, and the launches that they become.

use std::collections::BTreeMap;

use super::*;
use rankrun_core::facts::fake::FakeWorld;

fn translate_in(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Result<Translation, CliError> {
    let words: Vec<OsString> = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect();
    match translate(true, &words, &world.facts(environment)) {
        Ok(OtherCommand::Launch(translation)) => Ok(translation),
        Ok(other) => panic!("`{line}`: {other:?}"),
        Err(error) => Err(error),
    }
}

fn translated(line: &str) -> Translation {
    translate_in(FakeWorld::default(), line, &[]).unwrap()
}

fn with_file(file: &'static str, line: &str) -> Translation {
    let world = FakeWorld::default().file("/job/c.yaml", file.as_bytes());
    translate_in(world, &format!("--config_file c.yaml {line}"), &[]).unwrap()
}

fn words(translation: &Translation) -> String {
    let words: Vec<_> = translation.words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// The variables that are set.
fn variables(translation: &Translation) -> BTreeMap<&str, &str> {
    let set =
        translation.environment.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_ref()?)));
    set.map(|(name, value)| (name, value.to_str().unwrap())).collect()
}

/// Exit status, message and hint.
fn refusal(world: FakeWorld, line: &str) -> (u8, String) {
    let error = translate_in(world, line, &[]).unwrap_err();
    assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{error}");
    (error.exit_code(), error.to_string())
}

#[test]
fn options_become_words_of_rankrun() {
    let machines = "--num_machines 2 --machine_rank 1 --main_process_ip a";
    for (line, expected) in [
        ("x.py", "--distributed auto x.py"),
        ("--num_processes 1 x.py -h", "--nproc-per-node 1 --distributed auto x.py -h"),
        ("--num-processes=2 x.py", "--nproc-per-node 2 x.py"),
        ("--multi_gpu x.py", "x.py"),
        ("--multi_gpu --num_processes 2 -m a.b", "--nproc-per-node 2 --module a.b"),
        ("--use_fsdp --num_processes 1 x.py", "--nproc-per-node 1 x.py"),
        ("--cpu x.py", "--device-type cpu --nproc-per-node 1 --distributed auto x.py"),
        ("--cpu --num_processes 2 x.py", "--device-type cpu --nproc-per-node 2 x.py"),
        ("--multi_gpu --gpu_ids 2,0 x.py", "--devices 2,0 x.py"),
        ("--multi_gpu --gpu_ids all --num_processes 4 x.py", "--nproc-per-node 4 x.py"),
        ("--multi_gpu --main_process_port 29501 x.py", "--master-port 29501 x.py"),
        ("--multi_gpu --main_process_port 0 x.py", "x.py"),
        ("--multi_gpu --rdzv_backend c10d x.py", "--rdzv-backend c10d x.py"),
        (
            "--multi_gpu --max_restarts 3 --role w -t 3 --log_dir l --monitor_interval 1 --rdzv_conf a=1 x.py",
            "--rdzv-conf a=1 --max-restarts 3 --monitor-interval 1 --role w --tee 3 --log-dir l x.py",
        ),
        ("--no_python --num_processes 2 ls", "--nproc-per-node 2 --no-python ls"),
        ("--multi_gpu x.py -- -- a", "-- x.py -- a"),
        ("--multi_gpu -- x.py a --", "x.py a --"),
        ("--multi_gpu -- x.py -- a", "-- x.py -- a"),
        ("--multi_gpu status", "-- status"),
        ("--multi_gpu --num_processes 2 status", "--nproc-per-node 2 status"),
        ("--multi_gpu -- -x.py", "-- -x.py"),
    ] {
        assert_eq!(words(&translated(line)), expected, "{line}");
    }
    for (line, expected) in [
        (
            "--multi_gpu --num_processes 5",
            "--total-workers 5 --nnodes 2 --node-rank 1 --master-addr a --master-port 29500",
        ),
        (
            "--num_processes 2 --cpu",
            "--device-type cpu --total-workers 2 --nnodes 2 --node-rank 1 --master-addr a --master-port 29500",
        ),
        ("--same_network --main_process_port 7", "--nnodes 2 --node-rank 1 --master-addr a --master-port 7"),
        ("--rdzv_backend c10d", "--nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint a:29500"),
        (
            "--use_deepspeed --deepspeed_multinode_launcher standard --num_processes 4",
            "--total-workers 4 --nnodes 2 --node-rank 1 --master-addr a --master-port 29500",
        ),
    ] {
        assert_eq!(
            words(&translated(&format!("{machines} {line} x.py"))),
            format!("{expected} x.py"),
            "{line}"
        );
    }
    let line = "--num_machines 2 --main_process_ip ::1 --rdzv_backend c10d x.py";
    assert_eq!(words(&translated(line)), "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint [::1]:29500 x.py");
}

#[test]
fn port_in_use_becomes_a_free_one_with_a_remark() {
    let world = FakeWorld::default().port_in_use(29501);
    let translation = translate_in(world, "--multi_gpu --main_process_port 29501 x.py", &[]).unwrap();
    assert_eq!(words(&translation), "x.py");
    assert_eq!(translation.remarks, ["port 29501 of `--main_process_port` is in use; a free one is taken"]);
}

#[test]
fn setting_without_effect_is_remarked() {
    for (line, remark) in [
        (
            "--multi_gpu --main_process_ip a x.py",
            "`--main_process_ip` has no effect: the job has one machine",
        ),
        ("--cpu --gpu_ids 0,1 x.py", "`--gpu_ids` has no effect: the processes compute on the CPUs"),
        (
            "--use_deepspeed --deepspeed_hostfile h x.py",
            "`--deepspeed_hostfile` has no effect: accelerate reads it only where it starts other machines",
        ),
    ] {
        assert_eq!(translated(line).remarks, [remark], "{line}");
    }
}

#[test]
fn simple_launch_has_variables_of_its_path() {
    assert_eq!(
        variables(&translated("x.py")),
        BTreeMap::from([
            ("ACCELERATE_USE_CPU", "False"),
            ("ACCELERATE_MIXED_PRECISION", "no"),
            ("ACCELERATE_DYNAMO_BACKEND", "NO"),
            ("ACCELERATE_DYNAMO_MODE", "default"),
            ("ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"),
            ("ACCELERATE_DYNAMO_USE_DYNAMIC", "False"),
            ("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"),
            ("OMP_NUM_THREADS", "1"),
        ])
    );
    let cpu = translated("--cpu --debug --mixed_precision bf16 x.py");
    let cpu = variables(&cpu);
    assert_eq!(cpu["ACCELERATE_USE_CPU"], "True");
    assert_eq!(cpu["KMP_AFFINITY"], "granularity=fine,compact,1,0");
    assert_eq!(cpu["KMP_BLOCKTIME"], "1");
    assert_eq!(cpu["ACCELERATE_DEBUG_MODE"], "true");
    assert_eq!(cpu["ACCELERATE_MIXED_PRECISION"], "bf16");
    assert!(!cpu.contains_key("OMP_NUM_THREADS"));
}

#[test]
fn threads_are_chosen_inherited_or_one() {
    for (line, inherited, expected) in [
        ("--multi_gpu x.py", &[][..], Some(Some("1"))),
        ("--multi_gpu x.py", &[("OMP_NUM_THREADS", "3")], None),
        ("--multi_gpu --num_cpu_threads_per_process 2 x.py", &[("OMP_NUM_THREADS", "3")], Some(Some("2"))),
        ("--cpu x.py", &[("OMP_NUM_THREADS", "0")], Some(None)),
        ("--cpu x.py", &[], None),
        ("--use_deepspeed x.py", &[], None),
    ] {
        let translation = translate_in(FakeWorld::default(), line, inherited).unwrap();
        let change = translation.environment.iter().find(|(name, _)| name == "OMP_NUM_THREADS");
        let value = change.map(|(_, value)| value.as_ref().and_then(|value| value.to_str()));
        assert_eq!(value, expected, "{line}");
    }
}

#[test]
fn inherited_visibility_is_removed_for_chosen_devices() {
    let inherited = [("CUDA_VISIBLE_DEVICES", "5,6"), ("ZE_AFFINITY_MASK", "1")];
    let removed = |line: &str| {
        let translation = translate_in(FakeWorld::default(), line, &inherited).unwrap();
        let removed = translation.environment.into_iter().filter(|(_, value)| value.is_none());
        removed.map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(removed("--multi_gpu --gpu_ids 0,1 x.py"), ["CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"]);
    assert_eq!(removed("--multi_gpu --gpu_ids all x.py"), [""; 0]);
    assert_eq!(removed("--cpu --gpu_ids 0,1 x.py"), [""; 0]);
}

#[test]
fn variables_of_torchrun_act_for_options_that_accelerate_lacks() {
    let inherited = [("PET_NPROC_PER_NODE", "4"), ("PET_REDIRECTS", "3"), ("PET_TEE", "3")];
    let translation = translate_in(FakeWorld::default(), "--multi_gpu x.py", &inherited).unwrap();
    let removed = translation.environment.into_iter().filter(|(_, value)| value.is_none());
    assert_eq!(removed.map(|(name, _)| name).collect::<Vec<_>>(), ["PET_NPROC_PER_NODE", "PET_TEE"]);
}

#[test]
fn combination_that_cannot_be_is_refused() {
    for (line, code, message) in [
        ("--cpu --multi_gpu x.py", 1, "`--cpu` and `--multi_gpu` exclude each other"),
        ("--use_fsdp --use_deepspeed x.py", 1, "`--use_deepspeed` and `--use_fsdp` exclude each other"),
        (
            "--multi_gpu --num_processes 1 x.py",
            1,
            "`--multi_gpu` needs two processes, and `--num_processes` is 1",
        ),
        ("-m --no_python x", 1, "`--module` and `--no_python` exclude each other"),
        ("--use_parallelism_config x.py", 1, "`--use_parallelism_config` needs `--use_fsdp`"),
        ("--num_machines 2 x.py", 1, "the job has 2 machines, and this one has no rank"),
        ("--num_machines 2 --machine_rank 2 x.py", 1, "`--machine_rank` is `2`, but the job has 2 machines"),
        ("--num_machines 2 --machine_rank 0 x.py", 1, "the job has 2 machines, and no address of the first"),
        (
            "--num_machines 2 --machine_rank 0 --main_process_ip a --main_process_port 0 x.py",
            1,
            "`--main_process_port` is `0`, which only one machine can choose by itself",
        ),
        (
            "--num_machines 2 --machine_rank 0 --main_process_ip a --use_deepspeed x.py",
            1,
            "DeepSpeed on several machines would be started through `pdsh`, which rankrun does not do",
        ),
        ("--multi_gpu --gpu_ids -1 x.py", 1, "`--gpu_ids` has `-1`, which is not the number of a device"),
        ("--tpu x.py", 1, "`--tpu` is for TPUs, which rankrun does not launch on"),
        ("--vm a x.py", 1, "`--vm` is for TPUs, which rankrun does not launch on"),
        (
            "--aws_access_key_id a x.py",
            1,
            "`--aws_access_key_id` is for Amazon SageMaker, where rankrun starts nothing",
        ),
        ("--mpirun_hostfile h x.py", 1, "`--mpirun_hostfile` would start mpirun, which rankrun does not"),
        ("--config_file gone.yaml x.py", 1, "`gone.yaml` cannot be read: entity not found"),
        ("--num_proc 2 x.py", 2, "unknown option `--num_proc`"),
        ("--num_processes two x.py", 2, "`--num_processes` is `two`, which is not a whole number from 1 up"),
        ("--num_processes 0 x.py", 2, "`--num_processes` is `0`, which is not a whole number from 1 up"),
        (
            "--mixed_precision fp32 x.py",
            2,
            "`--mixed_precision` is `fp32`, which is not one of no, fp16, bf16, fp8",
        ),
        ("--fsdp_version 3 x.py", 2, "`--fsdp_version` is `3`, which is not one of 1, 2"),
        ("--num_processes 2", 2, "there is no entrypoint to run"),
    ] {
        assert_eq!(refusal(FakeWorld::default(), line), (code, message.to_owned()), "{line}");
    }
}

#[test]
fn hint_names_the_option_that_was_meant() {
    for (line, hint) in [
        ("--num_proc 2 x.py", "did you mean `--num_processes`?"),
        ("--fsdp_versio 2 x.py", "did you mean `--fsdp_version`?"),
        (
            "--learning_rate 2 x.py",
            "an option of the program stands behind the script; `rankrun accelerate launch --help` lists those of the launch",
        ),
    ] {
        let error = translate_in(FakeWorld::default(), line, &[]).unwrap_err();
        assert_eq!(error.hint().as_deref(), Some(hint), "{line}");
    }
}

#[test]
fn file_fills_what_command_line_leaves_open() {
    let file = "distributed_type: MULTI_GPU\nnum_processes: 4\ngpu_ids: 2,0,1,3\nmixed_precision: bf16\ndebug: true\n\
                main_process_port: 29502\nrdzv_backend: static\nsame_network: true\nenable_cpu_affinity: true\n\
                main_training_function: main\ndowncast_bf16: 'no'\ntpu_env: []\ntpu_use_cluster: false\n\
                dynamo_config:\n  dynamo_backend: INDUCTOR\n  use_dynamic: true\n";
    let translation = with_file(file, "x.py");
    assert_eq!(words(&translation), "--devices 2,0,1,3 --nproc-per-node 4 --master-port 29502 x.py");
    let set = variables(&translation);
    assert_eq!(set["ACCELERATE_MIXED_PRECISION"], "bf16");
    assert_eq!(set["ACCELERATE_DEBUG_MODE"], "true");
    assert_eq!(set["ACCELERATE_CPU_AFFINITY"], "1");
    assert_eq!(set["ACCELERATE_DYNAMO_BACKEND"], "INDUCTOR");
    assert_eq!(set["ACCELERATE_DYNAMO_USE_DYNAMIC"], "True");
    assert!(!set.contains_key("ACCELERATE_USE_CPU"));
    let typed =
        with_file(file, "--num_processes 2 --gpu_ids all --mixed_precision no --dynamo_backend eager x.py");
    assert_eq!(words(&typed), "--nproc-per-node 2 --master-port 29502 x.py");
    assert_eq!(variables(&typed)["ACCELERATE_MIXED_PRECISION"], "no");
    assert_eq!(variables(&typed)["ACCELERATE_DYNAMO_BACKEND"], "EAGER");
}

#[test]
fn setting_of_file_that_cannot_be_names_its_line() {
    for (text, line, message) in [
        (
            "distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 0\n",
            "x.py",
            "`c.yaml`, line 3: `gpu_ids` has one device, 0, and several are to be trained on",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 2\nmachine_rank: 3\n",
            "x.py",
            "`c.yaml`, line 4: `machine_rank` is `3`, but the job has 2 machines",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 2\nmachine_rank: 3\n",
            "--machine_rank 4 x.py",
            "`--machine_rank` is `4`, but the job has 2 machines",
        ),
    ] {
        let world = FakeWorld::default().file("/job/c.yaml", text.as_bytes());
        assert_eq!(refusal(world, &format!("--config_file c.yaml {line}")), (1, message.to_owned()));
    }
}

#[test]
fn file_of_one_process_or_of_cpus_is_followed() {
    let single = with_file("distributed_type: 'NO'\n", "x.py");
    assert_eq!(words(&single), "--nproc-per-node 1 --distributed auto x.py");
    let cpus = with_file("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\n", "x.py");
    assert_eq!(words(&cpus), "--device-type cpu --nproc-per-node 2 x.py");
    assert_eq!(variables(&cpus)["ACCELERATE_USE_CPU"], "True");
    let half = with_file("distributed_type: NO\nfp16: true\ndynamo_backend: EAGER\n", "x.py");
    assert_eq!(variables(&half)["ACCELERATE_MIXED_PRECISION"], "fp16");
    assert_eq!(variables(&half)["ACCELERATE_DYNAMO_BACKEND"], "EAGER");
}

#[test]
fn default_file_is_used_without_cpu_flag() {
    let file = b"distributed_type: MULTI_GPU\nnum_processes: 3\n";
    for (path, environment) in [
        ("/h/accelerate/default_config.yaml", [("HF_HOME", "/h")]),
        ("/x/huggingface/accelerate/default_config.yaml", [("XDG_CACHE_HOME", "/x")]),
        ("/u/.cache/huggingface/accelerate/default_config.yaml", [("HOME", "/u")]),
    ] {
        let world = || FakeWorld::default().file(path, file);
        let found = translate_in(world(), "x.py", &environment).unwrap();
        assert_eq!(words(&found), "--nproc-per-node 3 x.py", "{path}");
        let cpu = translate_in(world(), "--cpu x.py", &environment).unwrap();
        assert_eq!(words(&cpu), "--device-type cpu --nproc-per-node 1 --distributed auto x.py");
    }
}

#[test]
fn deepspeed_file_sets_fields_and_search_path() {
    let file = "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: fp16\ndeepspeed_config:\n  \
                gradient_accumulation_steps: 2\n  gradient_clipping: 1.0\n  offload_param_device: CPU\n  zero_stage: 3\n  \
                zero3_init_flag: true\n";
    let translation = with_file(file, "x.py");
    let set = variables(&translation);
    let fields = "gradient_accumulation_steps,gradient_clipping,offload_param_device,zero_stage,zero3_init_flag,mixed_precision";
    for (name, value) in [
        ("ACCELERATE_CONFIG_DS_FIELDS", fields),
        ("ACCELERATE_USE_DEEPSPEED", "true"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"),
        ("ACCELERATE_GRADIENT_CLIPPING", "1.0"),
        ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu"),
        ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"),
        ("ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"),
        ("PYTHONPATH", "/job"),
    ] {
        assert_eq!(set[name], value, "{name}");
    }
    assert!(!set.contains_key("ACCELERATE_DYNAMO_BACKEND") && !set.contains_key("OMP_NUM_THREADS"));
}

#[test]
fn other_command_becomes_own_program_of_accelerate() {
    let words: Vec<OsString> = vec!["config".into(), "--help".into()];
    let run = |world: FakeWorld, path: &str| match translate(false, &words, &world.facts(&[("PATH", path)])) {
        Ok(OtherCommand::Run(program)) => {
            let argv: Vec<_> = program.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            format!("{} {}", program.path.display(), argv.join(" "))
        }
        other => panic!("{other:?}"),
    };
    let real = FakeWorld::default().program("/b/accelerate");
    assert_eq!(run(real.clone(), "/a:/b"), "/b/accelerate accelerate config --help");
    let own = real.link("/proc/self/exe", "/opt/rankrun").link("/c/accelerate", "/opt/rankrun");
    assert_eq!(run(own.clone(), "/c:/b"), "/b/accelerate accelerate config --help");
    assert_eq!(run(own.clone(), "/b:/c"), "/b/accelerate accelerate config --help");
    let module = run(own.program("/c/python"), "/c");
    assert!(
        module.starts_with("/c/python /c/python -c import sys\n") && module.ends_with("config --help"),
        "{module}"
    );
    let facts = FakeWorld::default().facts(&[("PATH", "/a")]);
    let error = translate(false, &words, &facts).unwrap_err();
    assert!(error.to_string().starts_with("`accelerate config` is a command of accelerate's own program"));
}

#[test]
fn second_hand_over_is_refused_and_launch_removes_the_mark() {
    let world = FakeWorld::default().program("/b/accelerate").program("/b/python");
    let environment = [("PATH", "/b"), ("RANKRUN_HANDED_OVER", "1")];
    let facts = world.clone().facts(&environment);
    let error = translate(false, &["env".into()], &facts).unwrap_err();
    assert!(error.to_string().starts_with("the `accelerate` of PATH is a wrapper around rankrun"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("accelerate_cli env")));
    let launch = translate_in(world, "x.py", &environment).unwrap();
    assert!(launch.environment.contains(&("RANKRUN_HANDED_OVER".to_owned(), None)));
}

#[test]
fn misspelt_launch_is_named() {
    let facts = FakeWorld::default().program("/b/accelerate").facts(&[("PATH", "/b")]);
    let error = translate(false, &["lanch".into(), "x.py".into()], &facts).unwrap_err();
    assert_eq!((error.exit_code(), error.hint().as_deref()), (2, Some("did you mean `launch`?")));
}

#[test]
fn help_is_asked_for_in_both_spellings() {
    for word in ["-h", "--help"] {
        let words = ["launch".into(), "--cpu".into(), word.into()];
        let command = translate(false, &words, &FakeWorld::default().facts(&[])).unwrap();
        assert!(matches!(command, OtherCommand::Print(text) if text.contains("--num-processes")));
    }
}
