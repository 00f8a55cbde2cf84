//! Launchers inside launchers. Each test starts them through [`StandIn`], which ends a fork bomb early.

use std::fs;

use harness::{Launch, Name, Outcome, Scratch, fixture, is_rankrun};

/// More inner launchers than this inside one another are not started.
const DEEPEST: u32 = 5;

/// A `PATH` with a `rankrun` and a `torchrun` that log each start, count their depth, and run the launcher.
struct StandIn {
    scratch: Scratch,
}

impl StandIn {
    fn new() -> Self {
        let scratch = Scratch::new();
        let _ = scratch.folder("real", 0o755);
        let _ = scratch.folder("bin", 0o755);
        for name in ["rankrun", "torchrun"] {
            let real = scratch.at(&format!("real/{name}"));
            std::os::unix::fs::symlink(fixture("launcher-under-test"), &real).expect("a new link");
            let text = format!(
                "#!/bin/sh\necho {name} >> {}\nDEPTH=$((${{DEPTH:-0}} + 1))\n[ $DEPTH -le {DEEPEST} ] || exit 99\n\
                 export DEPTH\nexec {real} \"$@\"\n",
                scratch.at("starts")
            );
            let _ = scratch.file(&format!("bin/{name}"), &text, 0o755);
        }
        Self { scratch }
    }

    fn launch(&self, name: Name) -> Launch {
        let path = format!("{}:/usr/bin:/bin", self.scratch.at("bin"));
        // What runs a file with Python prints its command line.
        Launch::standalone(name, 1).env("PATH", path).env("PYTHON_EXEC", "/bin/echo")
    }

    /// How many inner launchers were started.
    fn start_count(&self) -> usize {
        fs::read_to_string(self.scratch.at("starts")).unwrap_or_default().lines().count()
    }

    fn script(&self, name: &str, first_line: &str) -> String {
        self.scratch.file(name, &format!("{first_line}\nprint('trained')\n"), 0o755)
    }
}

#[track_caller]
fn assert_run_with_python(outcome: &Outcome, script: &str, workers: usize) {
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with(&format!("-u {script}")).len(), workers, "{outcome}");
}

#[test]
fn shebang_naming_launcher_runs_file_with_python() {
    let stand_in = StandIn::new();
    let path = stand_in.scratch.at("bin");
    let link = stand_in.scratch.at("start-training");
    std::os::unix::fs::symlink(format!("{path}/torchrun"), &link).expect("a new link");
    for (number, first_line) in [
        "#!/usr/bin/env rankrun".to_owned(),
        "#!/usr/bin/env -S rankrun --nproc-per-node 2".to_owned(),
        "#!/usr/bin/env -Srankrun --nproc-per-node 2".to_owned(),
        "#!/usr/bin/env -S -u TERM OMP_NUM_THREADS=1 rankrun --nproc-per-node 2".to_owned(),
        "#! /usr/bin/env -S torchrun --nproc-per-node=2".to_owned(),
        format!("#!{path}/rankrun"),
        format!("#!{path}/torchrun --standalone"),
        format!("#!/usr/bin/env -S nice -n 1 \"{path}/rankrun\" --nproc-per-node 2"),
        format!("#!{link}"),
        "#!/usr/bin/env -S python3 -m torch.distributed.run --nproc-per-node 2".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let script = stand_in.script(&format!("train{number}"), first_line);
        let outcome = stand_in.launch(Name::Rankrun).args([script.as_str()]).run();
        assert_run_with_python(&outcome, &script, 1);
        assert_eq!(stand_in.start_count(), 0, "{first_line}\n{outcome}");
    }
}

#[test]
fn script_run_by_own_shebang_starts_the_workers_it_names() {
    let stand_in = StandIn::new();
    let script = stand_in.script("train", "#!/usr/bin/env -S rankrun --nproc-per-node 2");
    // The launcher that the harness names stands in `$0`, and is not started.
    let launch = Launch::new(Name::Rankrun).under(["sh", "-c", "shift; exec \"$@\"", "sh"]);
    let path = format!("{}:/usr/bin:/bin", stand_in.scratch.at("bin"));
    let launch = launch.env("PATH", path).env("PYTHON_EXEC", "/bin/echo");
    let outcome = launch.args([script.as_str(), "--lr", "1"]).run();
    assert_run_with_python(&outcome, &format!("{script} --lr 1"), 2);
    assert_eq!(stand_in.start_count(), 1, "{outcome}");
}

