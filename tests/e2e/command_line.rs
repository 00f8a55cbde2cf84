//! torchrun's grammar as a user meets it: appendix A of the contract, "Command line".

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use harness::{Launch, Name, only_ours, oracle};

#[test]
fn help_is_on_stdout() {
    for name in Name::both() {
        let outcome = Launch::new(*name).args(["-h"]).run();
        outcome.exits(0).says("--nproc-per-node").says("--max-restarts");
    }
}

#[test]
fn without_a_script_the_usage_is_on_stderr() {
    for name in Name::both() {
        let outcome = Launch::new(*name).args(["--nnodes", "1"]).run();
        match name {
            Name::Rankrun => outcome.exits(2).complains("entrypoint").complains("--help"),
            Name::Torchrun | Name::Reference => {
                outcome.exits(2).complains("usage").complains("training_script")
            }
        };
        assert_eq!(outcome.out(), "");
    }
}

#[test]
fn underscores_spell_the_same_option() {
    for name in Name::both() {
        let launch = Launch::new(*name).args(["--standalone", "--nproc_per_node=2"]);
        let outcome = launch.worker(["print=rank {rank}"]).run();
        outcome.exits(0);
        assert_eq!(outcome.lines_with("rank ").len(), 2, "{outcome}");
    }
}

#[test]
fn mixed_spellings_are_refused() {
    for name in Name::both() {
        let outcome = Launch::new(*name).args(["--nproc_per-node", "2", "--no-python", "true"]).run();
        outcome.exits(2).complains("--nproc_per-node");
    }
}

#[test]
fn a_prefix_of_an_option_is_enough() {
    for name in Name::both() {
        let line = ["--stand", "--nproc-per", "2", "--no-py", "sh", "-c", "echo $RANK"];
        let outcome = Launch::new(*name).args(line).run();
        outcome.exits(0);
        let mut lines = outcome.out_lines();
        lines.sort();
        assert_eq!(lines, ["0", "1"], "{outcome}");
    }
}

/// What `echo` prints for the arguments after the options.
#[track_caller]
fn echoed(name: Name, args: &[&str]) -> String {
    let launch = Launch::standalone(name, 1).args(["--no-python"]).args(args.iter().copied());
    let outcome = launch.run();
    outcome.exits(0);
    outcome.out()
}

#[test]
fn the_scripts_arguments_are_its_own() {
    for name in Name::both() {
        assert_eq!(echoed(*name, &["echo", "-h", "--nnodes", "3", "--", "a"]), "-h --nnodes 3 -- a\n");
    }
}

#[test]
fn one_double_dash_is_swallowed() {
    for name in Name::both() {
        assert_eq!(echoed(*name, &["--", "echo", "a"]), "a\n");
        assert_eq!(echoed(*name, &["echo", "--", "a"]), "a\n");
        assert_eq!(echoed(*name, &["--", "echo", "--", "a"]), "-- a\n");
    }
}

#[test]
fn the_local_rank_is_filled_into_arguments() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--no-python", "echo"]);
        let outcome = launch.args(["${local_rank}", "$local_rank", "${x}", "$$", "a$"]).run();
        outcome.exits(0);
        let mut lines = outcome.out_lines();
        lines.sort();
        let expected = match name {
            Name::Rankrun => ["0 $local_rank ${x} $$ a$", "1 $local_rank ${x} $$ a$"],
            Name::Torchrun | Name::Reference => ["0 0 ${x} $ a$", "1 1 ${x} $ a$"],
        };
        assert_eq!(lines, expected, "{outcome}");
    }
}

/// What a shell, a regular expression or a template of the program needs.
#[test]
fn dollars_in_arguments_stay_under_our_own_name() {
    let text = "echo $$; ^a$ $${rank} $local_rank ${HOME} ${rank";
    let launch =
        Launch::standalone(Name::Rankrun, 1).args(["--no-python", "echo", text, "${rank}/${local_rank}"]);
    let outcome = launch.run();
    outcome.exits(0);
    assert_eq!(outcome.out(), "echo $$; ^a$ $0 $local_rank ${HOME} ${rank 0/0\n");
}

#[test]
fn dollars_in_arguments_are_torchruns_under_its_name() {
    let text = "echo $$ $${rank} $local_rank ${HOME} ${rank} $1 ${local_rank";
    let launch = Launch::standalone(Name::Torchrun, 1).args(["--no-python", "echo", text]);
    let outcome = launch.run();
    outcome.exits(0);
    assert_eq!(outcome.out(), "echo $ ${rank} 0 ${HOME} ${rank} $1 ${local_rank\n");
}

#[test]
fn the_environment_gives_defaults() {
    for name in Name::both() {
        let launch = Launch::new(*name).env("PET_NPROC_PER_NODE", "3").env("PET_STANDALONE", "1");
        let outcome = launch.shell("echo size $WORLD_SIZE").run();
        outcome.exits(0);
        assert_eq!(outcome.out_lines(), ["size 3"; 3], "{outcome}");
    }
}

