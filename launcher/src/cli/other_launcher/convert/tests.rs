use rankrun_core::device::{CpuLayout, Machine, NumaNode, fake};
use rankrun_core::facts::fake::FakeWorld;

use super::*;
use crate::cli::{Command, interpret};

mod command_lines;
mod quotes;
mod slurm;
mod split;
mod translated;

/// As `accelerate config` writes it.
const FSDP: &[u8] = b"compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
";

fn facts(environment: &[(&str, &str)]) -> Facts {
    facts_with(fake::cuda(8), environment)
}

/// A machine without any device, whose shell has variables about devices all the same.
fn facts_without_device() -> Facts {
    facts_with(Machine::default(), &[("CUDA_VISIBLE_DEVICES", "3"), ("LOCAL_SIZE", "5")])
}

fn facts_with(machine: Machine, environment: &[(&str, &str)]) -> Facts {
    let nodes = vec![NumaNode { id: 0, cpus: (0..64).collect() }];
    let machine = Machine { cpus: Some(CpuLayout { nodes, cpus: Vec::new() }), ..machine };
    let scripts =
        ["train.py", "main.py", "examples/run.py", "tools/train.py", "src/train.py", "pretrain.py", "run"];
    let world =
        FakeWorld::default().machine(machine).cpus(64).file("/job/hosts", b"# two\nn1 slots=4\nn2:4\n");
    let world = world.file("/job/one", b"localhost slots=4\n");
    let world = world.file("/job/configs/fsdp.yaml", FSDP);
    let world =
        scripts.iter().fold(world, |world, script| world.file(&format!("/job/{script}"), b"import torch"));
    let programs = ["python", "python3.11", "bash", "lammps"];
    let world = programs.iter().fold(world, |world, name| world.program(&format!("/usr/bin/{name}")));
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    let world = ["train", "lammps", "build/perf"]
        .iter()
        .fold(world, |world, name| world.program(&format!("/job/{name}")));
    world.program("/opt/venv/bin/python").facts(&environment)
}

fn converted(line: &str) -> Result<(Conversion, ShellWords), CliError> {
    let mut shell = read_words(&[line.into()])?;
    let converted = convert(&mut shell, &facts(&[]));
    let text = |converted: &Result<Conversion, CliError>| match converted {
        Ok(conversion) => conversion.as_shell(&shell),
        Err(error) => error.render(),
    };
    assert_eq!(text(&convert(&mut shell.clone(), &facts_without_device())), text(&converted), "{line}");
    Ok((converted?, shell))
}

/// The command without its notes, on one line. rankrun accepts it.
fn command_of(line: &str) -> String {
    workers_of(line);
    let (conversion, shell) = converted(line).unwrap_or_else(|error| panic!("{line}: {}", error.render()));
    let text = Conversion { notes: Vec::new(), ..conversion }.as_shell(&shell);
    text.replace(" \\\n    ", " ").trim_end().to_owned()
}

fn notes_of(line: &str) -> String {
    converted(line).unwrap_or_else(|error| panic!("{line}: {}", error.render())).0.notes.join("\n")
}