#[test]
fn path_program_with_launcher_shebang_runs_with_python() {
    let stand_in = StandIn::new();
    let script = stand_in.script("bin/train", "#!/usr/bin/env -S rankrun --nproc-per-node 2");
    let outcome = stand_in.launch(Name::Rankrun).args(["train"]).run();
    assert_run_with_python(&outcome, &script, 1);
    assert_eq!(stand_in.start_count(), 0, "{outcome}");
}

#[test]
fn other_shebangs_are_executed() {
    let stand_in = StandIn::new();
    // The word is an argument of the program, or a part of another name.
    for first_line in ["#!/bin/sh", "#!/usr/bin/env sh", "#!/usr/bin/env -S LAUNCHER=/opt/rankrun sh"] {
        let script = stand_in.scratch.file("rankrun-train", &format!("{first_line}\necho obeyed\n"), 0o755);
        stand_in.launch(Name::Rankrun).args([script]).run().expect_exit_code(0).expect_stdout("obeyed\n");
    }
}

/// A script that starts a launcher on itself, whatever runs the script.
fn recursive_script(stand_in: &StandIn, name: &str) -> String {
    let text = format!("#!/bin/sh\nexec {name} --nproc-per-node 1 --no-python \"$0\"\n");
    stand_in.scratch.file("again", &text, 0o755)
}

#[test]
fn fourth_nested_launch_of_same_entrypoint_is_refused() {
    if !is_rankrun() {
        return;
    }
    for (name, program) in [(Name::Rankrun, "rankrun"), (Name::Torchrun, "torchrun")] {
        let stand_in = StandIn::new();
        let script = recursive_script(&stand_in, program);
        let outcome = stand_in.launch(name).args(["--no-python", script.as_str()]).run();
        outcome.expect_exit_code(1).expect_stderr("error: ").expect_stderr("again").expect_stderr("hint: ");
        outcome.expect_stderr("RANKRUN_NESTING");
        assert_eq!(stand_in.start_count(), 3, "{outcome}");
    }
}

#[test]
fn nested_launches_of_different_entrypoints_are_allowed() {
    let stand_in = StandIn::new();
    let mut script = stand_in.scratch.file("train0", "#!/bin/sh\necho innermost\n", 0o755);
    for number in 1..=DEEPEST {
        let text = format!("#!/bin/sh\nexec rankrun {script}\n");
        script = stand_in.scratch.file(&format!("train{number}"), &text, 0o755);
    }
    let outcome = stand_in.launch(Name::Rankrun).args([script]).run();
    outcome.expect_exit_code(0).expect_stdout("innermost\n");
    assert_eq!(stand_in.start_count(), DEEPEST as usize, "{outcome}");
}

/// A batch system hands the environment of a worker on to jobs that the worker submits.
#[test]
fn nesting_count_of_non_ancestor_is_reset() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("train", "#!/bin/sh\necho nesting=$RANKRUN_NESTING=\n", 0o755);
    let outcome = Launch::standalone(Name::Rankrun, 1).args([script.as_str()]).run();
    outcome.expect_exit_code(0);
    let lines = outcome.lines_with("nesting=");
    let value = lines[0].trim_start_matches("nesting=").trim_end_matches('=');
    let (ended, counts) = value.split_once(':').expect("a pid and counts");
    let counts = counts.replace("=1", "=3");
    let inherits = |pid: &str| {
        let launch = Launch::standalone(Name::Rankrun, 1).env("RANKRUN_NESTING", format!("{pid}:{counts}"));
        launch.args([script.as_str()]).run()
    };
    // This process starts the launcher, and the one before has ended.
    inherits(&std::process::id().to_string()).expect_exit_code(1).expect_stderr("error: ");
    inherits(ended).expect_exit_code(0).expect_stdout("=1=\n");
}
