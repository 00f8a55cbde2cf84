//! Command lines that are refused, with the fix.

use super::*;

/// Exit code and text.
fn refusal(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> (u8, String) {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    match translate(&words, &world.facts(&with_path(environment))) {
        Err(error) => (error.exit_code(), error.render()),
        Ok(answer) => panic!("`{line}` was accepted: {answer:?}"),
    }
}

#[track_caller]
fn check(world: &FakeWorld, rows: &[(&str, u8, &[&str])]) {
    for (line, code, parts) in rows {
        let (is, text) = refusal(world.clone(), line, &[]);
        assert_eq!(is, *code, "{line}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{line}: `{part}` is missing in {text}");
        }
    }
}

#[test]
fn mistakes_in_words_are_usage_errors() {
    check(
        &gpus(),
        &[
            (
                "--elastic_training x.py",
                2,
                &["unknown option `--elastic_training`", "`rankrun deepspeed --help` lists"],
            ),
            ("--num_gpsu 2 x.py", 2, &["unknown option `--num_gpsu`", "did you mean `--num_gpus`?"]),
            ("-m pkg.train", 2, &["unknown option `-m`", "did you mean `--module`?"]),
            (
                "--nproc_per_node 2 x.py",
                2,
                &["unknown option `--nproc_per_node`", "did you mean `--num_gpus`?"],
            ),
            ("--version x.py", 2, &["unknown option `--version`", "`rankrun deepspeed --help` lists"]),
            ("--num 2 x.py", 2, &["`--num` could be `--num_nodes`, `--num_gpus`, `--num_accelerators`"]),
            ("--num_gpus two x.py", 2, &["`--num_gpus` is `two`, which is not a whole number"]),
            ("--num_gpus", 2, &["`--num_gpus` needs a value"]),
            ("--module=1 x", 2, &["`--module` takes no value"]),
            ("--log_level loud x.py", 2, &["`--log_level` is `loud`, which is not one of `debug`"]),
            ("--autotuning yes x.py", 2, &["which is not one of `tune`, `run`"]),
            ("--num_gpus 2", 2, &["no entrypoint", "`deepspeed --num_gpus 2 train.py`"]),
        ],
    );
}

#[test]
fn contradictions_name_both_options() {
    let both = |one: &str, other: &str| format!("`--{one}` and `--{other}` exclude each other");
    check(
        &gpus(),
        &[
            ("-i localhost:0 -e localhost:1 x.py", 1, &[&both("include", "exclude"), "drop one"]),
            ("-i localhost:0 --num_gpus 0 x.py", 1, &[&both("include", "num_gpus")]),
            ("-e localhost:0 --num_nodes 1 x.py", 1, &[&both("exclude", "num_nodes")]),
            (
                "--enable_each_rank_log /job/x.py x.py",
                1,
                &["`--enable_each_rank_log` is `/job/x.py`, which is a file"],
            ),
            ("--module --no_python x", 1, &[&both("no_python", "module")]),
        ],
    );
    let (_, text) = refusal(gpus(), "--bind_cores_to_rank x.py", &[("KMP_AFFINITY", "compact")]);
    assert!(text.contains("`KMP_AFFINITY` is set") && text.contains("unset `KMP_AFFINITY`"), "{text}");
}

