//! `rankrun deepspeed` beside DeepSpeed's own launcher: the same command line and environment, and what each worker gets
//! (docs/dev/launchers-contract.md, 2.4 and 2.6).

use std::fs;

use harness::{Launch, Name, Scratch, frameworks, free_port, python, python_modules};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::comparison::{Case, Compared, FOLDER, RealLauncher, path_with, show_worker};
use crate::programs::{number_after, source};

const DEEPSPEED: RealLauncher =
    RealLauncher { program: "deepspeed_runs.py", words: &["deepspeed"], compared };

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
];

/// Where cores are bound, both give the number of threads.
fn compared(case: &Case, name: &str) -> Compared {
    let is_allowed = ALLOWED
        .iter()
        .any(|(allowed, _)| name == *allowed || (allowed.ends_with('_') && name.starts_with(allowed)));
    match name {
        "OMP_NUM_THREADS" if case.has_word("--bind_cores_to_rank") => Compared::Value,
        _ if is_allowed => Compared::Nothing,
        _ => Compared::Value,
    }
}

/// Four shares of the CPUs, on a free port.
fn case(line: &str) -> Case {
    let case = Case::line(&format!("--master_port {} {line}", free_port()));
    case.inheriting("DS_ACCELERATOR", "cpu").inheriting("LOCAL_SIZE", "4")
}

#[test]
fn workers_get_what_deepspeed_gives_them() {
    let script = show_worker();
    let files = Scratch::new();
    let program = format!("#!/bin/sh\nexec '{}' '{script}' \"$@\"\n", python().display());
    let program = files.file("program", &program, 0o755);
    let hosts = files.file("hosts", "# one\nlocalhost slots=2 more\n", 0o644);
    let logs = format!("--enable_each_rank_log {FOLDER}/logs");
    let mut cases = vec![
        case(&format!("{logs} {script} marked")).of_workers(4),
        case(&format!("{script} a --num_gpus 9")).of_workers(4),
        case(&format!("--num_gpu 5 --no_local_rank -- {script} -- a"))
            .inheriting("CUDA_VISIBLE_DEVICES", "3")
            .inheriting("OMP_NUM_THREADS", "2")
            .of_workers(5),
        // The real tool sorts ids.
        case("--include localhost:3,1,1 --module show_worker a").differs(&["CUDA_VISIBLE_DEVICES"]),
        case(&script).inheriting("CUDA_VISIBLE_DEVICES", "2,0").differs(&["CUDA_VISIBLE_DEVICES"]),
        case(&format!("-e localhost:0 --no_python {program} a")).of_workers(3),
        case(&format!("-H {hosts} --no_ssh_check --master_addr 127.0.0.1 -i localhost:1 {script}"))
            .of_workers(1),
        case(&format!("--num_gpus 1 --save_pid --log_level warning {script}")).of_workers(1),
    ];
    cases.extend(bound_cases(&files));
    let compared = DEEPSPEED.compare(&cases, &files);
    let [ours, real] = &compared[0].folders;
    let [run] = &folder_entries(&format!("{ours}/logs"))[..] else { panic!("one run") };
    for rank in 0..4 {
        let text = fs::read_to_string(format!("{run}/attempt_0/{rank}/stdout.log"));
        assert_eq!(text.expect("each rank has a log"), format!("shown: --local_rank={rank} marked\n"));
    }
    let logs = folder_entries(&format!("{real}/logs"));
    for rank in 0..4 {
        let log = logs.iter().find(|log| log.ends_with(&format!("_rank{rank}.log")));
        let text = fs::read_to_string(log.expect("each rank has a log")).expect("it is readable");
        assert_eq!(text, format!("shown: --local_rank={rank} marked\n"));
    }
    compared[0].outcomes[0].expect_absent("shown:");
    compared[1].outcomes[0].expect_stdout("shown: --local_rank=0 a --num_gpus 9");
}

/// The real tool needs `numactl`, which need not be here: a stand-in binds by `taskset`, and says which memory was asked for.
fn bound_cases(files: &Scratch) -> Vec<Case> {
    const NUMACTL: &str = r#"#!/bin/sh
if [ "$1" = --hardware ]; then
    printf 'available: 1 nodes (0)\nnode 0 cpus: '; seq -s ' ' 0 1023; exit
fi
[ "$1" = -m ] && export NUMACTL_MEMORY="$2" && shift 2
[ "$1" = -C ] && shift && exec env -u PWD taskset --cpu-list "$@"
exit 9
"#;
    let stand_in = files.folder("stand-in", 0o755);
    let _ = files.file("stand-in/numactl", NUMACTL, 0o755);
    let path = path_with(&stand_in);
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("the kernel tells the CPUs");
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    let listed = |count: usize| cpus[..count].iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let bound = |workers: usize, cores: usize| {
        let list = listed(cores);
        let line =
            format!("--num_gpus {workers} --bind_cores_to_rank --bind_core_list {list} {}", show_worker());
        let case = case(&line).of_workers(workers).inheriting("PATH", path.clone());
        case.differs(&["NUMACTL_MEMORY"])
    };
    // Three cores for two workers leave one out.
    let some = |workers, cores| (cores <= cpus.len()).then(|| bound(workers, cores));
    [some(1, 1), some(1, 2), some(2, 2), some(2, 3), some(2, 4)].into_iter().flatten().collect()
}

fn folder_entries(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the launcher makes it").flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

#[test]
fn deepspeed_refusals_have_exit_codes_of_real_tool() {
    let script = show_worker();
    let files = Scratch::new();
    let no_host = files.file("no-host", "n1 slot=2\n", 0o644);
    let twice = files.file("twice", "n1 slots=2\nn1 slots=2\n", 0o644);
    let failing = |command: &str| {
        let program = files.file(&command.replace(' ', "_"), &format!("#!/bin/sh\n{command}\n"), 0o755);
        case(&format!("--num_gpus 2 --no_python {program}"))
    };
    let refused = |options: &str, code: i32| case(&format!("{options} {script}")).fails([code; 2]);
    let cases = [
        refused("--elastic_training", 2),
        refused("--num_gpus x", 2),
        refused("-i localhost:9", 1),
        refused("-i other:0", 1),
        refused("-i localhost:0 -e localhost:1", 1),
        refused("-i localhost:0 --num_gpus 1", 1),
        refused("--num_gpus 0 -e localhost:0", 1),
        refused("--num_nodes 2", 1),
        refused(&format!("-H {no_host}"), 1),
        refused(&format!("-H {twice}"), 1),
        refused("--module --no_python", 1),
        refused("--bind_cores_to_rank --num_gpus 1", 1).inheriting("KMP_AFFINITY", "none"),
        refused(&format!("--enable_each_rank_log {script}"), 1),
        failing("exit 7").fails([7, 7]),
        failing("kill -9 $$").fails([137, 247]),
    ];
    DEEPSPEED.compare(&cases, &files);
}

#[test]
fn deepspeed_trains_under_rankrun_without_change() {
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
