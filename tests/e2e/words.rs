//! What is said to a word that nothing here knows: misspelt, or another launcher's.

use harness::{Launch, Name, Scratch, fixture, namespaces, only_ours, oracle};

/// Our answer to a command line that cannot be read: status, and what is told.
fn refused(words: &[&str]) -> (i32, String) {
    let scratch = Scratch::new();
    let folder = scratch.folder("empty", 0o755);
    let outcome = Launch::new(Name::Rankrun).cwd(folder).args(words.iter().copied()).run();
    let code = if outcome.err().contains("unknown option") { 2 } else { 1 };
    outcome.exits(code).never_says("started");
    (code, outcome.err())
}

#[test]
fn unknown_option_is_answered_with_did_you_mean() {
    for (words, part) in [
        (&["--nproc_per-node", "2", "train.py"][..], "did you mean `--nproc-per-node`?"),
        (&["--device", "0", "train.py"], "did you mean `--devices`?"),
        (&["-master_addr", "a", "train.py"], "did you mean `--master-addr`?"),
        (&["--endpoint=a:1", "train.py"], "did you mean `--rdzv-endpoint`?"),
        (&["--nnnodes", "--tea", "train.py"], "`--tea`: did you mean `--tee`?"),
        (&["--max-restart-s=1"], "did you mean `--max-restarts`?"),
    ] {
        let (code, said) = refused(words);
        assert!(code == 2 && said.contains("\n\nhint: ") && said.contains(part), "{words:?}: {said}");
    }
}

#[test]
fn other_launchers_option_is_answered_with_our_word() {
    for (words, part) in [
        (&["--num_processes", "4", "train.py"][..], "hint: `--nproc-per-node N`"),
        (&["--num_gpus", "4", "train.py"], "hint: `--nproc-per-node N`"),
        (&["-np", "4", "train.py"], "hint: `--nproc-per-node N`"),
        (&["--gpu_ids", "0,1", "train.py"], "hint: `--devices LIST`"),
        (&["--include", "localhost:0,1", "train.py"], "hint: `--devices LIST`"),
        (&["--hostfile", "hosts", "train.py"], "--rdzv-endpoint HOST:PORT`"),
    ] {
        let (code, said) = refused(words);
        assert!(code == 2 && said.contains(part), "{words:?}: {said}");
    }
}

#[test]
fn under_torchruns_name_the_words_stay_argparses() {
    let outcome = Launch::new(Name::Torchrun).args(["--num_processes", "4", "train.py"]).run();
    outcome.exits(2).complains("error: unrecognized arguments: --num_processes").never_says("hint");
}

#[test]
fn unknown_variable_is_warned_of_once_and_the_job_runs() {
    let launch = |name| {
        let launch = Launch::standalone(name, 1).env("RANKRUN_DEVCES", "0").env("PET_NPROC", "3");
        launch.env("RANKRUN_DEVICE", "1").env("RANKRUN_TEST_X", "1").shell("echo ran")
    };
    let outcome = launch(Name::Rankrun).run();
    outcome.exits(0).says("ran");
    for line in [
        "rankrun: `RANKRUN_DEVCES` has no effect: it is none of our `RANKRUN_*` variables; did you mean \
         `RANKRUN_DEVICES`?\n",
        "did you mean `PET_NPROC_PER_NODE`?\n",
        "rankrun: `RANKRUN_DEVICE` is set by the launcher for each worker; did you mean `RANKRUN_DEVICES`?",
    ] {
        assert_eq!(outcome.err().matches(line).count(), 1, "{outcome}");
    }
    outcome.never_says("RANKRUN_TEST_X");
    let outcome = launch(Name::Torchrun).run();
    outcome.exits(0).never_says("has no effect").never_says("did you mean");
}

#[test]
fn variables_of_a_worker_warn_no_launcher_inside_it() {
    let launch = Launch::standalone(Name::Rankrun, 1).env("RANKRUN_BACKEND", "tcp");
    let inner = fixture("launcher-under-test").to_string_lossy().into_owned();
    let outcome = launch.args(["--no-python", &inner, "--standalone", "--no-python", "true"]).run();
    outcome.exits(0).never_says("has no effect");
}

