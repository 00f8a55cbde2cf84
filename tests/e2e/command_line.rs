//! torchrun's grammar as a user meets it: appendix A of the contract, "Command line".

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use harness::{Launch, Name, Scratch, fixture, is_rankrun, is_torchrun};

#[test]
fn help_goes_to_stdout() {
    for name in Name::both() {
        let outcome = Launch::new(*name).args(["-h"]).run();
        outcome.expect_exit_code(0).expect_stdout("--nproc-per-node").expect_stdout("--max-restarts");
    }
}

#[test]
fn missing_script_prints_usage_on_stderr() {
    for name in Name::both() {
        let outcome = Launch::new(*name).args(["--nnodes", "1"]).run();
        match name {
            Name::Rankrun => outcome.expect_exit_code(2).expect_stderr("entrypoint").expect_stderr("--help"),
            Name::Torchrun | Name::Reference => {
                outcome.expect_exit_code(2).expect_stderr("usage").expect_stderr("training_script")
            }
        };
        assert_eq!(outcome.stdout(), "");
    }
}

#[test]
fn option_with_underscores_is_accepted() {
    for name in Name::both() {
        let launch = Launch::new(*name).args(["--standalone", "--nproc_per_node=2"]);
        let outcome = launch.worker(["print=rank {rank}"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.lines_with("rank ").len(), 2, "{outcome}");
    }
}

#[test]
fn option_mixing_dashes_and_underscores_is_refused() {
    for name in Name::both() {
        let outcome = Launch::new(*name).args(["--nproc_per-node", "2", "--no-python", "true"]).run();
        outcome.expect_exit_code(2).expect_stderr("--nproc_per-node");
    }
}

#[test]
fn unique_option_prefix_is_accepted() {
    for name in Name::both() {
        let line = ["--stand", "--nproc-per", "2", "--no-py", "sh", "-c", "echo $RANK"];
        let outcome = Launch::new(*name).args(line).run();
        outcome.expect_exit_code(0);
        let mut lines = outcome.stdout_lines();
        lines.sort();
        assert_eq!(lines, ["0", "1"], "{outcome}");
    }
}

/// What `echo` prints for the arguments after the options.
#[track_caller]
fn echo_output(name: Name, args: &[&str]) -> String {
    let launch = Launch::standalone(name, 1).args(["--no-python"]).args(args.iter().copied());
    let outcome = launch.run();
    outcome.expect_exit_code(0);
    outcome.stdout()
}

#[test]
fn script_arguments_pass_unchanged() {
    for name in Name::both() {
        assert_eq!(echo_output(*name, &["echo", "-h", "--nnodes", "3", "--", "a"]), "-h --nnodes 3 -- a\n");
    }
}

#[test]
fn first_double_dash_is_removed() {
    for name in Name::both() {
        assert_eq!(echo_output(*name, &["--", "echo", "a"]), "a\n");
        assert_eq!(echo_output(*name, &["echo", "--", "a"]), "a\n");
        assert_eq!(echo_output(*name, &["--", "echo", "--", "a"]), "-- a\n");
    }
}

#[test]
fn local_rank_macro_is_substituted_in_arguments() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--no-python", "echo"]);
        let outcome = launch.args(["${local_rank}", "$local_rank", "${x}", "$$", "a$"]).run();
        outcome.expect_exit_code(0);
        let mut lines = outcome.stdout_lines();
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
fn dollars_in_arguments_are_kept_under_rankrun_name() {
    let text = "echo $$; ^a$ $${rank} $local_rank ${HOME} ${rank";
    let launch =
        Launch::standalone(Name::Rankrun, 1).args(["--no-python", "echo", text, "${rank}/${local_rank}"]);
    let outcome = launch.run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.stdout(), "echo $$; ^a$ $0 $local_rank ${HOME} ${rank 0/0\n");
}

#[test]
fn dollars_in_arguments_expand_as_torchrun_under_its_name() {
    let text = "echo $$ $${rank} $local_rank ${HOME} ${rank} $1 ${local_rank";
    let launch = Launch::standalone(Name::Torchrun, 1).args(["--no-python", "echo", text]);
    let outcome = launch.run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.stdout(), "echo $ ${rank} 0 ${HOME} ${rank} $1 ${local_rank\n");
}

#[test]
fn pet_variables_set_option_defaults() {
    for name in Name::both() {
        let launch = Launch::new(*name).env("PET_NPROC_PER_NODE", "3").env("PET_STANDALONE", "1");
        let outcome = launch.shell("echo size $WORLD_SIZE").run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout_lines(), ["size 3"; 3], "{outcome}");
    }
}

#[test]
fn command_line_overrides_pet_variables() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PET_NPROC_PER_NODE", "3");
        let outcome = launch.shell("echo size $WORLD_SIZE").run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout_lines(), ["size 1"], "{outcome}");
    }
}

#[test]
fn invalid_pet_variable_is_usage_error() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PET_MAX_RESTARTS", "x");
        launch.args(["--no-python", "true"]).run().expect_exit_code(2).expect_stderr("x");
    }
}

