//! `--config`: what a file says, and what is wrong with it.

use std::fs;
use std::path::Path;

use harness::{Gate, Launch, Name, Outcome, Scratch, is_rankrun};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::restart_policy::attempts_of_rank_0;

/// Names a file: by the option, or by its variable under torchrun's name.
fn launch_with_config_path(name: Name, path: &str) -> Launch {
    let launch = Launch::new(name);
    match name {
        Name::Rankrun => launch.args(["--config", path]),
        Name::Torchrun | Name::Reference => launch.env("RANKRUN_CONFIG", path),
    }
}

/// Writes a configuration file and names it.
fn launch_with_config(name: Name, scratch: &Scratch, text: impl AsRef<[u8]>) -> Launch {
    let path = scratch.at("rankrun.toml");
    fs::write(&path, text).expect("the folder is ours");
    launch_with_config_path(name, &path)
}

#[test]
fn config_file_sets_launch_and_restart_options() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let text = "[launch]\nstandalone = true\nnproc-per-node = 2\n[restart]\nmax-restarts = 3\ndelay = \"10ms\"\n\
                [[restart.rules]]\nexit = 5\nrank = 0\nthen = \"succeed\"\n[[restart.rules]]\nexit = 5\nthen = \"fail\"\n";
    let steps = ["alive", "rank0:attempt0:exit=7", "rank0:exit=5", "forever"];
    for name in Name::both() {
        let outcome = launch_with_config(*name, &scratch, text).worker(steps).run();
        outcome.expect_exit_code(0).expect_stderr("in 0.0 s (restart 1 of 3)");
        outcome.expect_stderr("by the rule `exit=5+rank=0:succeed`");
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1], "{outcome}");

        let options = ["--max-restarts", "0"];
        let outcome = launch_with_config(*name, &scratch, text).args(options).worker(steps).run();
        outcome.expect_exit_code(name.code(7));
        assert_eq!(attempts_of_rank_0(&outcome), [0], "the command line comes first\n{outcome}");
    }
}

#[test]
fn config_file_in_working_folder_is_not_read() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.at("rankrun.toml"), "[restart]\nmax-restarts = 3\n").expect("the folder is ours");
    let folder = scratch.folder(".", 0o777);
    let launch = Launch::standalone(Name::Rankrun, 1).cwd(folder).env("RANKRUN_CONFIG", "");
    let outcome = launch.worker(["alive", "attempt0:exit=4"]).run();
    outcome.expect_exit_code(4);
    assert_eq!(attempts_of_rank_0(&outcome), [0], "{outcome}");
}

/// With any other grace the job would take an hour.
#[test]
fn grace_for_each_stop_reason_is_applied() {
    let limits = |limits: &str| format!("[launch]\nstandalone = true\nnproc-per-node = 2\n{limits}");
    for (key, launch, restarts, ends, status) in [
        ("signal", limits(""), 0, "", 128 + 15),
        ("failure", limits(""), 0, "rank0:exit=3", 3),
        ("restart", limits(""), 1, "rank0:attempt0:exit=3", 0),
        ("time-limit", limits("time-limit = 1\n"), 3, "", 124),
        ("start-timeout", limits("start-timeout = 1\n"), 0, "", 1),
    ] {
        for name in Name::both().iter().filter(|_| is_rankrun()) {
            let scratch = Scratch::new();
            let gate = Gate::new(&scratch, "gate");
            let text = format!(
                "{launch}[restart]\nmax-restarts = {restarts}\n[stop]\ngrace = \"1h\"\n[stop.grace-for]\n{key} = \"250ms\"\n"
            );
            let waits = format!("rank0:attempt0:{}", gate.step());
            let steps = ["catch", "alive", &waits, ends, "attempt0:forever"];
            let steps = steps.into_iter().filter(|step| !step.is_empty());
            let job = launch_with_config(*name, &scratch, text).worker(steps).start();
            job.wait_for_lines("alive rank=", 2);
            match key {
                "signal" => job.signal(Signal::SIGTERM),
                "failure" | "restart" => gate.open(1),
                _ => {}
            }
            let outcome = job.wait();
            outcome.expect_exit_code(if status == 0 { 0 } else { name.code(status) });
            if *name == Name::Rankrun {
                outcome
                    .expect_stderr("waiting up to 0.25 s for")
                    .expect_stderr("still alive after the grace");
            }
        }
    }
}