#[test]
fn help_and_version_are_words_too() {
    for (words, text) in [
        (&["help"][..], "Usage: rankrun [OPTIONS] ENTRYPOINT"),
        (&["help", "devices"], "usage: rankrun devices"),
        (&["help", "gc"], "usage: rankrun gc"),
        (&["version"], "rankrun "),
    ] {
        let outcome = Launch::new(Name::Rankrun).args(words.iter().copied()).run();
        outcome.exits(0).says(text);
        assert_eq!(outcome.err(), "", "{words:?}");
    }
    let scratch = Scratch::new();
    let script = scratch.file("help", "#!/bin/sh\necho a script of that name\n", 0o755);
    let folder = std::path::Path::new(&script).parent().expect("it has a folder");
    Launch::new(Name::Rankrun).cwd(folder).args(["help"]).run().exits(0).says("a script of that name");
}

#[test]
fn entrypoint_that_is_missing_is_answered_with_what_was_meant() {
    for (words, part) in [
        (&["device"][..], "hint: did you mean `rankrun devices`?"),
        (&["explian", "train.py"], "hint: did you mean `rankrun explain`?"),
        (&["stop"], "hint: Ctrl-C"),
        (&["--devices", "none", "2", "train.py"], "hint: `2` stands in the place of the program"),
        (&["train.py --lr 1"], "hint: it has a space in it: leave out the quotes"),
    ] {
        let (_, said) = refused(words);
        assert!(said.contains(part) && !said.contains("looked in"), "{words:?}: {said}");
    }
}

#[test]
fn script_named_without_its_ending_is_offered() {
    let scratch = Scratch::new();
    let script = scratch.file("ok.py", "", 0o644);
    let folder = std::path::Path::new(&script).parent().expect("it has a folder");
    let outcome = Launch::new(Name::Rankrun).cwd(folder).args(["ok"]).run();
    outcome
        .exits(1)
        .complains("the entrypoint `ok` is not in PATH (")
        .complains("hint: did you mean `ok.py`?");
    assert!(outcome.err().lines().all(|line| line.len() < 100), "{outcome}");
}

#[test]
fn nvidia_smis_words_for_devices_and_topo_are_taken() {
    if oracle() {
        return;
    }
    let outcome = Launch::new(Name::Rankrun).args(["topo", "-m"]).run();
    outcome.exits(0);
    let outcome = Launch::new(Name::Rankrun).args(["devices", "-i", "77"]).run();
    outcome.exits(1).complains("there is no device `77` here").complains("hint: ");
    Launch::new(Name::Rankrun).args(["devices", "--jsno"]).run().exits(2).complains("did you mean `--json`?");
}

#[test]
fn bad_interpreter_names_the_program_as_it_was_typed() {
    let scratch = Scratch::new();
    let script = scratch.file("x", "#!/no/such/interpreter\n", 0o755);
    let folder = std::path::Path::new(&script).parent().expect("it has a folder");
    for typed in ["./x", "x"] {
        let outcome = Launch::new(Name::Rankrun).cwd(folder).args([typed]).run();
        outcome.exits(1).complains("`./x`").never_says("././x");
    }
}

#[test]
fn warning_names_no_file_of_our_own_program() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let launch =
            Launch::standalone(*name, 1).args(["--start-method", "fork", "--signals-to-handle", "SIGXYZ"]);
        let outcome = launch.env("LOGLEVEL", "DEBUG").shell("exit 3").run();
        outcome.complains("`--start-method` has no effect").never_says(".rs:");
        let form = if *name == Name::Rankrun { "rankrun: `--start" } else { " rankrun:0] `--start" };
        outcome.complains(form);
    }
}

/// A silent failure under `--tee` and `--log-dir`, in each combination.
#[test]
fn hint_of_a_silent_failure_advises_no_option_that_is_given() {
    if !only_ours() {
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
        let text = outcome.err();
        let hint = text.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
        assert!(hint.contains(advised), "{options:?}: {outcome}");
        let given = options.iter().filter(|word| word.starts_with("--") && **word != "--log-dir");
        assert!(given.into_iter().all(|option| !hint.contains(option)), "{options:?}: {hint}");
    }
}

const LIMIT_IS_ZERO: &str = "the limit on file sizes is 0 (`ulimit -f`)";

/// The launcher under `ulimit -f 0`, its own output in pipes or in files.
fn without_files(name: Name, line: &str) -> Launch {
    Launch::standalone(name, 1).under(["sh", "-c", line, "sh"])
}