/// How many workers a launch of the converted line starts on a node.
fn workers_of(line: &str) -> u32 {
    let (conversion, shell) = converted(line).unwrap_or_else(|error| panic!("{line}: {}", error.render()));
    let value = |expansion: &str| match expansion
        .trim_start_matches(['$', '{'])
        .split([':', '}'])
        .next()
        .unwrap_or_default()
    {
        "N" | "NODES" | "NNODES" | "SLURM_NNODES" => "2".to_owned(),
        "SCRIPT" => "train.py".to_owned(),
        name if name == "P" || name.contains("PORT") => "29500".to_owned(),
        name if name == "IP" || name.contains("ADDR") || name.contains("HEAD") => "node0".to_owned(),
        name if name.contains("ARGS") => "--nproc-per-node=8".to_owned(),
        _ => "0".to_owned(),
    };
    let environment = conversion.assignments.iter().chain(&conversion.environment);
    let environment: Vec<_> =
        environment.map(|(name, value)| (name.clone(), value.as_ref().map(OsString::from))).collect();
    let words = conversion.words.iter().map(|word| shell.replace_expansions(word, value));
    let argv: Vec<OsString> =
        ["rankrun", "explain"].map(str::to_owned).into_iter().chain(words).map(OsString::from).collect();
    let explain = |mut facts: Facts| {
        facts.change_environment(&environment);
        match interpret(&argv, &facts) {
            Ok(Command::Explain(request)) => Ok(request.spec.workers.get()),
            Ok(other) => panic!("{line}: {other:?}"),
            Err(error) => Err(error.render()),
        }
    };
    // Without a device, only the choice of devices may be refused.
    if let Err(error) = explain(facts_with(Machine::default(), &[])) {
        assert!(error.contains("device") || error.contains("accelerator"), "{line}: {argv:?}: {error}");
    }
    explain(facts(&[])).unwrap_or_else(|error| panic!("{line}: {argv:?}: {error}"))
}

