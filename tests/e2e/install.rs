//! What is installed: the wheel, and `rankrun shim` in environments of its own.

mod environment;
mod other_launchers;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use environment::Environment;

/// The ways to call torchrun: plain, as Python's script, and as its module with options of the interpreter.
fn torchrun_command_lines(environment: &Environment) -> [String; 6] {
    let torchrun = environment.bin("torchrun").display().to_string();
    [
        "torchrun".to_owned(),
        format!("python {torchrun}"),
        format!("python -I -X dev -W ignore {torchrun}"),
        "python -m torch.distributed.run".to_owned(),
        "python -um torch.distributed.run".to_owned(),
        "python -I -X dev -mtorch.distributed.run".to_owned(),
    ]
}

/// Fails unless every call starts our workers, and these run under the environment's Python.
#[track_caller]
fn assert_calls_run_rankrun(environment: &Environment) {
    for call in torchrun_command_lines(environment) {
        let out = environment.out(&format!("{call} --nproc-per-node 1 worker.py 'a  b' '' é"));
        let python = environment.bin("python");
        assert_eq!(out, format!("worker of rankrun: {} ['a  b', '', 'é'] []\n", python.display()), "{call}");
    }
}

/// Fails unless every call starts torch's own torchrun.
#[track_caller]
fn assert_calls_run_torch(environment: &Environment, switch: &str) {
    for call in torchrun_command_lines(environment) {
        let out = environment.out(&format!("{switch} {call} --nproc-per-node 1 worker.py 'a  b'"));
        let name = if call.contains("distributed.run") { "run.py" } else { "torchrun" };
        assert_eq!(
            out,
            format!("torch's own: {name} ['--nproc-per-node', '1', 'worker.py', 'a  b']\n"),
            "{call}"
        );
    }
}

