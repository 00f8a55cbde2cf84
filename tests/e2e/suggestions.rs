//! What is said to a word that nothing here knows: misspelt, or another launcher's.

use harness::{Launch, Name, Scratch, can_use_namespaces, fixture, is_rankrun, is_torchrun};

/// Our answer to a command line that cannot be read: status, and what is told.
fn run_refused(arguments: &[&str]) -> (i32, String) {
    let scratch = Scratch::new();
    let folder = scratch.folder("empty", 0o755);
    let outcome = Launch::new(Name::Rankrun).cwd(folder).args(arguments.iter().copied()).run();
    let code = if outcome.stderr().contains("unknown option") { 2 } else { 1 };
    outcome.expect_exit_code(code).expect_absent("started");
    (code, outcome.stderr())
}

#[test]
fn unknown_option_is_answered_with_did_you_mean() {
    for (arguments, part) in [
        (&["--nproc_per-node", "2", "train.py"][..], "did you mean `--nproc-per-node`?"),
        (&["--device", "0", "train.py"], "did you mean `--devices`?"),
        (&["-master_addr", "a", "train.py"], "did you mean `--master-addr`?"),
        (&["--endpoint=a:1", "train.py"], "did you mean `--rdzv-endpoint`?"),
        (&["--nnnodes", "--tea", "train.py"], "`--tea`: did you mean `--tee`?"),
        (&["--max-restart-s=1"], "did you mean `--max-restarts`?"),
    ] {
        let (code, stderr) = run_refused(arguments);
        assert!(
            code == 2 && stderr.contains("\n\nhint: ") && stderr.contains(part),
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn option_of_other_launcher_is_answered_with_our_option() {
    for (arguments, part) in [
        (&["--num_procs", "4", "train.py"][..], "hint: `--nproc-per-node N`"),
        (&["--ngpus", "4", "train.py"], "hint: `--nproc-per-node N`"),
        (&["--gpu_ids", "0,1", "train.py"], "hint: `--devices LIST`"),
        (&["--include", "localhost:0,1", "train.py"], "hint: `--devices LIST`"),
        (&["--machinefile", "hosts", "train.py"], "hint: `--hosts LIST` or `--hostfile FILE`"),
    ] {
        let (code, stderr) = run_refused(arguments);
        assert!(code == 2 && stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[test]
fn unknown_option_under_torchrun_name_has_argparse_message() {
    let outcome = Launch::new(Name::Torchrun).args(["--num_processes", "4", "train.py"]).run();
    outcome
        .expect_exit_code(2)
        .expect_stderr("error: unrecognized arguments: --num_processes")
        .expect_absent("hint");
}

#[test]
fn unknown_variable_warns_once_and_job_runs() {
    let launch = |name| {
        let launch = Launch::standalone(name, 1).env("RANKRUN_DEVCES", "0").env("PET_NPROC", "3");
        launch.env("RANKRUN_DEVICE", "1").env("RANKRUN_TEST_X", "1").shell("echo ran")
    };
    let outcome = launch(Name::Rankrun).run();
    outcome.expect_exit_code(0).expect_stdout("ran");
    for line in [
        "rankrun: `RANKRUN_DEVCES` has no effect: it is none of our `RANKRUN_*` variables; did you mean \
         `RANKRUN_DEVICES`?\n",
        "did you mean `PET_NPROC_PER_NODE`?\n",
        "rankrun: `RANKRUN_DEVICE` is set by the launcher for each worker; did you mean `RANKRUN_DEVICES`?",
    ] {
        assert_eq!(outcome.stderr().matches(line).count(), 1, "{outcome}");
    }
    outcome.expect_absent("RANKRUN_TEST_X");
    let outcome = launch(Name::Torchrun).run();
    outcome.expect_exit_code(0).expect_absent("has no effect").expect_absent("did you mean");
}

#[test]
fn worker_variables_do_not_warn_in_nested_launcher() {
    let launch = Launch::standalone(Name::Rankrun, 1).env("RANKRUN_BACKEND", "tcp");
    let inner = fixture("launcher-under-test").to_string_lossy().into_owned();
    let outcome = launch.args(["--no-python", &inner, "--standalone", "--no-python", "true"]).run();
    outcome.expect_exit_code(0).expect_absent("has no effect");
}

#[test]
fn help_and_version_are_subcommands() {
    for (arguments, text) in [
        (&["help"][..], "Usage: rankrun [OPTIONS] ENTRYPOINT"),
        (&["help", "devices"], "see `rankrun devices --help`"),
        (&["help", "stopping"], "--leftover-grace"),
        (&["help", "topo"], "Usage: rankrun topo"),
        (&["help", "gc"], "Usage: rankrun gc"),
        (&["version"], "rankrun "),
    ] {
        let outcome = Launch::new(Name::Rankrun).args(arguments.iter().copied()).run();
        outcome.expect_exit_code(0).expect_stdout(text);
        assert_eq!(outcome.stderr(), "", "{arguments:?}");
    }
    let scratch = Scratch::new();
    let script = scratch.file("help", "#!/bin/sh\necho a script of that name\n", 0o755);
    let folder = std::path::Path::new(&script).parent().expect("it has a folder");
    Launch::new(Name::Rankrun)
        .cwd(folder)
        .args(["help"])
        .run()
        .expect_exit_code(0)
        .expect_stdout("a script of that name");
}

#[test]
fn missing_entrypoint_gets_suggestion() {
    for (arguments, part) in [
        (&["device"][..], "hint: did you mean `rankrun devices`?"),
        (&["explian", "train.py"], "hint: did you mean `rankrun explain`?"),
        (&["terminate"], "hint: `rankrun stop JOB`"),
        (&["jobs"], "hint: `rankrun ls`"),
        (&["--devices", "none", "2", "train.py"], "hint: `2` stands in the place of the program"),
        (&["train.py --lr 1"], "hint: it has a space in it: leave out the quotes"),
    ] {
        let (_, stderr) = run_refused(arguments);
        assert!(stderr.contains(part) && !stderr.contains("looked in"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn script_without_extension_gets_suggestion() {
    let scratch = Scratch::new();
    let script = scratch.file("ok.py", "", 0o644);
    let folder = std::path::Path::new(&script).parent().expect("it has a folder");
    let outcome = Launch::new(Name::Rankrun).cwd(folder).args(["ok"]).run();
    outcome
        .expect_exit_code(1)
        .expect_stderr("the entrypoint `ok` is not in PATH (")
        .expect_stderr("hint: did you mean `ok.py`?");
    assert!(outcome.stderr().lines().all(|line| line.len() < 100), "{outcome}");
}

#[test]
fn nvidia_smi_options_of_devices_and_topo_are_accepted() {
    if is_torchrun() {
        return;
    }
    let outcome = Launch::new(Name::Rankrun).args(["topo", "-m"]).run();
    outcome.expect_exit_code(0);
    let outcome = Launch::new(Name::Rankrun).args(["devices", "-i", "77"]).run();
    outcome.expect_exit_code(1).expect_stderr("there is no device `77` here").expect_stderr("hint: ");
    Launch::new(Name::Rankrun)
        .args(["devices", "--jsno"])
        .run()
        .expect_exit_code(2)
        .expect_stderr("did you mean `--json`?");
}

#[test]
fn bad_interpreter_error_names_program_as_typed() {
    let scratch = Scratch::new();
    let script = scratch.file("x", "#!/no/such/interpreter\n", 0o755);
    let folder = std::path::Path::new(&script).parent().expect("it has a folder");
    for typed in ["./x", "x"] {
        let outcome = Launch::new(Name::Rankrun).cwd(folder).args([typed]).run();
        outcome.expect_exit_code(1).expect_stderr("`./x`").expect_absent("././x");
    }
}

#[test]
fn warning_does_not_name_source_file() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch =
            Launch::standalone(*name, 1).args(["--start-method", "fork", "--signals-to-handle", "SIGXYZ"]);
        let outcome = launch.env("LOGLEVEL", "DEBUG").shell("exit 3").run();
        outcome.expect_stderr("`--start-method` has no effect").expect_absent(".rs:");
        let form = if *name == Name::Rankrun { "rankrun: `--start" } else { " rankrun:0] `--start" };
        outcome.expect_stderr(form);
    }
}

/// A silent failure under `--tee` and `--log-dir`, in each combination.
#[test]
fn silent_failure_hint_omits_given_options() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let logs = scratch.folder("logs", 0o755);
    for (options, advised) in [
        (vec![], "`--tee 3 --log-dir DIR`"),
        (vec!["--log-dir", &*logs], "`--tee 3`"),
        (vec!["--tee", "3", "--log-dir", "/dev/null"], "`--log-dir`"),
    ] {
        let outcome = Launch::standalone(Name::Rankrun, 2)
            .args(["--local-ranks-filter", "0"])
            .args(options.iter().copied());
        let outcome = outcome.shell("[ $$RANK = 0 ] && exec sleep 1000; exit 3").run();
        let text = outcome.stderr();
        let hint = text.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
        assert!(hint.contains(advised), "{options:?}: {outcome}");
        let option_names = options.iter().filter(|word| word.starts_with("--") && **word != "--log-dir");
        assert!(option_names.into_iter().all(|option| !hint.contains(option)), "{options:?}: {hint}");
    }
}

const LIMIT_IS_ZERO: &str = "the limit on file sizes is 0 (`ulimit -f`)";

/// The launcher under `ulimit -f 0`, its own output in pipes or in files.
fn with_file_size_limit(name: Name, line: &str) -> Launch {
    Launch::standalone(name, 1).under(["sh", "-c", line, "sh"])
}

#[test]
fn file_size_limit_of_zero_is_named() {
    if !is_rankrun() {
        return;
    }
    let launch = || with_file_size_limit(Name::Rankrun, "ulimit -f 0; exec \"$@\"");
    launch()
        .shell("echo ran; exit 3")
        .run()
        .expect_exit_code(3)
        .expect_stdout("ran")
        .expect_stderr(LIMIT_IS_ZERO);
    let scratch = Scratch::new();
    let logs = scratch.folder("logs", 0o755);
    let outcome = launch().args(["--tee", "3", "--log-dir", &logs]).shell("echo ran; exit 3").run();
    outcome
        .expect_exit_code(3)
        .expect_stdout("ran")
        .expect_stderr("; the limit on file sizes (`ulimit -f`) is reached");
    let outcome = launch().args(["--redirects", "3", "--log-dir", &logs]).shell("echo ran").run();
    outcome
        .expect_exit_code(128 + 25)
        .expect_stderr("hint: it wrote to a file beyond the limit on file sizes");
}

#[test]
fn launcher_output_at_file_size_limit_keeps_worker_exit_status() {
    if !is_rankrun() {
        return;
    }
    for (name, code) in [(Name::Rankrun, 3), (Name::Torchrun, 1)] {
        let launch = with_file_size_limit(name, "exec >\"$TMPDIR/out\" 2>&1; ulimit -f 0; exec \"$@\"");
        launch.shell("echo lost; exit 3").run().expect_exit_code(code);
    }
}

#[test]
fn unmounted_proc_is_named() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    let empty = "mount -t tmpfs none /proc && exec \"$@\"";
    let under = |launch: Launch| {
        launch.under(["unshare", "--mount", "--propagation", "private", "sh", "-c", empty, "sh"])
    };
    let outcome = under(Launch::standalone(Name::Rankrun, 1)).shell("echo ran; exit 3").run();
    outcome
        .expect_exit_code(3)
        .expect_stdout("ran")
        .expect_stderr("rankrun: `/proc` is not mounted: what workers leave behind");
    let outcome = under(Launch::standalone(Name::Torchrun, 1)).shell("echo ran").run();
    outcome.expect_exit_code(0).expect_stdout("ran").expect_absent("is not mounted");
    let outcome = under(Launch::new(Name::Rankrun).args(["devices"])).run();
    outcome.expect_exit_code(1).expect_stdout("a probe cannot be started: `/proc` is not mounted");
}

#[test]
fn launcher_options_after_script_are_reported_and_passed_to_it() {
    let scratch = Scratch::new();
    let script = scratch.file("train.py", "import sys; print('args', *sys.argv[1:])\n", 0o644);
    let script = &*script;
    let launch = |arguments: &[&str]| Launch::new(Name::Rankrun).args(arguments.iter().copied()).run();
    let outcome = launch(&[script, "--lr", "1", "--nproc-per-node", "4"]);
    outcome.expect_exit_code(0).expect_stdout("args --lr 1 --nproc-per-node 4");
    let notice = format!(
        "rankrun: `--nproc-per-node 4` stands behind `{script}` and goes to it; if it should reach the launcher"
    );
    outcome.expect_stderr(&notice);
    for arguments in [
        &[script, "--", "--nproc-per-node", "4"][..],
        &["--", script, "--nproc-per-node", "4"],
        &["--nproc-per-node", "1", script, "--nproc-per-node", "4"],
        &[script, "--devices", "2", "--local-rank", "0", "--config", "a", "--tee", "3"],
    ] {
        launch(arguments).expect_exit_code(0).expect_stdout("args --").expect_absent("stand");
    }
}

#[test]
fn options_after_script_under_torchrun_name_are_not_reported() {
    let scratch = Scratch::new();
    let script = scratch.file("train.py", "import sys; print('args', *sys.argv[1:])\n", 0o644);
    let launch = Launch::standalone(Name::Torchrun, 1).args([&*script, "--nproc-per-node", "4"]);
    launch.run().expect_exit_code(0).expect_stdout("args --nproc-per-node 4").expect_absent("stands behind");
}

#[test]
fn device_list_in_several_arguments_is_suggested_as_one() {
    for (arguments, list) in [
        (&["--devices", "0", "2", "train.py"][..], "0,2"),
        (&["--nproc-per-node", "2", "--devices", "0", "2", "3", "train.py"], "0,2,3"),
        (&["--devices", "0,", "1,", "2", "train.py"], "0,1,2"),
    ] {
        let (code, stderr) = run_refused(arguments);
        assert_eq!(code, 1, "{stderr}");
        assert!(
            stderr.contains("error: the entrypoint `")
                && stderr.contains("like more of the list of `--devices`"),
            "{stderr}"
        );
        assert!(
            stderr.contains(&format!("hint: write the list as one word: `--devices {list}`\n")),
            "{stderr}"
        );
    }
}

#[test]
fn quotes_around_all_arguments_get_hint() {
    for arguments in [
        &["train.py --lr 1"][..],
        &["--nproc-per-node 2 train.py"],
        &["--nproc-per-node", "2", "python train.py"],
    ] {
        let (_, stderr) = run_refused(arguments);
        assert!(stderr.contains("hint: it has a space in it: leave out the quotes"), "{stderr}");
    }
}