#[test]
fn devices_that_do_not_exist_are_refused() {
    check(
        &gpus(),
        &[
            ("-i localhost:0,9 x.py", 1, &["9"]),
            ("-e localhost:7 x.py", 1, &["7"]),
            ("--num_gpus 6 x.py", 1, &["5"]),
            ("-e localhost x.py", 1, &["leaves no device"]),
            ("-e localhost:0,1,2,3 x.py", 1, &["-0,-1,-2,-3"]),
            ("-i localhost:-1 x.py", 1, &["`--include` is `localhost:-1`, where `-1` names no device"]),
            ("-i localhost: x.py", 1, &["names no device", "`localhost:0,2`"]),
            ("-i localhost:one x.py", 1, &["`one` names no device"]),
            ("-i other:0 x.py", 1, &["there is no host `other`", "`localhost`"]),
        ],
    );
    let cpu = [("DS_ACCELERATOR", "cpu"), ("LOCAL_SIZE", "4")];
    for (line, part) in [
        ("-i localhost:4 x.py", "`--include` is `4`, and the CPUs have no share `4`"),
        ("-i localhost:GPU-1 x.py", "no share `GPU-1`"),
        ("-e localhost:0,1,2,3 x.py", "leaves no device"),
    ] {
        let (code, text) = refusal(world(), line, &cpu);
        assert!(code == 1 && text.contains(part), "{line}: {text}");
    }
    for (variable, value) in [
        ("DS_ACCELERATOR", "mlu"),
        ("DS_ACCELERATOR", "cuda"),
        ("LOCAL_SIZE", "many"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1"),
    ] {
        let (code, text) = refusal(world(), "x.py", &[(variable, value)]);
        assert!(code == 1 && text.contains(&format!("`{variable}` is `{value}`")), "{text}");
    }
}

#[test]
fn unnamed_hosts_are_refused_with_way_out() {
    let two = gpus().file("/job/hosts", b"n7 slots=2\nn8 slots=4\n");
    let way = "`rankrun --nnodes N --node-rank R";
    check(
        &two,
        &[
            ("-H hosts --venv_script v x.py", 1, &["`--venv_script` is `v`", "`PATH`"]),
            ("-H hosts --no_ssh x.py", 1, &["one of 2 hosts", "`--node_rank R`, from 0 to 1"]),
            ("-H hosts --no_ssh --node_rank 2 x.py", 1, &["`--node_rank` does not say which"]),
            ("-H hosts --no_ssh --node_rank 1 x.py", 1, &["`--master_addr` is not"]),
            ("-H hosts --node_rank 1 x.py", 1, &["`--node_rank` is 1", way]),
            ("--num_nodes 2 x.py", 1, &["`--num_nodes` is 2", way]),
            ("--no_ssh --node_rank 1 x.py", 1, &["`--node_rank` is 1", way]),
            ("--autotuning tune x.py", 1, &["tuner"]),
        ],
    );
}

#[test]
fn broken_files_are_refused_with_line() {
    for (file, part) in [
        (&b"n7 slots=2\nn7 slots=1\n"[..], "names the host `n7` twice"),
        (b"n7\n", "has the line `n7`"),
        (b"n7 slots=x\n", "has the line `n7 slots=x`"),
        (b"# none\n", "names no host"),
    ] {
        let (code, text) = refusal(gpus().file("/job/hostfile", file), "x.py", &[]);
        assert!(code == 1 && text.contains(part) && text.contains("`NAME slots=N`"), "{text}");
    }
    let (_, text) = refusal(gpus().file("/job/hosts", b"n7 slots=2\n"), "-H hosts -i n7:2 x.py", &[]);
    assert!(text.contains("`n7` has no slot 2"), "{text}");
    let (_, text) = refusal(gpus().file("/job/.deepspeed_env", b"export A\n"), "x.py", &[]);
    assert!(text.contains("`.deepspeed_env` has the line `export A`"), "{text}");
    let (_, text) = refusal(gpus().unreadable("/job/.deepspeed_env"), "x.py", &[]);
    assert!(text.contains("cannot be read"), "{text}");
}

#[test]
fn more_workers_than_a_launch_has_are_refused_at_once() {
    let hosts = world().file("/job/hosts", b"n7 slots=4294967295\n");
    for (line, environment, part) in [
        ("--num_gpus 99999999999 x.py", &[][..], "`--num_gpus` is `99999999999`, and a launch has at most"),
        ("--num_accelerators 4194305 x.py", &[], "`--num_accelerators` is `4194305`, and a launch has"),
        ("x.py", &[("LOCAL_SIZE", "9999999999")], "`LOCAL_SIZE` is `9999999999`, and a launch has at most"),
        ("-H hosts x.py", &[], "has the line `n7 slots=4294967295`, and a launch has at most"),
    ] {
        let (code, text) = refusal(hosts.clone(), line, environment);
        assert!(code == 1 && text.contains(part), "{line}: {text}");
    }
}
