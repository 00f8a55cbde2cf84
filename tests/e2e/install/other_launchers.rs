//! `rankrun shim on --also accelerate,deepspeed`.

use std::fs;
use std::path::PathBuf;

use harness::free_port;

use super::assert_shim_refused;
use super::environment::Environment;

const SCRIPTS: [&str; 5] = ["torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds"];

/// Every call that launches by a script, with options for one worker. Deepspeed listens on 29500 where no port is named, and
/// these tests run at the same time.
fn launches(environment: &Environment) -> Vec<String> {
    let options = |script: &str| match script {
        "torchrun" => "--nproc-per-node 1".to_owned(),
        "accelerate" => "launch --cpu --num_processes 1".to_owned(),
        "accelerate-launch" => "--cpu --num_processes 1".to_owned(),
        _ => format!("--num_gpus 1 --no_local_rank --master_port {}", free_port()),
    };
    let calls = |script: &str| {
        let path = environment.bin(script).display().to_string();
        [script.to_owned(), path.clone(), format!("python -u {path}")].map(|call| (call, options(script)))
    };
    let calls = SCRIPTS.into_iter().flat_map(calls);
    calls.map(|(call, options)| format!("{call} {options} worker.py 'a  b' ''")).collect()
}

/// Deepspeed's workers run on the CPU. The switch stands first.
fn run(environment: &Environment, switch: &str, line: &str) -> String {
    environment.out(&format!("export DS_ACCELERATOR=cpu LOCAL_SIZE=1 {switch}; {line}"))
}

fn environment() -> Environment {
    let environment = Environment::with_fake_torch();
    environment.install_accelerate_and_deepspeed();
    environment
}

/// The package whose stand-in answers a call by a script. That of accelerate launches in its own process by torch.
fn package_of(line: &str) -> &'static str {
    if line.contains("--num_gpus") { "deepspeed" } else { "torch" }
}

fn bytes(environment: &Environment) -> Vec<Vec<u8>> {
    let read = |script| fs::read(environment.bin(script)).expect("it is there");
    SCRIPTS.into_iter().map(read).collect()
}

