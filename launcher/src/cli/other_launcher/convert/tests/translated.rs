//! `accelerate launch` and `deepspeed`: what the line says, on whatever machine it is converted.

use super::*;

const DEEPSPEED: &str = "CROSS_RANK=0 CROSS_SIZE=1 rankrun --master-addr 127.0.0.1 --master-port 29500";
const SCRIPT: &str = "-- train.py '--local_rank=${local_rank}'";

#[track_caller]
fn assert_deepspeed(rows: &[(&str, &str, &str)]) {
    for (line, variables, options) in rows {
        let variables = if variables.is_empty() { String::new() } else { format!("{variables} ") };
        assert_eq!(command_of(line), format!("{variables}{DEEPSPEED} {options} {SCRIPT}"), "{line}");
    }
}

#[test]
fn devices_of_deepspeed_are_those_of_line() {
    assert_deepspeed(&[
        ("deepspeed --num_gpus=8 train.py", "LOCAL_SIZE=8", "--nproc-per-node 8"),
        ("deepspeed --include localhost:4,5,6,7 train.py", "LOCAL_SIZE=4", "--devices 4,5,6,7"),
        ("deepspeed --exclude localhost:0 train.py", "", "--devices=-0"),
        ("deepspeed train.py", "", "--devices all"),
        (
            "DS_ACCELERATOR=cpu deepspeed --num_gpus 2 train.py",
            "DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES=0,1 LOCAL_SIZE=2",
            "--device-type cpu --nproc-per-node 2",
        ),
    ]);
    let inherited = format!("CUDA_VISIBLE_DEVICES=4,5 LOCAL_SIZE=2 {DEEPSPEED} {SCRIPT}");
    assert_eq!(command_of("CUDA_VISIBLE_DEVICES=4,5 deepspeed train.py"), inherited);
    assert!(notes_of("deepspeed train.py").contains("LOCAL_SIZE is left out"));
    let error = converted("DS_ACCELERATOR=cpu deepspeed train.py").unwrap_err().render();
    assert!(error.contains("a worker for each NUMA node") && error.contains("--num_accelerators"), "{error}");
}

#[test]
fn variable_that_becomes_one_word_stays() {
    assert_deepspeed(&[
        ("deepspeed --num_gpus $N train.py", "LOCAL_SIZE=\"$N\"", "--nproc-per-node $N"),
        ("deepspeed --num_gpus=${N:-8} train.py", "LOCAL_SIZE=\"${N:-8}\"", "--nproc-per-node \"${N:-8}\""),
    ]);
    let of_accelerate = |line: &str| {
        let command = command_of(line);
        command.split_once("rankrun ").map(|(_, words)| words.to_owned()).unwrap_or(command)
    };
    for (line, words) in [
        ("--num_processes $N train.py $N", "--nproc-per-node $N --distributed auto train.py $N"),
        ("--multi_gpu --num_processes $N train.py", "--nproc-per-node $N train.py"),
        (
            "--multi_gpu --num_machines 2 --num_processes $N --machine_rank $SLURM_PROCID --main_process_ip $IP --main_process_port $PORT train.py",
            "--total-workers $N --nnodes 2 --node-rank $SLURM_PROCID --master-addr $IP --master-port $PORT train.py",
        ),
        (
            "--multi_gpu --num_machines $NNODES --num_processes $N --machine_rank $R --main_process_ip $IP --rdzv_backend c10d --main_process_port $P train.py",
            "--total-workers $N --nnodes $NNODES --node-rank $R --rdzv-backend c10d --rdzv-endpoint \"$IP:$P\" train.py",
        ),
    ] {
        assert_eq!(of_accelerate(&format!("accelerate launch {line}")), words, "{line}");
    }
}

#[test]
fn variable_whose_value_decides_words_is_refused() {
    for (line, message, hint) in [
        (
            "DS_ACCELERATOR=cpu deepspeed --num_gpus $N train.py",
            "the value of `$N` decides",
            "write the value of `$N`",
        ),
        (
            "accelerate launch --use_fsdp --num_processes 2 --fsdp_version $V train.py",
            "$V",
            "write the value of `$V`",
        ),
        (
            "deepspeed $DS_ARGS train.py",
            "`$DS_ARGS` in front of the script",
            "write the options of `$DS_ARGS` out",
        ),
        ("accelerate launch $X train.py", "`$X` in front of the script", "write the options of `$X` out"),
        ("accelerate launch ${X[@]} -m pkg.train", "`${X[@]}` in front of the script", "write the options"),
    ] {
        let text = converted(line).map(|(conversion, _)| conversion.words).unwrap_err().render();
        assert!(text.contains(message) && text.contains(hint), "{line}: {text}");
    }
    assert_eq!(converted("accelerate launch $SCRIPT --lr 1").unwrap().0.words.last().unwrap(), "1");
}