#[test]
fn explain_names_config_file_and_line() {
    let scratch = Scratch::new();
    let text = "[launch]\ntime-limit = 90\n[stop]\ngrace = 9\n[stop.grace-for]\nsignal = \"1m\"\n";
    let path = scratch.at("rankrun.toml");
    fs::write(&path, text).expect("the folder is ours");
    let overridden = format!("2s command line, --grace, over {path}:6");
    for (options, found) in [(&[][..], format!("1m {path}:6")), (&["--grace", "2"], overridden)] {
        let launch = Launch::new(Name::Rankrun).args(["explain", "--config", &path, "--nproc-per-node", "1"]);
        let outcome = launch.args(options.iter().copied()).worker(["alive"]).run();
        let actual: Vec<String> = outcome
            .expect_exit_code(0)
            .lines_with("grace-for.signal")
            .iter()
            .map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(actual, [found], "{outcome}");
    }
}

/// Nothing starts, and it is said where what is wrong stands, and once what to do.
#[track_caller]
fn assert_refused(outcome: &Outcome, messages: &[&str]) {
    outcome.expect_exit_code(1).expect_absent("alive rank=");
    for part in messages {
        outcome.expect_stderr(part);
    }
    assert_eq!(outcome.stderr().matches("hint: ").count(), 1, "{outcome}");
}