#[test]
fn file_size_limit_of_0_has_its_sentence() {
    if !only_ours() {
        return;
    }
    let launch = || without_files(Name::Rankrun, "ulimit -f 0; exec \"$@\"");
    launch().shell("echo ran; exit 3").run().exits(3).says("ran").complains(LIMIT_IS_ZERO);
    let scratch = Scratch::new();
    let logs = scratch.folder("logs", 0o755);
    let outcome = launch().args(["--tee", "3", "--log-dir", &logs]).shell("echo ran; exit 3").run();
    outcome.exits(3).says("ran").complains("; the limit on file sizes (`ulimit -f`) is reached");
    let outcome = launch().args(["--redirects", "3", "--log-dir", &logs]).shell("echo ran").run();
    outcome.exits(128 + 25).complains("hint: it wrote to a file beyond the limit on file sizes");
}

#[test]
fn launcher_whose_own_output_may_not_grow_keeps_the_workers_exit_status() {
    if !only_ours() {
        return;
    }
    for (name, code) in [(Name::Rankrun, 3), (Name::Torchrun, 1)] {
        let launch = without_files(name, "exec >\"$TMPDIR/out\" 2>&1; ulimit -f 0; exec \"$@\"");
        launch.shell("echo lost; exit 3").run().exits(code);
    }
}

#[test]
fn proc_that_is_not_mounted_has_its_sentence() {
    if !namespaces() || !only_ours() {
        return;
    }
    let empty = "mount -t tmpfs none /proc && exec \"$@\"";
    let under = |launch: Launch| {
        launch.under(["unshare", "--mount", "--propagation", "private", "sh", "-c", empty, "sh"])
    };
    let outcome = under(Launch::standalone(Name::Rankrun, 1)).shell("echo ran; exit 3").run();
    outcome.exits(3).says("ran").complains("rankrun: `/proc` is not mounted: what workers leave behind");
    let outcome = under(Launch::standalone(Name::Torchrun, 1)).shell("echo ran").run();
    outcome.exits(0).says("ran").never_says("is not mounted");
    let outcome = under(Launch::new(Name::Rankrun).args(["devices"])).run();
    outcome.exits(1).says("a probe cannot be started: `/proc` is not mounted");
}

#[test]
fn launcher_options_behind_the_script_are_named_and_go_to_it() {
    let scratch = Scratch::new();
    let script = scratch.file("train.py", "import sys; print('args', *sys.argv[1:])\n", 0o644);
    let script = &*script;
    let launch = |words: &[&str]| Launch::new(Name::Rankrun).args(words.iter().copied()).run();
    let outcome = launch(&[script, "--lr", "1", "--nproc-per-node", "4"]);
    outcome.exits(0).says("args --lr 1 --nproc-per-node 4");
    let notice = format!(
        "rankrun: `--nproc-per-node 4` stands behind `{script}` and goes to it; if it should reach the launcher"
    );
    outcome.complains(&notice);
    for words in [
        &[script, "--", "--nproc-per-node", "4"][..],
        &["--", script, "--nproc-per-node", "4"],
        &["--nproc-per-node", "1", script, "--nproc-per-node", "4"],
        &[script, "--devices", "2", "--local-rank", "0", "--config", "a", "--tee", "3"],
    ] {
        launch(words).exits(0).says("args --").never_says("stand");
    }
}

#[test]
fn launcher_options_behind_the_script_are_no_matter_for_torchrun() {
    let scratch = Scratch::new();
    let script = scratch.file("train.py", "import sys; print('args', *sys.argv[1:])\n", 0o644);
    let launch = Launch::standalone(Name::Torchrun, 1).args([&*script, "--nproc-per-node", "4"]);
    launch.run().exits(0).says("args --nproc-per-node 4").never_says("stands behind");
}

#[test]
fn list_of_devices_in_several_words_is_put_together() {
    for (words, list) in [
        (&["--devices", "0", "2", "train.py"][..], "0,2"),
        (&["--nproc-per-node", "2", "--devices", "0", "2", "3", "train.py"], "0,2,3"),
        (&["--devices", "0,", "1,", "2", "train.py"], "0,1,2"),
    ] {
        let (code, said) = refused(words);
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains("error: the entrypoint `") && said.contains("like more of the list of `--devices`"),
            "{said}"
        );
        assert!(said.contains(&format!("hint: write the list as one word: `--devices {list}`\n")), "{said}");
    }
}

#[test]
fn quotes_around_all_arguments_are_named() {
    for words in [
        &["train.py --lr 1"][..],
        &["--nproc-per-node 2 train.py"],
        &["--nproc-per-node", "2", "python train.py"],
    ] {
        let (_, said) = refused(words);
        assert!(said.contains("hint: it has a space in it: leave out the quotes"), "{said}");
    }
}