#[test]
fn files_of_deepspeed_on_this_machine_are_not_read() {
    let line = ["deepspeed --num_gpus 2 --enable_each_rank_log /job/logs train.py".into()];
    let world = FakeWorld::default();
    let with_files = world
        .clone()
        .file("/home/me/.deepspeed_env", b"A=1\n")
        .file("/job/.deepspeed_env", b"not a variable\n")
        .file("/job/hostfile", b"n1 slots=8\nn2 slots=8\n")
        .file("/job/logs", b"a file");
    let [text, expected] =
        [with_files, world].map(|world| answer(&line, false, &world.facts(&[("HOME", "/home/me")])).unwrap());
    assert_eq!(text, expected);
    // One that the line names is a part of it.
    let named = command_of("deepspeed --hostfile /job/one train.py");
    assert!(named.contains("LOCAL_SIZE=4") && named.contains("--nproc-per-node 4"), "{named}");
}

#[test]
fn default_file_of_accelerate_is_named_in_note() {
    let path = "/home/me/.cache/huggingface/accelerate/default_config.yaml";
    let world = FakeWorld::default()
        .file(path, b"distributed_type: MULTI_GPU\nnum_processes: 4\n")
        .port_in_use(29501);
    let facts = world.program("/usr/bin/python").file("/job/train.py", b"").facts(&[("HOME", "/home/me")]);
    let line = ["accelerate", "launch", "--main_process_port", "29501", "train.py"].map(OsString::from);
    let text = answer(&line, false, &facts).unwrap();
    assert!(text.contains(&format!("# note: the settings of `{path}` are in the line")), "{text}");
    assert!(text.contains("--nproc-per-node 4 ") && text.contains("--master-port 29501"), "{text}");
}

/// Number of threads and search path, as another shell has them.
#[test]
fn what_accelerate_takes_from_its_machine_is_left_to_shell() {
    let of = |line: &str, name: &str| {
        let (before, _) =
            command_of(line).split_once(" rankrun ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let words = before.replace('\\', " ");
        let found: Vec<_> =
            words.split_whitespace().filter(|word| word.starts_with(&format!("{name}="))).collect();
        found.join(" ")
    };
    for (line, threads) in [
        (
            "accelerate launch --multi_gpu --num_processes 2 train.py",
            "OMP_NUM_THREADS=\"${OMP_NUM_THREADS:-1}\"",
        ),
        (
            "OMP_NUM_THREADS=$N accelerate launch --multi_gpu --num_processes 2 train.py",
            "OMP_NUM_THREADS=\"$N\"",
        ),
        ("OMP_NUM_THREADS=4 accelerate launch --multi_gpu --num_processes 2 train.py", "OMP_NUM_THREADS=4"),
        (
            "accelerate launch --multi_gpu --num_processes 2 --num_cpu_threads_per_process 1 train.py",
            "OMP_NUM_THREADS=1",
        ),
    ] {
        assert_eq!(of(line, "OMP_NUM_THREADS"), threads, "{line}");
    }
    let path = of("accelerate launch --use_deepspeed --num_processes 2 train.py", "PYTHONPATH");
    assert_eq!(path, "PYTHONPATH=\"${PYTHONPATH:+$PYTHONPATH:}${PWD}\"");
}

#[test]
fn several_hosts_of_deepspeed_are_refused() {
    for line in
        ["deepspeed --hostfile=nowhere --no_ssh --node_rank=0 train.py", "deepspeed --num_nodes 2 train.py"]
    {
        let text = converted(line).map(|(conversion, _)| conversion.words).unwrap_err().render();
        assert!(
            text.contains("one host") && text.contains("`rankrun --nnodes N --node-rank R"),
            "{line}: {text}"
        );
    }
}