/// The file, what is said behind its name, and the hint.
const INVALID_CONFIGS: [(&str, &str, &str); 51] = [
    // Bytes that no text has.
    ("[launch]\nrole = \"a\0b\"\n", "2: there is a NUL byte in the text", "remove it"),
    ("\0[launch]\n", "1: there is a NUL byte in the text", "remove it"),
    ("[launch]\nlog-dir = \"a\\u0000b\"\n", "2: there is a NUL byte in the text", "remove it"),
    // Keys.
    (
        "[restart]\nmax-restarts = 1\nwindows = \"1h\"\n",
        "3: `restart.windows` is not a known key",
        "did you mean `window`?",
    ),
    (
        "[launch]\nnproc_per_nod = 1\n",
        "2: `launch.nproc_per_nod` is not a known key",
        "did you mean `nproc-per-node`?",
    ),
    ("[launch]\nrdzv-enpoint = \"a:1\"\n", "2: `launch.rdzv-enpoint` is not a known key", "`rdzv-endpoint`?"),
    ("[launch]\nconfig = \"other.toml\"\n", "2: `launch.config` is not a known key", "long names of options"),
    ("[stop]\ngarce = 5\n", "2: `stop.garce` is not a known key", "did you mean `grace`?"),
    (
        "[stop.grace-for]\ntimelimit = 5\n",
        "2: `stop.grace-for.timelimit` is not a known key",
        "`time-limit`?",
    ),
    ("\n\n[restarts]\nmax-restarts = 1\n", "3: `restarts` is not a known key", "did you mean `restart`?"),
    ("max-restarts = 1\n", "1: `max-restarts` is not a known key", "it belongs in `[restart]`"),
    (
        "[[restart.rules]]\nreason = 3\nthen = \"fail\"\n",
        "2: `restart.rules.reason` is not a known key",
        "there are exit, signal, cause, rank, node, then",
    ),
    // What is not TOML.
    (
        "[restart]\nmax-restarts = 1\nmax-restarts = 2\n",
        "3: `max-restarts`: duplicate key",
        "drop one of them",
    ),
    ("[stop]\ngrace = 1\n[stop]\ngrace = 2\n", "3: `stop`: duplicate key", "drop one of them"),
    ("[restart\nmax-restarts = 1\n", "1: `restart`: ", "the file is TOML"),
    ("[restart]\nwindow = 1h\n", "2: `window`: ", "texts in quotes"),
    ("[restart]\nwindow =\n", "2: `window`: ", "the file is TOML"),
    ("--max-restarts 3\n", "1: ", "the file is TOML"),
    // Types.
    (
        "[restart]\nmax-restarts = \"1\"\n",
        "2: `restart.max-restarts` is `\"1\"`, which is not a whole number",
        "without quotes",
    ),
    (
        "[restart]\nmax-restarts = 1.0\n",
        "2: `restart.max-restarts` is `1.0`, which is not a whole number",
        "as in `max-restarts = 1`",
    ),
    (
        "[restart]\nmax-restarts = -1\n",
        "2: `restart.max-restarts` is `-1`, which is not a number of restarts",
        "hint: ",
    ),
    (
        "[restart]\nmax-restarts = [1]\n",
        "2: `restart.max-restarts` is `[1]`, which is not a whole number",
        "write a whole number",
    ),
    (
        "[restart]\nmax-restarts = 1\nfactor = \"2\"\n",
        "3: `restart.factor` is `\"2\"`, which is not a number",
        "without quotes",
    ),
    (
        "[restart]\nmax-restarts = 1\ndelay = 1\nfactor = inf\n",
        "4: `restart.factor` is `inf`, which is not a number from 1 up",
        "hint: ",
    ),
    (
        "[restart]\nmax-restarts = 1\ndelay = nan\n",
        "3: `restart.delay` is `nan`, which is not a time",
        "hint: ",
    ),
    (
        "[restart]\nmax-restarts = 1\ndelay = 00:01:30\n",
        "3: `restart.delay` is `00:01:30`, which is not a text or a number",
        "put it in quotes, as in `delay = \"00:01:30\"`",
    ),
    (
        "[restart]\nmax-restarts = 1\nwindow = 2026-01-01\n",
        "3: `restart.window` is `2026-01-01`, which is not a text or a number",
        "put it in quotes",
    ),
    (
        "[restart]\nmax-restarts = 1\nwindow = \"1 month\"\n",
        "3: `restart.window` is `1 month`, which is not a time above 0",
        "hint: ",
    ),
    ("[stop]\ngrace = \"soon\"\n", "2: `stop.grace` is `soon`, which is not a time", "as in `"),
    ("[stop]\ngrace = -1\n", "2: `stop.grace` is `-1`, which is not a time", "as in `"),
    ("[stop]\nleftover = inf\n", "2: `stop.leftover` is `inf`, which is not a time", "as in `"),
    (
        "[stop.grace-for]\nsignal = nan\n",
        "2: `stop.grace-for.signal` is `nan`, which is not a time",
        "hint: ",
    ),
    (
        "[stop]\ngrace-for = 10\n",
        "2: `stop.grace-for` is `10`, which is not a table",
        "write `[stop.grace-for]`",
    ),
    (
        "[restart.rules]\nexit = 3\nthen = \"fail\"\n",
        "1: `restart.rules` is `[restart.rules]`, which is not a list of tables",
        "write tables",
    ),
    ("restart = \"never\"\n", "1: `restart` is `\"never\"`, which is not a table", "write `[restart]`"),
    (
        "[launch]\nverbose = \"yes\"\n",
        "2: `launch.verbose` is `\"yes\"`, which is not true or false",
        "write `verbose = true`",
    ),
    // Rules that never match.
    (
        "[[restart.rules]]\nexit = 0\nthen = \"fail\"\n",
        "2: `restart.rules.exit` has the rule `exit=0:fail`, which can never match",
        "correct it",
    ),
    (
        "\n[[restart.rules]]\nexit = 3\nsignal = 9\nthen = \"fail\"\n",
        "4: `restart.rules.signal` has the rule `exit=3+signal=9:fail`, which can never match",
        "correct it",
    ),
    (
        "[[restart.rules]]\nrank = 8\nthen = \"fail\"\n",
        "2: `restart.rules.rank` has the rule `rank=8:fail`, which can never match: the ranks are 0 to 0",
        "correct it",
    ),
    (
        "[[restart.rules]]\nthen = \"fail\"\n[[restart.rules]]\nexit = 3\nthen = \"requeue\"\n",
        "3: `restart.rules` has the rule `exit=3:requeue`, which can never match: `any:fail` before it",
        "put the special one first",
    ),
    (
        "[[restart.rules]]\nexit = \"1-9\"\nthen = \"fail\"\n[[restart.rules]]\nexit = \"10-19\"\nthen = \"fail\"\n\
         [[restart.rules]]\nexit = \"5-15\"\nthen = \"requeue\"\n",
        "7: `restart.rules` has the rule `exit=5-15:requeue`, which can never match: `exit=1-9:fail` and `exit=10-19:fail`",
        "put the special one first",
    ),
    (
        "[[restart.rules]]\nsignal = \"STOP\"\nthen = \"fail\"\n",
        "2: `restart.rules.signal` has the rule `signal=STOP:fail`, which can never match: SIGSTOP ends no process",
        "leave it out",
    ),
    (
        "[[restart.rules]]\nexit = 3\nthen = \"restart\"\n",
        "3: `restart.rules.then` has the rule `exit=3:restart`, but without `--max-restarts` above 0",
        "give `--max-restarts`",
    ),
    (
        "[[restart.rules]]\nexit = 3\nthen = \"stop\"\n",
        "3: `restart.rules.then` has the rule `exit=3:stop`, in which `stop` is not an action",
        "the actions are",
    ),
    // Limits that contradict each other.
    (
        "[restart]\nmax-restarts = 1\ndelay = 9\nmax-delay = 3\n",
        "4: `restart.max-delay` is `3s`, which is not as long as the first delay",
        "hint: ",
    ),
    (
        "[launch]\ntime-limit = \"1h\"\nwarn-signal = \"USR1@2h\"\n",
        "3: `launch.warn-signal` is `USR1@2h`, and `launch.time-limit` in line 2 is `1h`: the workers would be warned at their start",
        "USR1@10",
    ),
    (
        "[launch]\ntime-limit = 60\nstart-timeout = 90\n",
        "3: `launch.start-timeout` is `1m 30s`, and `launch.time-limit` in line 2 is `1m`",
        "shorter than the time limit",
    ),
    (
        "[launch]\ntime-limit = 60\n[restart]\nmax-restarts = 1\nreset-after = 60\n",
        "5: `restart.reset-after` is `1m`, and `launch.time-limit` in line 2 is `1m`: no worker can run for so long",
        "shorter",
    ),
    (
        "[restart]\nmax-restarts = 2\nprogress-dir = \"x\"\nprogress-restarts = 3\n",
        "4: `restart.progress-restarts` is `3`, and `restart.max-restarts` in line 2 is `2`",
        "fewer",
    ),
    (
        "[restart]\nmax-restarts = 0\ndelay = 1\n",
        "3: `restart.delay` is given, but `restart.max-restarts` in line 2 is `0`",
        "or leave `restart.delay` in line 3 out",
    ),
    (
        "[launch]\nshutdown-timeout = 1\n[stop]\ngrace = 2\n",
        "4: `stop.grace` says what `launch.shutdown-timeout` in line 2 says",
        "drop one of them",
    ),
];

