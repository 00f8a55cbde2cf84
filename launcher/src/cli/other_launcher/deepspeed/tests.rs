//! Command line → words, variables and remarks, in made-up worlds. The launch of the words has as many workers as
//! `LOCAL_SIZE` says.

use super::*;
use crate::cli::{Command, interpret};
use rankrun_core::device::fake::{cuda, xpu};
use rankrun_core::facts::fake::FakeWorld;

mod refusals;
mod remote;

const MASTER: &str = "--master-addr 127.0.0.1 --master-port 29500";

/// Command line, environment, words, variables; or number of workers and ids for the last two.
type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a str);

fn world() -> FakeWorld {
    let world = FakeWorld::default().file("/job/x.py", b"impo").program("/usr/bin/python3");
    world.file("/proc/sys/kernel/hostname", b"n7.cluster\n")
}

fn gpus() -> FakeWorld {
    world().machine(cuda(4)).device("/dev/nvidiactl")
}

fn with_path<'a>(environment: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    environment.iter().copied().chain([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]).collect()
}

fn translated(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Translation {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    match translate(&words, &world.facts(&with_path(environment))) {
        Ok(OtherCommand::Launch(translation)) => translation,
        other => panic!("`{line}`: {other:?}"),
    }
}

/// The words without the address of the store and without the script.
fn words(translation: &Translation) -> String {
    let words: Vec<&str> = translation.words.iter().filter_map(|word| word.to_str()).collect();
    let words = words.join(" ");
    let words = words.strip_prefix(MASTER).unwrap_or(&words);
    words.strip_suffix("-- x.py --local_rank=${local_rank}").unwrap_or(words).trim().to_owned()
}

/// The variables beside `CROSS_RANK` and `CROSS_SIZE`.
fn variables(translation: &Translation) -> String {
    let all = translation.environment.iter().filter(|(name, _)| !name.starts_with("CROSS_"));
    let shown = all.map(|(name, value)| match value {
        Some(value) => format!("{name}={}", value.to_string_lossy()),
        None => format!("-{name}"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check_rows(world: &FakeWorld, rows: &[Row<'_>]) {
    for (line, environment, expected_words, expected_variables) in rows {
        let translation = translated(world.clone(), line, environment);
        assert_eq!(words(&translation), *expected_words, "{line} {environment:?}");
        assert_eq!(variables(&translation), *expected_variables, "{line} {environment:?}");
        assert_workers_match(world.clone(), environment, &translation);
    }
}

/// The launch of the translation has as many workers as its variables say.
#[track_caller]
fn assert_workers_match(world: FakeWorld, environment: &[(&str, &str)], translation: &Translation) {
    let mut facts = world.facts(&with_path(environment));
    facts.change_environment(&translation.environment);
    let argv: Vec<OsString> =
        [OsString::from("rankrun")].into_iter().chain(translation.words.iter().cloned()).collect();
    match interpret(&argv, &facts) {
        Ok(Command::Launch(launch)) => {
            let size = facts.variable("LOCAL_SIZE").and_then(|size| size.to_str());
            assert_eq!(size, Some(launch.spec.workers.get().to_string().as_str()), "{argv:?}");
        }
        other => panic!("{argv:?}: {other:?}"),
    }
}

#[test]
fn device_options_become_words_and_variables() {
    let visible: &[(&str, &str)] = &[("CUDA_VISIBLE_DEVICES", "3,1")];
    let uuid = "GPU-00000000";
    let hidden = "-CUDA_VISIBLE_DEVICES LOCAL_SIZE=";
    check_rows(
        &gpus(),
        &[
            ("x.py", &[], "--devices all", "LOCAL_SIZE=4"),
            ("--num_gpus 2 x.py", &[], "--devices 0-1 --nproc-per-node 2", "LOCAL_SIZE=2"),
            ("--num_gpus 1 x.py", &[], "--devices 0 --nproc-per-node 1", "LOCAL_SIZE=1"),
            ("--num_gpus 0 x.py", &[], "--devices all", "LOCAL_SIZE=4"),
            (
                "--num_gpus 3 --num_accelerators=2 x.py",
                &[],
                "--devices 0-1 --nproc-per-node 2",
                "LOCAL_SIZE=2",
            ),
            (
                "--num_accelerators=2 --num_gpus 3 x.py",
                &[],
                "--devices 0-2 --nproc-per-node 3",
                "LOCAL_SIZE=3",
            ),
            ("--num_gpu 2 x.py", &[], "--devices 0-1 --nproc-per-node 2", "LOCAL_SIZE=2"),
            ("--include localhost:3,1 x.py", &[], "--devices 3,1", "LOCAL_SIZE=2"),
            ("-i n7:2 x.py", &[], "--devices 2", "LOCAL_SIZE=1"),
            ("-i n7.cluster:1@localhost:1@localhost:3 x.py", &[], "--devices 1", "LOCAL_SIZE=1"),
            ("-i localhost:2,2@localhost:0 x.py", &[], "--devices 2,0", "LOCAL_SIZE=2"),
            ("-i localhost x.py", &[], "--devices all", "LOCAL_SIZE=4"),
            ("-e localhost:0 x.py", &[], "--devices=-0", "LOCAL_SIZE=3"),
            ("--exclude localhost:0,3 x.py", &[], "--devices=-0,-3", "LOCAL_SIZE=2"),
            ("x.py", visible, "", "LOCAL_SIZE=2"),
            ("--num_gpus 3 x.py", visible, "--devices 0-2 --nproc-per-node 3", &format!("{hidden}3")),
            ("-i localhost:0 x.py", visible, "--devices 0", &format!("{hidden}1")),
            ("--exclude=localhost:0 x.py", visible, "--devices=-0", &format!("{hidden}3")),
            ("--num_nodes 1 x.py", visible, "", "LOCAL_SIZE=2"),
            ("x.py", &[("PET_NPROC_PER_NODE", "7")], "--devices all", "-PET_NPROC_PER_NODE LOCAL_SIZE=4"),
            ("x.py", &[("DS_ACCELERATOR", "cuda")], "--devices all", "LOCAL_SIZE=4"),
            ("x.py", &[("LOCAL_SIZE", "9")], "--devices all", "LOCAL_SIZE=4"),
        ],
    );
    let first = cuda(4).accelerators[2].uuid.clone().unwrap_or_default();
    assert!(!first.starts_with(uuid), "{first}");
    let translation = translated(gpus(), &format!("-i localhost:{first},0 x.py"), &[]);
    assert_eq!(words(&translation), format!("--devices {first},0"));
    let intel = world().machine(xpu(2, 1)).folder("/dev/dri");
    let forced: &[(&str, &str)] = &[("DS_ACCELERATOR", "xpu"), ("ZE_AFFINITY_MASK", "1")];
    let row =
        ("-i localhost:0 x.py", forced, "--device-type xpu --devices 0", "-ZE_AFFINITY_MASK LOCAL_SIZE=1");
    check_rows(&intel, &[row]);
}

#[test]
fn cpu_shares_are_counted_and_filtered_as_devices() {
    let cpu: &[(&str, &str)] = &[("DS_ACCELERATOR", "cpu"), ("LOCAL_SIZE", "4")];
    let listed: &[(&str, &str)] =
        &[("DS_ACCELERATOR", "cpu"), ("LOCAL_SIZE", "4"), ("CUDA_VISIBLE_DEVICES", "3,1")];
    let rows: &[Row<'_>] = &[
        ("x.py", cpu, "4", "0,1,2,3"),
        ("--num_gpus 2 x.py", cpu, "2", "0,1"),
        ("--num_gpus 6 x.py", cpu, "6", "0,1,2,3,4,5"),
        ("-i localhost:3,1 x.py", cpu, "2", "3,1"),
        ("-e localhost:0 x.py", cpu, "3", "1,2,3"),
        ("x.py", listed, "2", "3,1"),
        ("-i localhost:0 x.py", listed, "1", "0"),
        ("x.py", &[("DS_ACCELERATOR", "cpu")], "1", "0"),
        ("x.py", &[("CUDA_VISIBLE_DEVICES", "-1")], "1", "0"),
        ("x.py", &[], "1", "0"),
    ];
    for (line, environment, count, ids) in rows {
        let words = format!("--device-type cpu --nproc-per-node {count}");
        let variables = format!("CUDA_VISIBLE_DEVICES={ids} LOCAL_SIZE={count}");
        check_rows(&world(), &[(line, environment, &words, &variables)]);
    }
    let nodes = ["node0", "node1", "node2"].map(|node| format!("/sys/devices/system/node/{node}"));
    let numa = nodes.iter().fold(world(), |world, node| world.folder(node));
    let numa = numa
        .file("/sys/devices/system/node/node0/cpulist", b"0-3\n")
        .file("/sys/devices/system/node/node1/cpulist", b"4-7\n")
        .file("/sys/devices/system/node/node2/cpulist", b"\n")
        .file("/sys/devices/system/node/possible", b"0-2\n");
    let count = variables(&translated(numa, "x.py", &[("LOCAL_SIZE", "0")]));
    assert_eq!(count, "CUDA_VISIBLE_DEVICES=0,1 LOCAL_SIZE=2");
}

#[test]
fn host_file_with_this_machine_alone_limits_slots() {
    let file = b"# the cluster\n\nn7 slots=3 gpus\n";
    let world = gpus().file("/job/hosts", file);
    let visible: &[(&str, &str)] = &[("CUDA_VISIBLE_DEVICES", "3")];
    check_rows(
        &world,
        &[
            ("-H hosts x.py", &[], "--devices 0-2", "LOCAL_SIZE=3"),
            ("-H hosts -i n7:2,0 x.py", &[], "--devices 2,0", "LOCAL_SIZE=2"),
            ("-H hosts -i localhost:2 x.py", &[], "--devices 2", "LOCAL_SIZE=1"),
            ("-H hosts -e n7:1 x.py", &[], "--devices 0,2", "LOCAL_SIZE=2"),
            ("-H hosts x.py", visible, "--devices 0-2", "-CUDA_VISIBLE_DEVICES LOCAL_SIZE=3"),
            ("-H nothing x.py", &[], "--devices all", "LOCAL_SIZE=4"),
        ],
    );
    let two = gpus().file("/job/hostfile", b"n7 slots=2\nn8 slots=4\n");
    check_rows(
        &two,
        &[
            ("-i n7 x.py", &[], "--devices 0-1", "LOCAL_SIZE=2"),
            ("-e n8 x.py", &[], "--devices 0-1", "LOCAL_SIZE=2"),
            ("--num_nodes 1 --num_gpus 1 x.py", &[], "--devices 0 --nproc-per-node 1", "LOCAL_SIZE=1"),
        ],
    );
    let translation = translated(world, "-H hosts --master_addr 10.0.0.7 --master_port 1234 x.py", &[]);
    assert!(words(&translation).starts_with("--master-addr 10.0.0.7 --master-port 1234 "));
}

#[test]
fn script_gets_local_rank_before_its_arguments() {
    for (line, expected) in [
        ("x.py --lr 0.1", "-- x.py --local_rank=${local_rank} --lr 0.1"),
        ("--no_local_rank x.py a", "-- x.py a"),
        ("--no_loc x.py --num_gpus 3", "-- x.py --num_gpus 3"),
        ("-- x.py -- b", "-- x.py --local_rank=${local_rank} b"),
        ("x.py -- -- b --", "-- x.py --local_rank=${local_rank} b --"),
        ("-- x.py -- -- b", "-- x.py --local_rank=${local_rank} -- b"),
        ("x.py -- b", "-- x.py --local_rank=${local_rank} b"),
        ("--module pkg.train a", "--module -- pkg.train --local_rank=${local_rank} a"),
        ("--no_python /usr/bin/python3 a", "--no-python -- /usr/bin/python3 --local_rank=${local_rank} a"),
    ] {
        let translation = translated(gpus(), line, &[]);
        let words: Vec<&str> = translation.words.iter().filter_map(|word| word.to_str()).collect();
        assert!(words.join(" ").ends_with(&format!("--devices all {expected}")), "{line}: {words:?}");
    }
}

#[test]
fn binding_logs_and_level_become_words() {
    for (line, expected) in [
        ("--bind_cores_to_rank x.py", "--bind-cores all"),
        ("--bind_cores_to_rank --bind_core_list 0-3,6 x.py", "--bind-cores 0-3,6"),
        ("--bind_core_list 0-3 x.py", ""),
        ("--enable_each_rank_log logs x.py", "--redirects 3 --log-dir logs"),
        ("--enable_each_rank_log None x.py", ""),
        ("--log_level info x.py", ""),
        ("--log_level debug x.py", "-v"),
        ("-q x.py", "--quiet"),
        ("--log_level error x.py", "--quiet"),
    ] {
        assert_eq!(
            words(&translated(gpus(), line, &[])),
            format!("--devices all {expected}").trim(),
            "{line}"
        );
    }
}

#[test]
fn env_files_add_variables_and_later_file_counts() {
    let world = gpus()
        .file("/home/me/.deepspeed_env", b"A=1\nB = two words \n# C=3\n\nX=home\n")
        .file("/job/.deepspeed_env", b"X=a=b\n")
        .file("/job/other", b"CUDA_VISIBLE_DEVICES=2\n");
    let home = ("HOME", "/home/me");
    check_rows(
        &world,
        &[
            ("x.py", &[home], "--devices all", "A=1 B=two words X=a=b LOCAL_SIZE=4"),
            ("x.py", &[], "--devices all", "X=a=b LOCAL_SIZE=4"),
            // As if it was exported in front of the command.
            ("x.py", &[("DS_ENV_FILE", "other")], "", "CUDA_VISIBLE_DEVICES=2 LOCAL_SIZE=1"),
        ],
    );
}

#[test]
fn options_without_effect_are_named() {
    for (line, environment, remarks) in [
        ("x.py", vec![], vec![]),
        ("--launcher slurm --force_multi x.py", vec![], vec!["`--force_multi`, `--launcher`"]),
        ("--no_ssh --node_rank 0 --ssh_port 22 x.py", vec![], vec!["`--no_ssh`, `--ssh_port`"]),
        ("--save_pid x.py", vec![], vec!["`rankrun ls`"]),
        ("--bind_core_list 1 x.py", vec![], vec!["`--bind_cores_to_rank`"]),
        ("--master_addr n9 x.py", vec![], vec!["`--master_addr n9`"]),
        ("-H nothing x.py", vec![], vec!["`nothing` does not exist"]),
        (
            "--num_gpus 1 x.py",
            vec![("CUDA_VISIBLE_DEVICES", "2")],
            vec!["`CUDA_VISIBLE_DEVICES=2` is not used"],
        ),
        ("x.py", vec![("CUDA_VISIBLE_DEVICES", "")], vec!["no accelerator is visible"]),
    ] {
        let found = translated(gpus(), line, &environment).remarks;
        assert_eq!(found.len(), remarks.len(), "{line}: {found:?}");
        for (remark, part) in found.iter().zip(remarks) {
            assert!(remark.contains(part) && !remark.ends_with('.'), "{line}: {remark}");
        }
    }
}

#[test]
fn help_lists_options_with_underscores() {
    let words = [OsString::from("-h")];
    match translate(&words, &world().facts(&[])) {
        Ok(OtherCommand::Print(text)) => {
            assert!(text.contains("Usage: rankrun deepspeed [OPTIONS] SCRIPT [ARGS]...\n"), "{text}");
            assert!(text.contains("--num_gpus <N>") && !text.contains("num-gpus"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}