#[test]
fn shim_on_runs_rankrun_and_shim_off_restores_torchrun() {
    let environment = Environment::with_fake_torch();
    assert_calls_run_torch(&environment, "");
    let before = environment.files();
    let out = environment.out("rankrun shim on");
    assert!(out.contains(&format!("the shim is on in `{}`", environment.prefix())), "{out}");
    assert_calls_run_rankrun(&environment);
    assert_calls_run_torch(&environment, "RANKRUN_SHIM=off");
    let status = environment.out("rankrun shim status --json");
    assert!(status.contains(r#""shim":"on""#) && !status.contains(r#""runs":"torch""#), "{status}");
    let out = environment.out("rankrun shim on");
    assert!(out.contains("already on"), "{out}");
    environment.out("rankrun shim off");
    // The very files, and no other.
    assert_eq!(environment.files(), before);
    assert_calls_run_torch(&environment, "");
    let out = environment.out("rankrun shim off");
    assert!(out.contains("already off"), "{out}");
}

#[test]
fn shim_leaves_other_python_programs_alone() {
    let environment = Environment::with_fake_torch();
    environment.out("rankrun shim on");
    let _ = environment.file("look.py", "import sys; print('_rankrun_shim' in sys.modules, sys.argv)", 0o644);
    let _ = environment.file("torchrun", "import sys; print(sys.argv)", 0o644);
    let print_loaded = "import sys; print('_rankrun_shim' in sys.modules)";
    assert_eq!(
        environment.out("python -u look.py -m torch.distributed.run"),
        "False ['look.py', '-m', 'torch.distributed.run']\n"
    );
    assert_eq!(environment.out("python -m look torch.distributed.run").split(' ').next(), Some("False"));
    assert_eq!(environment.out(&format!("python -c \"{print_loaded}\" -m torch.distributed.run")), "False\n");
    assert_eq!(environment.out(&format!("echo \"{print_loaded}\" | python")), "False\n");
    // A script of that name that is not the environment's.
    assert_eq!(environment.out("python torchrun -x"), "['torchrun', '-x']\n");
    // A user's interactive interpreter (`-i`) is not replaced by the launcher.
    let out = environment.out("python -i -m torch.distributed.run a </dev/null");
    assert!(out.starts_with("torch's own: run.py ['a']"), "{out}");
    // An environment that is built upon this one has a torchrun of its own.
    let upon = format!("import site; site.addsitedir('{}')", environment.packages().display());
    environment.out("python -m venv --without-pip upon");
    environment.out(&format!("echo \"{upon}\" > $(echo upon/lib/python*/site-packages)/upon.pth"));
    let out = environment.out("upon/bin/python -m torch.distributed.run a");
    assert_eq!(out, "torch's own: run.py ['a']\n");
}

#[test]
fn torchrun_reinstalled_under_shim_is_restored_by_shim_off() {
    let environment = Environment::with_fake_torch();
    environment.out("rankrun shim on");
    environment.install_torchrun(" again");
    assert_calls_run_rankrun(&environment);
    assert_calls_run_torch(&environment, "RANKRUN_SHIM=off");
    let status = environment.out("rankrun shim status");
    assert!(status.contains("partly on") && status.contains("reinstallation"), "{status}");
    environment.out("rankrun shim on");
    let status = environment.out("rankrun shim status");
    assert!(status.contains("shim         on\n") && !status.contains("note:"), "{status}");
    assert_calls_run_rankrun(&environment);
    environment.out("rankrun shim off");
    let script = fs::read_to_string(environment.bin("torchrun")).expect("it is there");
    assert!(script.contains("utf-8 -*- again\n"), "{script}");
    assert_calls_run_torch(&environment, "");
}

#[test]
fn missing_rankrun_program_falls_back_to_torch() {
    let environment = Environment::with_fake_torch();
    environment.out("rankrun shim on");
    fs::remove_file(environment.bin("rankrun")).expect("it is there");
    assert_calls_run_torch(&environment, "");
    environment.install_torchrun("");
    assert_calls_run_torch(&environment, "");
    // It comes back, as with an upgrade.
    environment.install_rankrun();
    assert_calls_run_rankrun(&environment);
}

#[test]
fn unsupported_option_under_shim_names_shim_off_variable() {
    let environment = Environment::with_fake_torch();
    environment.out("rankrun shim on");
    for call in ["torchrun", "python -m torch.distributed.run"] {
        let output = environment.run(&format!("{call} --logs-specs some worker.py"));
        assert_eq!(output.code, Some(1), "{output:#?}");
        assert!(output.err.contains("RANKRUN_SHIM=off"), "{output:#?}");
    }
    let output = environment.run("rankrun --logs-specs some worker.py");
    assert!(output.code == Some(1) && !output.err.contains("RANKRUN_SHIM"), "{output:#?}");
}

/// Fails unless the shim refuses with these words and leaves everything as it was.
#[track_caller]
fn assert_shim_refused(environment: &Environment, line: &str, messages: &[&str]) {
    let before = environment.files();
    let output = environment.run(line);
    assert_eq!(output.code, Some(1), "{output:#?}");
    for message in messages {
        assert!(output.err.contains(message), "no `{message}` in {output:#?}");
    }
    assert_eq!(environment.files(), before);
}

#[test]
fn shim_on_without_replaceable_torchrun_is_refused() {
    let environment = Environment::with_fake_torch();
    let _ = environment.file("env/bin/torchrun", "#!/bin/sh\nexec srun torchrun\n", 0o755);
    assert_shim_refused(
        &environment,
        "rankrun shim on",
        &["bin/torchrun` is not the script", "hint: move it away"],
    );
    let status = environment.out("rankrun shim status");
    assert!(status.contains("another program"), "{status}");
    fs::remove_file(environment.bin("torchrun")).expect("it is there");
    fs::rename(environment.packages().join("torch"), environment.packages().join("no_torch"))
        .expect("it is there");
    assert_shim_refused(&environment, "rankrun shim on", &["has no PyTorch", "hint: install it first"]);
    assert_shim_refused(
        &environment,
        "rankrun shim on --python /gone/python",
        &["`/gone/python` does not exist"],
    );
    assert_shim_refused(
        &environment,
        "rankrun shim on --python /bin/false",
        &["does not say where its packages are"],
    );
    let line = "cp -L env/bin/rankrun . && env -u VIRTUAL_ENV ./rankrun shim on";
    assert_shim_refused(&environment, line, &["no Python environment is found", "--python"]);
    assert_eq!(environment.run("rankrun shim").code, Some(2));
    assert_eq!(environment.run("rankrun shim of").code, Some(2));
}

#[test]
fn shim_in_readonly_environment_changes_nothing() {
    let environment = Environment::with_fake_torch();
    // Root may write everywhere, unless this right is taken away.
    let root = "$([ $(id -u) != 0 ] || echo setpriv --bounding-set=-dac_override)";
    let closed = |folder: &Path, mode| {
        fs::set_permissions(folder, Permissions::from_mode(mode)).expect("the environment is ours");
    };
    let (bin, packages) = (environment.bin(""), environment.packages().to_owned());
    for folder in [&packages, &bin] {
        closed(folder, 0o555);
        let line = format!("{root} rankrun shim on");
        assert_shim_refused(
            &environment,
            &line,
            &["nothing was changed", "Permission denied", "hint:", "--python"],
        );
        closed(folder, 0o755);
    }
    environment.out("rankrun shim on");
    for folder in [&packages, &bin] {
        closed(folder, 0o555);
        assert_shim_refused(
            &environment,
            &format!("{root} rankrun shim off"),
            &["nothing was changed", "hint:"],
        );
        closed(folder, 0o755);
    }
    assert_calls_run_rankrun(&environment);
}

#[test]
fn concurrent_shim_on_keeps_original_torchrun() {
    let environment = Environment::with_fake_torch();
    let original = fs::read(environment.bin("torchrun")).expect("it is there");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| environment.out("rankrun shim on"));
        }
    });
    assert_calls_run_rankrun(&environment);
    environment.out("rankrun shim off");
    assert_eq!(fs::read(environment.bin("torchrun")).expect("it is there"), original);
}