#[test]
fn shim_also_on_runs_rankrun_and_shim_off_restores_all() {
    let environment = environment();
    let (files, texts) = (environment.files(), bytes(&environment));
    let out = environment.out("rankrun shim on --also accelerate,deepspeed");
    assert!(out.contains("torchrun and accelerate launch and deepspeed are rankrun there"), "{out}");
    let python = environment.bin("python").display().to_string();
    for line in launches(&environment) {
        assert_eq!(
            run(&environment, "", &line),
            format!("worker of rankrun: {python} ['a  b', ''] []\n"),
            "{line}"
        );
        let out = run(&environment, "RANKRUN_SHIM=off", &line);
        assert!(out.starts_with(&format!("{}'s own: ", package_of(&line))), "{line}: {out}");
        assert!(out.ends_with("'worker.py', 'a  b', '']\n"), "{line}: {out}");
    }
    let status = environment.out("rankrun shim status --json");
    assert!(status.contains(r#""shim":"on""#) && status.contains(r#""notes":[]"#), "{status}");
    assert_eq!(status.matches(r#""runs":"rankrun""#).count(), 11, "{status}");
    let out = environment.out("rankrun shim on");
    assert!(out.contains("already on") && out.contains("deepspeed"), "{out}");
    environment.out("rankrun shim off");
    assert_eq!((environment.files(), bytes(&environment)), (files, texts));
    for line in launches(&environment) {
        let out = run(&environment, "", &line);
        assert!(out.starts_with(&format!("{}'s own: ", package_of(&line))), "{line}: {out}");
    }
}

#[test]
fn shim_on_without_also_leaves_other_launchers() {
    let environment = environment();
    environment.out("rankrun shim on");
    for line in launches(&environment).split_off(3) {
        let out = run(&environment, "", &line);
        assert!(out.starts_with(&format!("{}'s own: ", package_of(&line))), "{line}: {out}");
    }
    // One after the other: what is on stays on.
    environment.out("rankrun shim on --also accelerate");
    environment.out("rankrun shim on --also deepspeed");
    for line in launches(&environment) {
        assert!(run(&environment, "", &line).starts_with("worker of rankrun"), "{line}");
    }
}

#[test]
fn calls_that_launch_nothing_reach_original_accelerate() {
    let environment = environment();
    environment.out("rankrun shim on --also accelerate");
    let path = environment.bin("accelerate").display().to_string();
    for call in ["accelerate", &path, &format!("python {path}"), "rankrun accelerate"] {
        for (arguments, argv) in [("env", "['env']"), ("config 'a  b' ''", "['config', 'a  b', '']")] {
            let out = environment.out(&format!("{call} {arguments}"));
            assert_eq!(out, format!("accelerate's own: accelerate {argv}\n"), "{call}");
        }
    }
    assert_eq!(environment.out("accelerate"), "accelerate's own: accelerate []\n");
}

#[test]
fn in_process_and_module_callers_are_left_alone() {
    let environment = environment();
    environment.out("rankrun shim on --also accelerate,deepspeed");
    let call = "from torch.distributed.run import main; main()";
    let _ = environment.file("myrun", call, 0o644);
    assert_eq!(environment.out("python myrun a"), "torch's own: myrun ['a']\n");
    assert_eq!(environment.out(&format!("python -c '{call}' a")), "torch's own: -c ['a']\n");
    let out = environment.out("python -m accelerate.commands.launch a");
    assert_eq!(out, "torch's own: launch.py ['a']\n");
    let out = environment.out("python -m deepspeed.launcher.runner a");
    assert_eq!(out, "deepspeed's own: runner.py ['a']\n");
    // A script of that name that is not the environment's.
    let _ = environment.file("ds", "import sys; print('_rankrun_shim' in sys.modules, sys.argv)", 0o644);
    assert!(environment.out("python ds a").ends_with("['ds', 'a']\n"));
}

#[test]
fn upgraded_accelerate_runs_rankrun_and_is_in_status() {
    let environment = environment();
    environment.out("rankrun shim on --also accelerate");
    environment.install_script("accelerate", "accelerate.commands.accelerate_cli", " again");
    let line = "accelerate launch --cpu --num_processes 1 worker.py";
    assert!(environment.out(line).starts_with("worker of rankrun"));
    assert_eq!(environment.out("accelerate env"), "accelerate's own: accelerate ['env']\n");
    let status = environment.out("rankrun shim status");
    assert!(
        status.contains("partly on") && status.contains("bin/accelerate` is the original again"),
        "{status}"
    );
    environment.out("rankrun shim on");
    let status = environment.out("rankrun shim status");
    assert!(status.contains("shim         on\n") && !status.contains("note:"), "{status}");
    environment.out("rankrun shim off");
    let script = fs::read_to_string(environment.bin("accelerate")).expect("it is there");
    assert!(script.contains("utf-8 -*- again\n"), "{script}");
}

#[test]
fn uninstalled_launcher_is_taken_off_by_next_shim_on() {
    let environment = environment();
    environment.out("rankrun shim on");
    let files = environment.files();
    environment.out("rankrun shim on --also accelerate");
    for name in ["accelerate", "accelerate-launch"] {
        fs::remove_file(environment.bin(name)).expect("it is there");
    }
    fs::remove_dir_all(environment.packages().join("accelerate")).expect("it is there");
    let status = environment.out("rankrun shim status");
    assert!(status.contains("note: this environment has no accelerate"), "{status}");
    environment.out("rankrun shim on");
    let names = |files: &std::collections::BTreeMap<std::ffi::OsString, _>| -> Vec<PathBuf> {
        let is_of_accelerate = |path: &PathBuf| path.to_string_lossy().contains("accelerate");
        files.keys().map(PathBuf::from).filter(|path| !is_of_accelerate(path)).collect()
    };
    assert_eq!(environment.files().keys().map(PathBuf::from).collect::<Vec<_>>(), names(&files));
    let status = environment.out("rankrun shim status");
    assert!(status.contains("shim         on\n") && !status.contains("note:"), "{status}");
}

#[test]
fn shim_also_on_without_replaceable_scripts_is_refused() {
    let environment = Environment::with_fake_torch();
    assert_shim_refused(
        &environment,
        "rankrun shim on --also accelerate",
        &["has no accelerate", "hint: install it first"],
    );
    environment.install_accelerate_and_deepspeed();
    let _ = environment.file("env/bin/ds", "#!/bin/sh\nexec docker-stack\n", 0o755);
    assert_shim_refused(
        &environment,
        "rankrun shim on --also accelerate,deepspeed",
        &["bin/ds` is not the script that comes with DeepSpeed", "hint: move it away"],
    );
    let output = environment.run("rankrun shim on --also horovodrun");
    assert_eq!(output.code, Some(2), "{output:#?}");
    assert!(output.err.contains("not one of `accelerate`, `deepspeed`"), "{output:#?}");
}

#[test]
fn refused_launch_under_shim_names_shim_off_variable() {
    let environment = environment();
    environment.out("rankrun shim on --also accelerate,deepspeed");
    for line in ["deepspeed --autotuning run worker.py", "accelerate launch --tpu worker.py"] {
        let output = environment.run(line);
        assert_eq!(output.code, Some(1), "{output:#?}");
        assert!(output.err.contains("RANKRUN_SHIM=off"), "{output:#?}");
        let output = environment.run(&format!("rankrun {line}"));
        assert!(!output.err.contains("RANKRUN_SHIM"), "{output:#?}");
    }
}