#[test]
fn nproc_auto_without_accelerators_counts_allowed_cpus() {
    for name in Name::both() {
        for count in ["auto", "cpu"] {
            let launch = Launch::new(*name).under(["taskset", "--cpu-list", "0"]);
            let launch = launch.args(["--standalone", "--nproc-per-node", count]);
            let outcome = launch.shell("echo size $LOCAL_WORLD_SIZE").run();
            outcome.expect_exit_code(0);
            assert_eq!(outcome.stdout_lines(), ["size 1"], "{outcome}");
        }
    }
}

#[test]
fn invalid_option_values_exit_with_one() {
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
            outcome.expect_exit_code(1).expect_absent("started");
        }
    }
}

#[test]
fn module_option_is_passed_to_python() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PYTHON_EXEC", "/bin/echo");
        let outcome = launch.args(["-m", "pkg.mod", "a"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout(), "-u -m pkg.mod a\n");
    }
}

#[test]
fn script_path_is_passed_to_python_unchanged() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("PYTHON_EXEC", "/bin/echo");
        let here = launch.temporary();
        std::fs::write(here.join("x.py"), "").expect("the folder is ours");
        let outcome = launch.cwd(here).args(["./x.py", "--lr", "0.1"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout(), "-u ./x.py --lr 0.1\n");
    }
}

#[test]
fn monitor_interval_is_accepted() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--monitor-interval", "0.5"]);
        launch.shell("true").run().expect_exit_code(0);
    }
}

#[test]
fn run_subcommand_takes_the_same_options() {
    let launch = Launch::new(Name::Rankrun).args(["run", "--standalone", "--nproc-per-node", "2"]);
    let outcome = launch.worker(["print=rank {rank}"]).run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("rank ").len(), 2, "{outcome}");
}

#[test]
fn unsupported_rendezvous_backend_is_refused_with_hint() {
    if !is_rankrun() {
        return;
    }
    let cases: [&[&str]; 2] =
        [&["--rdzv-backend", "etcd"], &["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"]];
    for name in Name::both() {
        for case in cases {
            let outcome = Launch::new(*name).args(case.iter().copied()).worker(["print=started"]).run();
            outcome
                .expect_exit_code(1)
                .expect_stderr("not supported yet")
                .expect_stderr("hint:")
                .expect_absent("started");
        }
    }
}

#[test]
fn start_method_is_accepted_with_warning() {
    for name in Name::both() {
        for (method, is_warned) in [("forkserver", true), ("fork", true), ("spawn", false)] {
            let launch = Launch::standalone(*name, 1).args(["--start-method", method]);
            let outcome = launch.shell("true").run();
            outcome.expect_exit_code(0);
            if !is_torchrun() {
                let has_warning = outcome.stderr().contains("`--start-method` has no effect");
                assert_eq!(has_warning, is_warned, "{method}: {outcome}");
            }
        }
    }
}

/// A byte that is not text; a program can get it as an argument.
#[test]
fn arguments_not_utf8_pass_unchanged() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--no-python", "printf", "%s|%s"]);
        let odd = OsString::from_vec(b"a\xff".to_vec());
        let outcome = launch.args([odd.clone(), odd]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout_bytes(), b"a\xff|a\xff", "{outcome}");
    }
}

#[test]
fn print_completion_prints_bash_script() {
    if is_rankrun() {
        for (name, line) in [
            (Name::Rankrun, "-F _clap_complete_rankrun rankrun\n"),
            (Name::Torchrun, "complete -F _torchrun -o nosort -o bashdefault -o default torchrun\n"),
        ] {
            let outcome = Launch::new(name).args(["--print-completion", "bash"]).run();
            outcome.expect_exit_code(0).expect_stdout(line);
            assert_eq!(outcome.stderr(), "");
            Launch::new(name)
                .args(["--print-completion", "fish"])
                .run()
                .expect_exit_code(2)
                .expect_stderr("fish");
        }
    }
}

/// bash reads the script, and asks the launcher by it.
#[test]
#[expect(clippy::disallowed_methods, reason = "the shell of a user is started")]
fn bash_completion_asks_launcher_for_words() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    std::os::unix::fs::symlink(fixture("launcher-under-test"), scratch.at("rankrun")).expect("a new link");
    let session = r#"
        PATH=$1:$PATH
        eval "$(rankrun completions bash)"
        offer() {
            COMP_WORDS=(rankrun "$@") COMP_CWORD=$# COMPREPLY=() COMP_TYPE=9
            _clap_complete_rankrun rankrun "${@: -1}" "" 2>/dev/null
            printf '%s;' "${COMPREPLY[*]}"
        }
        offer sto; offer --tee = 3 --virt; offer train.py --n; offer --device-order t
    "#;
    let output = Command::new("bash").args(["--norc", "-c", session, "bash"]).arg(scratch.at("")).output();
    let output = output.expect("there is a bash");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(stdout, "stop;--virtual-local-rank;;topology;", "{output:?}");
}

#[test]
fn man_prints_page_that_man_can_read() {
    if is_rankrun() {
        let outcome = Launch::new(Name::Rankrun).args(["man"]).run();
        outcome.expect_exit_code(0).expect_stdout(".TH RANKRUN 1").expect_stdout("RANKRUN DEVICES");
    }
}