#[test]
fn shim_is_a_subcommand_only_as_first_argument() {
    let environment = Environment::with_fake_torch();
    let _ = environment.file("shim", "#!/bin/sh\necho the script \"$@\"\n", 0o755);
    assert_eq!(environment.out("rankrun ./shim on"), "the script on\n");
    assert_eq!(environment.out("rankrun --nproc-per-node 1 shim on"), "the script on\n");
    let out = environment.out("rankrun shim --help");
    assert!(out.contains("Usage: rankrun shim"), "{out}");
}

/// Two workers of PyTorch that meet.
const TRAIN: &str = r#"
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
launcher = "rankrun" if "RANKRUN_JOB" in os.environ else "torch"
print(f"rank {dist.get_rank()} of {launcher}: {int(total.item())}\n", end="", flush=True)
dist.destroy_process_group()
"#;

/// Fails unless both workers of the job met, started by this launcher.
#[track_caller]
fn assert_trains_with(environment: &Environment, call: &str, launcher: &str) {
    let out = environment.out(&format!("{call} --nproc-per-node 2 train.py"));
    for rank in 0..2 {
        assert!(out.contains(&format!("rank {rank} of {launcher}: 2")), "{call}: {out}");
    }
}

/// Installs the wheel with pip, and fails unless it is what it should be.
#[track_caller]
fn install_wheel(environment: &Environment, wheel: &Path) {
    let name = wheel.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    assert!(name.contains("-py3-none-manylinux2014_") && name.contains(".manylinux_2_17_"), "{name}");
    environment.out(&format!("python -m pip install --quiet --no-index '{}'", wheel.display()));
    let facts = "import importlib.metadata as m; d = m.distribution('rankrun'); \
                 print(d.requires, d.metadata['Requires-Python'], d.metadata['License-Expression'], \
                 sorted(str(f) for f in d.files if 'dist-info' not in str(f)))";
    let out = environment.out(&format!("python -c \"{facts}\""));
    assert_eq!(
        out,
        "None >=3.8 Apache-2.0 OR MIT ['../../../bin/rankrun', \
         '../../../share/bash-completion/completions/rankrun', \
         '../../../share/fish/vendor_completions.d/rankrun.fish', '../../../share/man/man1/rankrun.1', \
         '../../../share/zsh/site-functions/_rankrun']\n"
    );
    let out = environment.out("rankrun --nproc-per-node 2 worker.py");
    let line = format!("worker of rankrun: {} [] []\n", environment.bin("python").display());
    assert_eq!(out, line.repeat(2));
}