#[test]
fn torchrun_words_stay_and_default_is_written() {
    for (line, command) in [
        ("torchrun train.py --lr 1", "rankrun --nproc-per-node 1 train.py --lr 1"),
        ("torchrun --nproc_per_node=8 -m a.b x", "rankrun --nproc_per_node=8 -m a.b x"),
        ("PET_NPROC_PER_NODE=4 torchrun train.py", "PET_NPROC_PER_NODE=4 rankrun train.py"),
        (
            "python -m torch.distributed.run --nproc_per_node 2 train.py",
            "rankrun --nproc_per_node 2 train.py",
        ),
        (
            "torchrun --node_rank=$RANK --nproc_per_node 8 -- train.py -- a",
            "rankrun \"--node_rank=$RANK\" --nproc_per_node 8 -- train.py -- a",
        ),
        (
            "torchrun $DISTRIBUTED_ARGS pretrain.py $GPT_ARGS",
            "rankrun $DISTRIBUTED_ARGS pretrain.py $GPT_ARGS",
        ),
        ("torchrun $SCRIPT --lr 1", "rankrun --nproc-per-node 1 $SCRIPT --lr 1"),
        (
            "/opt/venv/bin/python -m torch.distributed.run train.py",
            "PYTHON_EXEC=/opt/venv/bin/python rankrun --nproc-per-node 1 train.py",
        ),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
}

#[test]
fn old_module_gives_script_its_local_rank() {
    let old = "python -m torch.distributed.launch";
    for (words, command) in [
        (
            "--nproc_per_node=2 train.py --lr 1",
            "rankrun --nproc_per_node=2 train.py '--local-rank=${local_rank}' --lr 1",
        ),
        ("--nproc_per_node=2 --use_env train.py --use_env", "rankrun --nproc_per_node=2 train.py --use_env"),
        ("--use-env -m a.b", "rankrun --nproc-per-node 1 -m a.b"),
    ] {
        assert_eq!(command_of(&format!("{old} {words}")), command);
    }
    assert!(notes_of(&format!("{old} train.py")).contains("`--local_rank`"));
    let error = converted(&format!("{old} --no_python train.py")).unwrap_err();
    assert!(error.render().contains("without `--use_env`"), "{}", error.render());
}

#[test]
fn words_in_front_of_launcher_stay() {
    for (line, command) in [
        ("env A=1 'B=x y' torchrun -m a", "env A=1 'B=x y' rankrun --nproc-per-node 1 -m a"),
        ("A='x y' B=$C torchrun -m a", "A='x y' B=\"$C\" rankrun --nproc-per-node 1 -m a"),
        ("uv run torchrun -m a", "uv run rankrun --nproc-per-node 1 -m a"),
        (
            "conda run -n deepspeed python -u -m torch.distributed.run -m a",
            "conda run -n deepspeed rankrun --nproc-per-node 1 -m a",
        ),
        (
            "sudo -E nohup numactl -N 0 torchrun -m a",
            "sudo -E nohup numactl -N 0 rankrun --nproc-per-node 1 -m a",
        ),
        ("time mpirun -n 2 -x A=1 python train.py", "time env A=1 rankrun --nproc-per-node 2 train.py"),
        (
            "srun -N 2 -p gpu torchrun --nproc_per_node 8 --nnodes 2 train.py",
            "srun -N 2 -p gpu rankrun --nproc_per_node 8 --nnodes 2 train.py",
        ),
        ("mpirun -np 2 A=1 torchrun -m a", "mpirun -np 2 env A=1 rankrun --nproc-per-node 1 -m a"),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
}

#[test]
fn launcher_sees_variables_of_its_line() {
    let seen = |line: &str, name: &str| {
        let shell = read_words(&[line.into()]).unwrap();
        let Wrapped { assignments, prefix, .. } = wrapped::find(&shell.words).unwrap();
        let facts = facts_of_launcher(&assignments, prefix, &shell, &facts(&[("A", "0")]));
        facts.variable(name).map(|value| value.to_string_lossy().into_owned())
    };
    for (line, value) in [
        ("A=1 accelerate launch x.py", "1"),
        ("env A=1 accelerate launch x.py", "1"),
        ("A=$B accelerate launch x.py", "0"),
        ("accelerate launch x.py", "0"),
    ] {
        assert_eq!(seen(line, "A").as_deref(), Some(value), "{line}");
    }
}

#[test]
fn mpirun_options_become_options_and_variables() {
    for (line, command) in [
        (
            "mpirun -np 4 -x A=1 -x PATH python3 -u train.py --lr 1",
            "A=1 rankrun --nproc-per-node 4 train.py --lr 1",
        ),
        (
            "mpiexec.hydra -genv A 1 -n 4 -l ./lammps",
            "A=1 rankrun --nproc-per-node 4 --tee 3 --no-python ./lammps",
        ),
        (
            "mpirun -np 8 --npernode 4 -H a,b python3.11 -m mod",
            "PYTHON_EXEC=python3.11 rankrun --nproc-per-node 4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:29400 -m mod",
        ),
        ("mpirun -np 4 -H a:4,b:4 train.py", "rankrun --nproc-per-node 4 train.py"),
        (
            "mpirun -np 6 -H a:4,b:4 train.py",
            "rankrun --nproc-per-node 3 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:29400 train.py",
        ),
        (
            "mpirun -np 5 -H a:4,b:4 train.py",
            "rankrun --total-workers 5 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:29400 --node-rank \"$NODE_RANK\" train.py",
        ),
        (
            "mpirun --hostfile hosts train.py",
            "rankrun --nproc-per-node 4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1:29400 train.py",
        ),
        (
            "mpirun -np 16 --map-by ppr:8:node --hostfile none train.py",
            "rankrun --nproc-per-node 8 --nnodes \"$NODES\" --rdzv-backend c10d --rdzv-endpoint \"$HEAD_NODE:29400\" train.py",
        ),
        (
            "mpirun -np 2 --bind-to numa --timeout 60 --output-filename out --oversubscribe train.py",
            "rankrun --nproc-per-node 2 --numa-binding node --time-limit 60 --tee 3 --log-dir out --oversubscribe train.py",
        ),
        (
            "mpirun -np 2 --bind-to core python -X dev train.py",
            "rankrun --nproc-per-node 2 --bind-cores all --no-python python -X dev train.py",
        ),
        (
            "mpirun -np 2 env A=1 bash -c 'echo $X' -- x",
            "A=1 rankrun --nproc-per-node 2 --no-python bash -c 'echo $X' -- x",
        ),
        ("mpirun -np 2 train.py -- x", "rankrun --nproc-per-node 2 train.py -- -- x"),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
    let notes =
        notes_of("mpirun -np 2 --mca btl ^openib -mca pml ob1 --map-by numa --allow-run-as-root train.py");
    for part in
        ["`--mca btl ^openib`, `-mca pml ob1`: concerns MPI", "`--map-by numa`", "OMPI_COMM_WORLD_RANK"]
    {
        assert!(notes.contains(part), "{notes}");
    }
    assert_eq!(notes.lines().count(), 3, "{notes}");
}

#[test]
fn srun_options_become_options_and_variables() {
    for (line, command) in [
        ("srun -n4 python train.py", "rankrun --nproc-per-node 4 train.py"),
        ("srun -lun 4 --export=ALL,A=1 python train.py", "A=1 rankrun --nproc-per-node 4 --tee 3 train.py"),
        (
            "srun -N2 --ntasks-per-node=8 python -m mod",
            "rankrun --nproc-per-node 8 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint \"$HEAD_NODE:29400\" -m mod",
        ),
        (
            "srun -N 2 -n 16 -w a,b train.py",
            "rankrun --nproc-per-node 8 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:29400 train.py",
        ),
        (
            "srun -n 2 -t 30 --signal=USR1@60 --gpus-per-task=1 train.py",
            "rankrun --nproc-per-node 2 --time-limit 30m --warn-signal USR1@60 --device-visibility own train.py",
        ),
        ("srun -n $N python train.py", "rankrun --nproc-per-node $N train.py"),
        ("srun python train.py", "rankrun train.py"),
        ("srun python run", "rankrun run run"),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
    let notes = notes_of(
        "srun -n 2 -p gpu -A x --mem=8G --cpu-bind=cores --container-image i --mpi=pmix -K train.py",
    );
    for part in [
        "`-p gpu`, `-A x`, `--mem=8G`: asks Slurm",
        "`--cpu-bind=cores`",
        "`--container-image i`",
        "hvd.init()",
    ] {
        assert!(notes.contains(part), "{notes}");
    }
    assert_eq!(notes.lines().count(), 4, "{notes}");
}

#[test]
fn horovodrun_and_torchx_become_rankrun() {
    const NODES_OF: &str = "--rdzv-backend c10d --rdzv-endpoint";
    for (line, command) in [
        ("horovodrun -np 4 -H localhost:4 python train.py", "rankrun --nproc-per-node 4 train.py".to_owned()),
        (
            "horovodrun -np 8 -H a:4,b:4 --verbose python train.py",
            format!("rankrun --nproc-per-node 4 --nnodes 2 {NODES_OF} a:29400 -v train.py"),
        ),
        (
            "horovodrun --gloo -np 8 --min-np 4 --max-np 12 --slots-per-host 4 --host-discovery-script ./d.sh python train.py",
            format!("rankrun --nproc-per-node 4 --nnodes 1:3 {NODES_OF} \"$HEAD_NODE:29400\" train.py"),
        ),
        (
            "torchx run dist.ddp -j 1x2 --script train.py -- --lr 1",
            "rankrun --nproc-per-node 2 train.py --lr 1".to_owned(),
        ),
        (
            "torchx run -s slurm -cfg partition=gpu dist.ddp -j 2x8 --env A=1,B=2 --max_retries 3 -m a.b",
            format!(
                "A=1 B=2 rankrun --nproc-per-node 8 --nnodes 2 {NODES_OF} \"$HEAD_NODE:29400\" --max-restarts 3 -m a.b"
            ),
        ),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
}

#[test]
fn line_that_cannot_be_converted_is_refused_with_hint() {
    for (line, part, exit) in [
        ("", "no command line", 1),
        ("--jsn torchrun x.py", "`rankrun convert` does not know `--jsn`", 2),
        ("foo train.py", "does not know the launcher `foo`", 1),
        ("uv run python train.py", "no launcher that `rankrun convert` knows behind `uv`", 1),
        ("python train.py", "`python` starts one process", 1),
        ("rankrun train.py", "already one of rankrun", 1),
        ("torchrun --nproc_per_node 2", "the following arguments are required", 2),
        ("torchrun --nope train.py", "unrecognized arguments: --nope", 2),
        ("torchrun --help x", "starts no workers", 1),
        ("mpirun -np 2", "no program to start", 1),
        ("mpirun -np", "`-np` of `mpirun` has no value", 1),
        ("mpirun --foo 1 x", "does not know the option `--foo` of `mpirun`", 1),
        ("mpirun -n 1 a : -n 1 b", "several programs", 1),
        ("mpirun -np 0 train.py", "`0` in the line of `mpirun` is not a number of processes", 1),
        ("srun -n x train.py", "`x` in the line of `srun` is not a number of processes", 1),
        ("srun -N x train.py", "`x` in the line of `srun` is not a number of nodes", 1),
        ("torchrun train.py 'a b'*.txt", "`a b*.txt` has a pattern", 1),
        ("torchx status x", "only `torchx run`", 1),
        ("torchx run utils.sh ls", "`utils.sh`", 1),
        ("torchx run dist.ddp -j 1x2", "no program to start", 1),
        ("torchrun train.py | tee log", "`|` is an operator", 1),
        ("torchrun train.py && x", "`&&` is an operator", 1),
        ("torchrun --nnodes $(wc -l hosts) train.py", "`$(…)` is replaced by the shell", 1),
    ] {
        let words = if line.is_empty() { Vec::new() } else { vec![OsString::from(line)] };
        let error = answer(&words, false, &facts(&[])).unwrap_err();
        let text = error.render();
        assert!(text.contains(part) && (exit == 2 || text.contains("\nhint: ")), "{line}: {text}");
        assert_eq!(error.exit_code(), exit, "{line}");
    }
}

#[test]
fn output_is_script_with_notes_or_json() {
    let words: Vec<OsString> =
        ["mpirun", "-np", "2", "-x", "A=it's", "python", "train.py", "a b"].map(OsString::from).to_vec();
    let text = answer(&words, false, &facts(&[])).unwrap();
    let (note, command) = text.split_once('\n').unwrap();
    assert!(note.starts_with("# note: workers get RANK"), "{text}");
    assert_eq!(command, "A='it'\\''s' rankrun --nproc-per-node 2 train.py 'a b'\n");
    let json: serde_json::Value = serde_json::from_str(&answer(&words, true, &facts(&[])).unwrap()).unwrap();
    assert_eq!(json["command"], serde_json::json!(["rankrun", "--nproc-per-node", "2", "train.py", "a b"]));
    assert_eq!(json["environment"], serde_json::json!({"A": "it's"}));
    assert_eq!(json["notes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn removed_variable_is_written_with_env() {
    let shell = ShellWords::default();
    let environment = vec![("A".to_owned(), None), ("B".to_owned(), Some("1".to_owned()))];
    let conversion = Conversion { environment, words: vec!["x.py".to_owned()], ..Conversion::default() };
    assert_eq!(conversion.as_shell(&shell), "env -u A B=1 rankrun x.py\n");
}

#[test]
fn long_line_is_broken_between_words() {
    let words: Vec<String> = (0..20).flat_map(|at| [format!("--option-{at}"), "value".to_owned()]).collect();
    let text = wrap(&words);
    assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
    for line in text.lines().skip(1) {
        assert!(line.starts_with("    --option"), "{text}");
    }
}

#[test]
fn variable_in_separate_words_is_answered_with_the_quoted_line() {
    let words = ["torchrun", "--node_rank=$RANK", "x.py"].map(OsString::from);
    let error = answer(&words, false, &facts(&[])).unwrap_err();
    assert_eq!((error.exit_code(), error.render().contains("usage:")), (2, false), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("single quotes")), "{error}");
}
