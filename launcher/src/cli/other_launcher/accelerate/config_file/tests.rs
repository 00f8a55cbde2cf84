use super::*;
use rankrun_core::facts::fake::FakeWorld;

fn read_text(text: &'static str) -> Result<ConfigFile, CliError> {
    let facts = FakeWorld::default().file("/job/c.yaml", text.as_bytes()).facts(&[]);
    read(Path::new("c.yaml"), &facts)
}

/// A file, and the beginnings of the message and of the hint.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("", "`c.yaml` has no keys", "write `key: value` lines"),
    ("- a\n", "`c.yaml` is a list, and not keys with values", "write `key: value` lines"),
    ("hello\n", "`c.yaml` is one word, and not keys with values", "write `key: value` lines"),
    ("debug: false\nnum_processes:\t2\n", "`c.yaml`, line 2: a tab stands behind `:`", "write spaces"),
    ("num_processes: 2\n", "`c.yaml` has no `distributed_type`", "add `distributed_type: MULTI_GPU`"),
    ("debug: false\n\tuse_cpu: true\n", "`c.yaml`, line 2: ", "write spaces"),
    (
        "distributed_type: FSDP\nnum_process: 2\n",
        "`c.yaml`, line 2: `num_process` is not a key of accelerate",
        "did you mean `num_processes`?",
    ),
    (
        "num_processes: two\n",
        "`c.yaml`, line 1: `num_processes` is `two`, which is not a whole number from 1 up",
        "give `num_processes` a whole number",
    ),
    (
        "distributed_type: GPU\n",
        "`c.yaml`, line 1: `distributed_type` is `GPU`",
        "give `distributed_type` NO",
    ),
    ("distributed_type: XLA\n", "`c.yaml`, line 1: `distributed_type` is for TPUs", "take another"),
    (
        "compute_environment: AMAZON_SAGEMAKER\n",
        "`c.yaml`, line 1: `compute_environment` is Amazon",
        "write `LOCAL",
    ),
    (
        "gpu_ids: [0, 1]\n",
        "`c.yaml`, line 1: `gpu_ids` is `a list`, which is not a word",
        "give `gpu_ids` a word",
    ),
    (
        "use_cpu: maybe\n",
        "`c.yaml`, line 1: `use_cpu` is `maybe`, which is not true or false",
        "give `use_cpu`",
    ),
    ("mixed_precision: fp32\n", "`c.yaml`, line 1: `mixed_precision` is `fp32`", "give `mixed_precision` no"),
    (
        "main_process_port: 70000\n",
        "`c.yaml`, line 1: `main_process_port` is `70000`",
        "give `main_process_port`",
    ),
    ("tpu_use_cluster: true\n", "`c.yaml`, line 1: `tpu_use_cluster` is for TPUs", "remove the key"),
    (
        "mpirun_config:\n  mpirun_hostfile: /h\n",
        "`c.yaml`, line 1: `mpirun_config` has a host file",
        "run the same",
    ),
    (
        "fsdp_config: 3\n",
        "`c.yaml`, line 1: `fsdp_config` is `3`, which is not a group of keys",
        "give `fsdp",
    ),
    (
        "fsdp_config:\n  fsdp_version:\n    a: 1\n",
        "`c.yaml`, line 2: `fsdp_config.fsdp_version` is `a group of keys`",
        "give `fsdp_config.fsdp_version` a word",
    ),
    (
        "fsdp_config:\n  fsdp_version: banana\n",
        "`c.yaml`, line 2: `fsdp_config.fsdp_version` is `banana`, which is not one of 1, 2",
        "give `fsdp_config.fsdp_version` one of 1, 2",
    ),
    (
        "fsdp_config:\n  fsdp_min_num_params: many\n",
        "`c.yaml`, line 2: `fsdp_config.fsdp_min_num_params` is `many`, which is not a whole number",
        "give `fsdp_config.fsdp_min_num_params` a whole number",
    ),
    (
        "fp8_config:\n  override_linear_precision: [true, maybe, false]\n",
        "`c.yaml`, line 2: `fp8_config.override_linear_precision` is `a list`, which is not three of",
        "give `fp8_config.override_linear_precision` three of true or false",
    ),
    (
        "debug: &d false\nuse_cpu: *d\n",
        "`c.yaml`, line 2: an alias (`*name`) is not supported",
        "write the value",
    ),
];

#[test]
fn unreadable_file_names_line_and_key() {
    for &(text, message, hint) in MISTAKES {
        let error = read_text(text).unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(error.to_string().starts_with(message), "{text:?}: {error}");
        assert!(error.hint().is_some_and(|given| given.starts_with(hint)), "{text:?}: {:?}", error.hint());
    }
}

#[test]
fn values_of_groups_are_kept_by_option() {
    let file = read_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  offload_params: true\nfp8_config:\n  backend: TE\n  \
         amax_history_length: 16\n  override_linear_precision: [false, false, true]\nparallelism_config: {}\n\
         deepspeed_config: null\nmpirun_config:\n",
    );
    let file = file.unwrap();
    assert_eq!(file.variables["fsdp_version"], PythonValue::Int(2));
    assert_eq!(file.variables["fsdp_offload_params"], PythonValue::Bool(true));
    assert_eq!(file.variables["fp8_backend"], PythonValue::text("TE"));
    assert_eq!(file.variables["fp8_override_linear_precision"].to_string(), "[False, False, True]");
    assert_eq!(file.further_fp8, [("ACCELERATE_FP8_AMAX_HISTORY_LENGTH".to_owned(), "16".to_owned())]);
    assert!(!file.has_parallelism);
    assert_eq!(file.remarks, [""; 0]);
}

#[test]
fn unknown_key_of_group_is_remarked() {
    let file = read_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_param: true\n").unwrap();
    let sentence = "`c.yaml`, line 3: `fsdp_config.fsdp_offload_param` has no effect: accelerate has no such setting; \
                    did you mean `fsdp_offload_params`?";
    assert_eq!(file.remarks, [sentence]);
}

#[test]
fn number_of_processes_may_be_left_to_command_line() {
    let file = read_text("distributed_type: MULTI_GPU\nnum_processes: -1\n").unwrap();
    assert_eq!(file.args.num_processes, None);
    let single = read_text("distributed_type: 'NO'\n").unwrap();
    assert_eq!(single.args.num_processes, Some(1));
}