#[test]
fn archive_of_wheel_is_installed_by_install_script() {
    let Some(wheel) = harness::wheel() else { return };
    let environment = Environment::with_fake_torch();
    let checkout = harness::checkout().display();
    let install = format!(
        "folder=$(CARGO_TARGET_DIR=$PWD/packed '{checkout}/launcher/archive' '{}') && \
         sh '{checkout}/install.sh' --from \"$folder\" --prefix $PWD/here && here/bin/rankrun --version && \
         ls here/share/man/man1 here/share/zsh/site-functions here/share/doc/rankrun",
        wheel.display()
    );
    let out = environment.out(&install);
    for line in ["rankrun 0.1.0", "rankrun.1", "_rankrun", "LICENSE-APACHE", "LICENSE-MIT"] {
        assert!(out.lines().any(|found| found == line), "{line}: {out}");
    }
}

#[test]
fn pytorch_job_trains_with_shim_from_installed_wheel() {
    let wheel = harness::wheel();
    let environment = Environment::with_torch(if wheel.is_some() { &[] } else { &["--without-pip"] });
    match &wheel {
        Some(wheel) => install_wheel(&environment, wheel),
        None => environment.install_rankrun(),
    }
    let _ = environment.file("train.py", TRAIN, 0o644);
    environment.out("rankrun shim on");
    for call in ["torchrun", "python $(which torchrun)", "python -m torch.distributed.run"] {
        assert_trains_with(&environment, call, "rankrun");
    }
    match &wheel {
        // Without `off` before.
        Some(_) => environment.out("python -m pip uninstall --quiet --yes rankrun"),
        None => environment.out("rankrun shim off"),
    };
    assert_trains_with(&environment, "torchrun --standalone", "torch");
}

/// As `rankrun shim on` leaves them when it is killed: before a rename, between two renames, and before it has cleared away.
#[test]
fn interrupted_shim_files_are_restored_or_removed_by_gc() {
    if !harness::can_use_namespaces() {
        return;
    }
    let environment = Environment::with_fake_torch();
    // In a container: `gc` looks at every process of the user, at `/dev/shm`, and at the folders of dead jobs.
    let gc = |options: &str| {
        let jobs = format!("/tmp/rankrun-{}", rustix::process::geteuid().as_raw());
        // The last job of another test removes the folder, perhaps between the two commands.
        let line = format!(
            "for attempt in 1 2 3 4 5 6 7 8 9; do \
                 mkdir -p -m 700 {jobs} && mount -t tmpfs -o mode=700 tmpfs {jobs} && break; \
             done && mount -t tmpfs tmpfs /dev/shm && exec rankrun gc {options}"
        );
        environment.out(&format!("unshare --pid --mount --fork --mount-proc sh -c '{line}'"))
    };
    let before = environment.files();
    let (bin, packages) = (environment.bin(""), environment.packages());
    for name in [".torchrun.rankrun-new", ".ds.rankrun-new"] {
        fs::write(bin.join(name), "new").expect("the environment is ours");
    }
    fs::create_dir(packages.join("._rankrun_shim.rankrun-new")).expect("the environment is ours");
    fs::write(packages.join("._rankrun_shim.rankrun-new/record.json"), "{}")
        .expect("the environment is ours");
    fs::hard_link(environment.bin("torchrun"), bin.join(".torchrun.rankrun-old"))
        .expect("the environment is ours");
    let out = gc("--dry-run");
    assert!(out.contains("4 paths left") && out.contains("/bin/.torchrun.rankrun-old\n"), "{out}");
    let out = gc("--json");
    assert_eq!(out.matches("\"fate\": \"removed\"").count(), 4, "{out}");
    assert_eq!(environment.files(), before);
    assert!(!packages.join("._rankrun_shim.rankrun-new").exists());
    // The only copy.
    fs::rename(environment.bin("torchrun"), bin.join(".torchrun.rankrun-old"))
        .expect("the environment is ours");
    let out = gc("");
    assert!(out.contains("0 paths removed, 1 put back\n"), "{out}");
    assert_eq!(environment.files(), before);
    assert_calls_run_torch(&environment, "");
}