#[test]
fn the_command_line_wins_over_the_environment() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PET_NPROC_PER_NODE", "3");
        let outcome = launch.shell("echo size $WORLD_SIZE").run();
        outcome.exits(0);
        assert_eq!(outcome.out_lines(), ["size 1"], "{outcome}");
    }
}

#[test]
fn a_bad_default_is_a_usage_error() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PET_MAX_RESTARTS", "x");
        launch.args(["--no-python", "true"]).run().exits(2).complains("x");
    }
}

#[test]
fn auto_without_accelerators_counts_the_permitted_cpus() {
    for name in Name::both() {
        for count in ["auto", "cpu"] {
            let launch = Launch::new(*name).under(["taskset", "--cpu-list", "0"]);
            let launch = launch.args(["--standalone", "--nproc-per-node", count]);
            let outcome = launch.shell("echo size $LOCAL_WORLD_SIZE").run();
            outcome.exits(0);
            assert_eq!(outcome.out_lines(), ["size 1"], "{outcome}");
        }
    }
}

#[test]
fn settings_that_make_no_sense_are_exit_one() {
    let cases: [&[&str]; 14] = [
        &["--nnodes", "2:1"],
        &["--nnodes", "1:2:3"],
        &["--nnodes", "0"],
        &["--nnodes", "x"],
        &["--nproc-per-node", "foo"],
        &["--nproc-per-node", "gpu"],
        &["-t", "4"],
        &["-t", "0:1,"],
        &["-r", "0:9"],
        &["-r", "a:1"],
        &["-r", "0:1,,"],
        &["--local-ranks-filter", "0,,1"],
        &["--rdzv-conf", "join_timeout=soon"],
        &["-m"],
    ];
    for name in Name::both() {
        for case in cases {
            let launch = Launch::standalone(*name, 1).args(case.iter().copied());
            let outcome = launch.worker(["print=started"]).run();
            outcome.exits(1).never_says("started");
        }
    }
}

#[test]
fn python_gets_the_module() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PYTHON_EXEC", "/bin/echo");
        let outcome = launch.args(["-m", "pkg.mod", "a"]).run();
        outcome.exits(0);
        assert_eq!(outcome.out(), "-u -m pkg.mod a\n");
    }
}

#[test]
fn python_gets_the_script_as_it_was_typed() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PYTHON_EXEC", "/bin/echo");
        let here = launch.temporary();
        std::fs::write(here.join("x.py"), "").expect("the folder is ours");
        let outcome = launch.cwd(here).args(["./x.py", "--lr", "0.1"]).run();
        outcome.exits(0);
        assert_eq!(outcome.out(), "-u ./x.py --lr 0.1\n");
    }
}

#[test]
fn the_monitor_interval_is_accepted() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--monitor-interval", "0.5"]);
        launch.shell("true").run().exits(0);
    }
}

#[test]
fn our_own_verb_takes_the_same_options() {
    let launch = Launch::new(Name::Rankrun).args(["run", "--standalone", "--nproc-per-node", "2"]);
    let outcome = launch.worker(["print=rank {rank}"]).run();
    outcome.exits(0);
    assert_eq!(outcome.lines_with("rank ").len(), 2, "{outcome}");
}

#[test]
fn what_is_not_built_yet_is_refused_aloud() {
    if !only_ours() {
        return;
    }
    let cases: [&[&str]; 2] =
        [&["--rdzv-backend", "etcd"], &["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"]];
    for name in Name::both() {
        for case in cases {
            let outcome = Launch::new(*name).args(case.iter().copied()).worker(["print=started"]).run();
            outcome.exits(1).complains("not supported yet").complains("hint:").never_says("started");
        }
    }
}

#[test]
fn a_start_method_is_accepted() {
    for name in Name::both() {
        for (method, is_told) in [("forkserver", true), ("fork", true), ("spawn", false)] {
            let launch = Launch::standalone(*name, 1).args(["--start-method", method]);
            let outcome = launch.shell("true").run();
            outcome.exits(0);
            if !oracle() {
                let told = outcome.err().contains("`--start-method` has no effect");
                assert_eq!(told, is_told, "{method}: {outcome}");
            }
        }
    }
}

/// A byte that is no text, which a program can be given all the same.
#[test]
fn arguments_may_be_any_bytes() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--no-python", "printf", "%s|%s"]);
        let odd = OsString::from_vec(b"a\xff".to_vec());
        let outcome = launch.args([odd.clone(), odd]).run();
        outcome.exits(0);
        assert_eq!(outcome.out_bytes(), b"a\xff|a\xff", "{outcome}");
    }
}

#[test]
fn completion_scripts_are_printed() {
    if only_ours() {
        for (name, first) in [(Name::Rankrun, "rankrun"), (Name::Torchrun, "torchrun")] {
            let outcome = Launch::new(name).args(["--print-completion", "bash"]).run();
            outcome.exits(0).says(&format!("complete -o bashdefault -o default -F _{first} {first}\n"));
            assert_eq!(outcome.err(), "");
            Launch::new(name).args(["--print-completion", "fish"]).run().exits(2).complains("fish");
        }
    }
}
