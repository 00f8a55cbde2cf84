//! The whole room, from argv to `Launch`, in a made-up world.

use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use rankrun_contract::rank::{LocalRank, RestartCount, RunId};

use super::*;
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::spec::{Entrypoint, LogDir, RendezvousSpec, StdinPolicy, StreamMap, Streams};

mod options;

const UUID: &str = "00000000-0000-0000-0000-000000000007";

fn world() -> FakeWorld {
    FakeWorld::default().file("/job/x.py", b"impo").program("/usr/bin/python3").program("/usr/bin/env")
}

fn interpret_in(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Result<Command, CliError> {
    let mut environment = environment.to_vec();
    environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
    let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    interpret(&argv, &world.facts(&environment))
}

fn launch_in(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Launch {
    match interpret_in(world, line, environment) {
        Ok(Command::Launch(launch)) => *launch,
        other => panic!("`{line}`: {other:?}"),
    }
}

fn launch(line: &str, environment: &[(&str, &str)]) -> Launch {
    launch_in(world(), line, environment)
}

/// Exit code and message.
fn refusal(line: &str, environment: &[(&str, &str)]) -> (u8, String) {
    match interpret_in(world(), line, environment) {
        Err(error) => (error.exit_code(), error.to_string()),
        Ok(answer) => panic!("`{line}` was accepted: {answer:?}"),
    }
}

fn said(launch: &Launch) -> Vec<String> {
    launch.notices.iter().map(ToString::to_string).collect()
}

#[test]
fn plain_script_is_standalone_launch() {
    let launch = launch("rankrun x.py --epochs 3", &[]);
    assert_eq!(launch.notices, []);
    assert_eq!(launch.verbosity, Verbosity::Warn);
    let spec = launch.spec;
    assert_eq!(spec.cli_flavor, CliFlavor::Rankrun);
    let python = PathBuf::from("/usr/bin/python3");
    assert_eq!(spec.entrypoint, Entrypoint::Script { python, script: "x.py".into() });
    assert_eq!(spec.args, ["--epochs", "3"]);
    assert_eq!(spec.workers.get(), 1);
    assert_eq!(spec.role, "default");
    let run_id = RunId(UUID.to_owned());
    assert_eq!(spec.rendezvous, RendezvousSpec::Standalone { run_id, local_addr: None, worker_store: false });
    assert_eq!(spec.max_restarts, RestartCount(0));
    assert_eq!(spec.stop.grace, Duration::from_secs(30));
    assert_eq!(spec.logs.dir, LogDir::ErrorFiles(PathBuf::from("/tmp")));
    assert_eq!(spec.logs.redirects, StreamMap::All(Streams::default()));
    assert_eq!(spec.stdin, StdinPolicy::All);
    assert!(spec.devices.omp_threads.is_none());
}

#[test]
fn program_name_selects_cli_flavor() {
    for (name, is) in [
        ("rankrun", CliFlavor::Rankrun),
        ("/a/b/torchrun", CliFlavor::Torchrun),
        ("./torchrun", CliFlavor::Torchrun),
        ("torchrun2", CliFlavor::Rankrun),
        ("/a/torchrun/rankrun", CliFlavor::Rankrun),
        ("", CliFlavor::Rankrun),
    ] {
        assert_eq!(cli_flavor(OsStr::new(name)), is, "`{name}`");
    }
    assert_eq!(interpret(&[], &world().facts(&[])).unwrap_err().exit_code(), 2);
}

#[test]
fn subcommand_is_recognized_only_as_first_word() {
    assert_eq!(launch("rankrun run --stdin none x.py run", &[]).spec.args, ["run"]);
    let here = || world().script("/job/run");
    let program = |path: &str, name: &str| Entrypoint::Program { path: path.into(), name: name.into() };
    assert_eq!(launch_in(here(), "rankrun ./run x.py", &[]).spec.entrypoint, program("./run", "./run"));
    assert_eq!(launch_in(here(), "rankrun run run", &[]).spec.entrypoint, program("./run", "run"));
    assert_eq!(launch_in(here(), "rankrun -- run", &[]).spec.entrypoint, program("./run", "run"));
    assert_eq!(launch_in(here(), "rankrun --standalone run", &[]).spec.entrypoint, program("./run", "run"));
    let error = interpret_in(world(), "rankrun --standalone run x.py", &[]).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.hint().unwrap().contains("must stand first"));
    let hint = |line: &str| interpret_in(world(), line, &[]).unwrap_err().hint().unwrap();
    assert!(hint("rankrun --nproc-per-node 1 devices").contains("`devices` must stand first"));
    assert!(hint("torchrun explain x.py").contains("write `rankrun explain torchrun`"));
    assert!(hint("torchrun status").contains("write `rankrun status`"));
    assert_eq!(refusal("rankrun run", &[]), (2, "there is no entrypoint to run".to_owned()));
    let (code, message) = refusal("torchrun run x.py", &[]);
    assert_eq!((code, message.as_str()), (1, "the entrypoint `run` does not exist (working folder `/job`)"));
}

#[test]
fn help_and_version_are_printed() {
    let printed = |line: &str| match interpret_in(world(), line, &[]) {
        Ok(Command::Print(text)) => text,
        other => panic!("`{line}`: {other:?}"),
    };
    assert!(printed("rankrun -h").contains("Usage: rankrun [OPTIONS] ENTRYPOINT"));
    assert_eq!(printed("rankrun run --help"), printed("rankrun --role a --help"));
    assert_eq!(printed("rankrun run -h"), printed("rankrun --role a -vh"));
    assert!(printed("rankrun -h").len() < printed("rankrun --help").len() / 2);
    assert_eq!(printed("torchrun -h"), printed("torchrun --help"));
    assert!(printed("rankrun help restarts").contains("--restart-rules"));
    assert!(printed("torchrun --help").starts_with("usage: torchrun [-h]"));
    assert!(!printed("torchrun --help").contains("--stdin <"));
    assert_eq!(printed("rankrun --version"), format!("rankrun {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(refusal("torchrun --version x.py", &[]).0, 2);
    assert!(printed("rankrun run --print-completion bash").contains("-F _clap_complete_rankrun rankrun"));
    assert!(printed("torchrun --print-completion=zsh").starts_with("#compdef torchrun\n"));
    assert_eq!(refusal("torchrun --print-completion fish", &[]).0, 2);
}

#[test]
fn errors_have_format_of_cli_flavor() {
    let render = |line: &str| interpret_in(world(), line, &[]).unwrap_err().render();
    assert_eq!(
        render("rankrun --nproc_per-node 2 x.py"),
        "error: unknown option `--nproc_per-node`\n\nhint: did you mean `--nproc-per-node`?\n"
    );
    let text = render("torchrun --unknown x.py");
    assert!(text.starts_with("usage: torchrun [-h]"));
    assert!(text.ends_with("training_script ...\ntorchrun: error: unrecognized arguments: --unknown\n"));
    let text = interpret_in(world(), "torchrun x.py", &[("PET_MAX_RESTARTS", "a")]).unwrap_err().render();
    assert!(text.ends_with(
        "`PET_MAX_RESTARTS` is `a`, which is not a whole number\n\
         torchrun: error: argument --max-restarts/--max_restarts: invalid int value: 'a'\n"
    ));
    assert_eq!(
        render("torchrun --no-python -m x"),
        "error: `--no-python` and `--module` exclude each other\n\nhint: drop one of them\n"
    );
    let text = interpret_in(world(), "rankrun -m x", &[("PET_NO_PYTHON", "1")]).unwrap_err().render();
    assert!(text.starts_with("error: `PET_NO_PYTHON` and `--module` exclude each other\n"), "{text}");
    assert_eq!(
        render("rankrun --stdim all x.py"),
        "error: unknown option `--stdim`\n\nhint: did you mean `--stdin`?\n"
    );
}

#[test]
fn entrypoint_kind_depends_on_file() {
    let world = || {
        world()
            .program("/job/train")
            .script("/job/tool")
            .script("/job/exec.py")
            .file("/job/notes", b"text")
            .file("/job/elf", b"\x7fELF")
            .folder("/job/pkg")
            .file("/job/pkg/__main__.py", b"impo")
            .program("/usr/bin/hostname")
            .script("/usr/bin/lost.py")
    };
    let python = || PathBuf::from("/usr/bin/python3");
    let script = |script: &str| Entrypoint::Script { python: python(), script: script.into() };
    let program = |path: &str, name: &str| Entrypoint::Program { path: path.into(), name: name.into() };
    for (line, entrypoint) in [
        ("rankrun train", program("./train", "train")),
        ("rankrun /job/train", program("/job/train", "/job/train")),
        ("rankrun tool", program("./tool", "tool")),
        ("rankrun exec.py", script("exec.py")),
        ("rankrun notes", script("notes")),
        ("rankrun pkg", script("pkg")),
        ("rankrun -", script("-")),
        ("rankrun x_${local_rank}.py", script("x_${local_rank}.py")),
        ("rankrun hostname", program("/usr/bin/hostname", "hostname")),
        ("rankrun -m a.b", Entrypoint::Module { python: python(), module: "a.b".into() }),
        ("rankrun --no-python hostname", program("/usr/bin/hostname", "hostname")),
        ("rankrun --no-python ./tool", program("./tool", "./tool")),
        ("torchrun train", script("train")),
        ("torchrun tool", script("tool")),
        ("torchrun --no-python hostname", program("/usr/bin/hostname", "hostname")),
    ] {
        assert_eq!(launch_in(world(), line, &[]).spec.entrypoint, entrypoint, "`{line}`");
    }
    for (line, message) in [
        ("rankrun y.py", "`y.py` does not exist (working folder `/job`)"),
        ("rankrun lost.py", "`lost.py` does not exist (working folder `/job`)"),
        ("rankrun nothing", "`nothing` is not in PATH (1 folder)"),
        ("rankrun ./nothing", "`./nothing` does not exist (working folder `/job`)"),
        ("rankrun elf", "`elf` has no run permission (`elf`)"),
        ("rankrun /tmp", "`/tmp` is a folder"),
        ("torchrun hostname", "`hostname` does not exist (working folder `/job`)"),
        ("torchrun --no-python train", "`train` is not in PATH (1 folder)"),
        ("torchrun --no-python ./x.py", "`./x.py` has no run permission (`./x.py`)"),
        ("torchrun --no-python ./y", "`./y` does not exist (working folder `/job`)"),
        ("torchrun --no-python /tmp", "`/tmp` is a folder"),
    ] {
        let error = interpret_in(world(), line, &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("the entrypoint {message}"), "`{line}`");
        assert_eq!(error.exit_code(), 1);
        assert!(error.hint().is_some(), "`{line}`");
    }
    let unreadable = world().unreadable("/job/secret.py");
    let error = interpret_in(unreadable, "rankrun secret.py", &[]).unwrap_err();
    assert_eq!(error.to_string(), "the entrypoint `secret.py` cannot be read: permission denied");
    assert_eq!(refusal("rankrun  ", &[]).1, "the entrypoint `` does not exist (working folder `/job`)");
}

#[test]
fn stdin_policy_follows_option_and_variable() {
    let stdin = |line: &str, environment: &[(&str, &str)]| launch(line, environment).spec.stdin;
    assert_eq!(stdin("rankrun --stdin none x.py", &[]), StdinPolicy::None);
    assert_eq!(stdin("rankrun --stdin none --stdin all x.py", &[]), StdinPolicy::All);
    assert_eq!(stdin("rankrun --nproc-per-node 2 --stdin 1 x.py", &[]), StdinPolicy::Only(LocalRank(1)));
    assert_eq!(stdin("torchrun x.py", &[("RANKRUN_STDIN", "0")]), StdinPolicy::Only(LocalRank(0)));
    assert_eq!(stdin("rankrun --stdin all x.py", &[("RANKRUN_STDIN", "none")]), StdinPolicy::All);
    assert_eq!(stdin("rankrun x.py", &[("RANKRUN_STDIN", "")]), StdinPolicy::All);
    let message = "`--stdin` is `2`, but the local ranks are 0 to 1".to_owned();
    assert_eq!(refusal("rankrun --nproc-per-node 2 --stdin 2 x.py", &[]), (1, message));
    let message = "`RANKRUN_STDIN` is `first`, which is not a local rank, `all` or `none`".to_owned();
    for line in ["rankrun x.py", "torchrun x.py"] {
        assert_eq!(refusal(line, &[("RANKRUN_STDIN", "first")]), (2, message.clone()));
    }
}

#[test]
fn verbosity_follows_flag_or_loglevel() {
    for (line, environment, verbosity) in [
        ("rankrun -v x.py", vec![("LOGLEVEL", "error")], Verbosity::Info),
        ("rankrun -vv x.py", vec![], Verbosity::Debug),
        ("rankrun -v --verbose -v x.py", vec![], Verbosity::Debug),
        ("torchrun x.py", vec![("LOGLEVEL", "debug")], Verbosity::Debug),
        ("torchrun x.py", vec![("LOGLEVEL", "Info")], Verbosity::Info),
        ("torchrun x.py", vec![("LOGLEVEL", "CRITICAL")], Verbosity::Error),
        ("torchrun x.py", vec![("LOGLEVEL", "")], Verbosity::Warn),
        ("torchrun x.py", vec![("LOGLEVEL", "info"), ("RANKRUN_VERBOSE", "2")], Verbosity::Debug),
        ("rankrun -v x.py", vec![("RANKRUN_VERBOSE", "2")], Verbosity::Info),
    ] {
        assert_eq!(launch(line, &environment).verbosity, verbosity, "`{line}` {environment:?}");
    }
    let odd = launch("torchrun x.py", &[("LOGLEVEL", "chatty")]);
    assert_eq!(odd.verbosity, Verbosity::Warn);
    assert_eq!(odd.notices, [Notice::UnknownLogLevel { value: "chatty".to_owned() }]);
    assert_eq!(refusal("torchrun x.py", &[("RANKRUN_VERBOSE", "yes")]).0, 1);
}

#[test]
fn log_settings_follow_options_and_variables() {
    let logs = |line: &str, environment: &[(&str, &str)]| launch(line, environment).spec.logs;
    let at = |path: &str| LogDir::At(PathBuf::from(path));
    assert_eq!(logs("rankrun --log-dir logs x.py", &[]).dir, at("/job/logs"));
    assert_eq!(logs("torchrun --log-dir logs x.py", &[]).dir, at("logs"));
    assert_eq!(logs("torchrun x.py", &[("PET_LOG_DIR", "/logs")]).dir, at("/logs"));
    assert_eq!(logs("rankrun --log-dir /dev/null x.py", &[]).dir, LogDir::Off);
    let temporary = |path: &str| LogDir::Temporary(PathBuf::from(path));
    assert_eq!(logs("torchrun --log-dir= x.py", &[]).dir, temporary("/tmp"));
    assert_eq!(logs("torchrun x.py", &[("TMPDIR", "/gone")]).dir, temporary("/tmp"));
    assert_eq!(logs("torchrun x.py", &[("TMPDIR", "/job"), ("TMP", "/tmp")]).dir, temporary("/job"));
    assert_eq!(logs("torchrun x.py", &[("TMPDIR", ""), ("TEMP", "/job")]).dir, temporary("/job"));
    let in_memory = |line: &str, environment: &[(&str, &str)]| {
        launch_in(world().folder("/dev/shm"), line, environment).spec.logs.dir
    };
    let error_files = |path: &str| LogDir::ErrorFiles(PathBuf::from(path));
    assert_eq!(in_memory("rankrun x.py", &[]), error_files("/dev/shm"));
    assert_eq!(in_memory("rankrun x.py", &[("TMPDIR", "/job")]), error_files("/job"));
    for line in ["rankrun -r 3 x.py", "rankrun -t 0:1 x.py", "torchrun x.py"] {
        assert_eq!(in_memory(line, &[]), temporary("/tmp"), "{line}");
    }
    let both = Streams { stdout: true, stderr: true };
    assert_eq!(logs("torchrun -r 3 -t0:3 x.py", &[]).redirects, StreamMap::All(both));
    assert_eq!(logs("torchrun -r 3 -t0:3 x.py", &[]).tee, StreamMap::Ranks(vec![(LocalRank(0), both)]));
    assert_eq!(logs("rankrun -t 12:3 x.py", &[]).tee, StreamMap::Ranks(vec![(LocalRank(12), both)]));
    for (line, message) in [
        ("torchrun -t 4 x.py", "`--tee` is `4`, which is not 0, 1, 2 or 3"),
        ("torchrun -t 0:1, x.py", "`--tee` is `0:1,`, which is not"),
        ("torchrun -t 10:1 x.py", "`--tee` is `10:1`, which is not"),
        ("torchrun --redirects= x.py", "`--redirects` is empty, which is not"),
    ] {
        let (code, text) = refusal(line, &[]);
        assert!(code == 1 && text.starts_with(message), "`{line}`: {code} {text}");
    }
    let off = launch("torchrun --log-dir /dev/null --tee 1 -r 0 --local-ranks-filter 0 x.py", &[]);
    assert_eq!(
        said(&off),
        [
            "`--tee` has no effect: `--log-dir` is `/dev/null`, which has no files",
            "`--local-ranks-filter` has no effect: `--log-dir` is `/dev/null`, which has no files"
        ]
    );
    assert_eq!(off.spec.logs.console, None);
    let ours = launch("rankrun --log-dir /dev/null --tee 1 --local-ranks-filter 0 x.py", &[]);
    assert_eq!((said(&ours).len(), ours.spec.logs.console), (0, Some([LocalRank(0)].into())));
}

fn any_word() -> impl Strategy<Value = String> {
    let names: Vec<String> =
        option::options(CliFlavor::Rankrun).flat_map(option::LaunchOption::spellings).collect();
    prop_oneof![
        (prop::sample::select(names.clone()), "=[a-z0-9:,.-]{0,4}").prop_map(|(name, tail)| name + &tail),
        prop::sample::select(names),
        "[-=.a-z0-9_:]{0,6}",
        prop::sample::select(vec!["x.py", "run", "1", "2", "-m", "-r3", "--", "-"]).prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn any_command_line_and_environment_do_not_panic(
        line in prop::collection::vec(any_word(), 0..7),
        values in prop::collection::vec(".{0,5}", 3),
        at in 0usize..30,
    ) {
        let rows: Vec<_> = option::options(CliFlavor::Rankrun).filter_map(option::LaunchOption::variable).collect();
        let environment: Vec<(&str, &str)> =
            values.iter().enumerate().map(|(n, value)| (rows[(at + n) % rows.len()].as_str(), value.as_str())).collect();
        for name in ["rankrun", "torchrun"] {
            let mut argv = vec![OsString::from(name)];
            argv.extend(line.iter().map(OsString::from));
            let answer = interpret(&argv, &world().facts(&environment));
            let _ = answer.map_err(|error| error.render());
        }
    }

    #[test]
    fn program_arguments_are_verbatim(args in prop::collection::vec(any_word(), 0..6)) {
        for name in ["rankrun", "torchrun"] {
            let mut argv: Vec<OsString> = vec![name.into(), "--standalone".into(), "--".into(), "x.py".into()];
            argv.extend(args.iter().map(OsString::from));
            let Ok(Command::Launch(launch)) = interpret(&argv, &world().facts(&[("PATH", "/usr/bin")])) else {
                panic!("refused")
            };
            let expected: Vec<OsString> = args.iter().map(OsString::from).collect();
            prop_assert_eq!(&launch.spec.args, &expected);
        }
    }
}