#[test]
fn invalid_config_is_reported_with_its_line() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let scratch = Scratch::new();
        for (text, problem, hint) in INVALID_CONFIGS {
            let outcome = launch_with_config(*name, &scratch, text)
                .args(["--nproc-per-node", "1"])
                .worker(["alive"])
                .run();
            let place = format!("error: `{}`, line {problem}", scratch.at("rankrun.toml"));
            assert_refused(&outcome, &[&place, hint]);
        }
    }
}

#[test]
fn unreadable_config_file_is_reported() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let scratch = Scratch::new();
        let run = |launch: Launch| launch.args(["--nproc-per-node", "1"]).worker(["alive"]).run();
        let at = |file: &str| scratch.at(file);
        mkfifo(Path::new(&at("fifo")), Mode::S_IRWXU).expect("the folder is ours");
        let huge = [b"# ".as_slice(), &vec![b'x'; 2 << 20]].concat();
        fs::write(at("huge"), huge).expect("the folder is ours");
        let (read, write) = ("hint: name a file that can be read", "hint: write it into a file");
        for (path, why, hint) in [
            (
                scratch.folder("folder", 0o777),
                "a folder is not a regular file",
                "hint: name a file in the folder",
            ),
            (at("fifo"), "a FIFO (a pipe) is not a regular file", write),
            (at("missing"), "No such file or directory", read),
            (at("huge"), "it has more than 1048576 bytes", read),
            ("/dev/zero".to_owned(), "a device is not a regular file", write),
        ] {
            let message = format!("error: the configuration file `{path}` cannot be read: {why}");
            assert_refused(&run(launch_with_config_path(*name, &path)), &[&message, hint]);
        }
        let outcome = run(launch_with_config(*name, &scratch, b"[launch]\n# caf\xe9\nrole = \"x\"\n"));
        let message = format!("error: `{}`, line 2: this is not valid UTF-8", at("rankrun.toml"));
        assert_refused(&outcome, &[&message, "save it as UTF-8"]);
        // Deeper than any stack.
        let deep = format!("[launch]\nrole = {}\n", "[".repeat(500_000));
        assert_refused(&run(launch_with_config(*name, &scratch, deep)), &["line 2: "]);
        let deep = format!("{}a = 1\n", "a.".repeat(400_000));
        assert_refused(
            &run(launch_with_config(*name, &scratch, deep)),
            &["tables or lists are nested too deeply"],
        );
        // An empty file and an empty path set nothing.
        run(launch_with_config(*name, &scratch, "")).expect_exit_code(0).expect_stdout("alive rank=0");
        run(Launch::new(*name).env("RANKRUN_CONFIG", "")).expect_exit_code(0).expect_stdout("alive rank=0");
    }
}

#[test]
fn deeply_nested_config_is_refused_in_one_sentence() {
    let scratch = Scratch::new();
    let list = |depth| format!("[launch]\nrole = {}{}\n", "[".repeat(depth), "]".repeat(depth));
    let path = |depth: usize, open: &str, close: &str| format!("{open}{}{close}", vec!["a"; depth].join("."));
    let deep = "tables or lists are nested too deeply";
    for (name, text, message) in [
        ("lists", list(100_000), deep),
        ("tables", format!("[launch]\nrole = {}1{}\n", "{a=".repeat(5_000), "}".repeat(5_000)), deep),
        ("header", path(5_000, "[", "]\n"), deep),
        ("key", path(5_000, "", " = 1\n"), deep),
        ("limit", list(80), "`launch.role` is a list, which is not a text or a number"),
    ] {
        let file = scratch.file(name, &text, 0o644);
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--config", &*file]);
        let outcome = launch.worker(["print=started"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr(message)
            .expect_stderr("\n\nhint: ")
            .expect_absent("started");
        assert!(outcome.stderr().len() < 500, "{name}: {outcome}");
    }
}
