//! `rankrun explain`: it starts nothing, and what it says is what a launch does.
#![expect(clippy::disallowed_methods, reason = "the scripts that it prints are run by a shell")]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Output};

use harness::{Launch, Name, Outcome, Scratch, fixture, free_port, is_rankrun};
use serde_json::Value;

/// A launch with the same environment each time, but for the mark of the harness.
fn launch(scratch: &Scratch, name: Name) -> Launch {
    Launch::new(name).env("TMPDIR", scratch.folder("tmp", 0o777)).env("HOME", scratch.folder("home", 0o777))
}

/// The explanation of what `name` would do.
fn explain_launch(scratch: &Scratch, options: &[&str], name: Name) -> Launch {
    let subcommand: &[&str] = if name == Name::Torchrun { &["torchrun"] } else { &[] };
    launch(scratch, Name::Rankrun)
        .args(["explain"])
        .args(options.iter().copied())
        .args(subcommand.iter().copied())
}

#[track_caller]
fn stdout_json(outcome: &Outcome) -> Value {
    outcome.expect_exit_code(0);
    serde_json::from_slice(outcome.stdout_bytes())
        .unwrap_or_else(|error| panic!("no JSON: {error}\n{outcome}"))
}

fn string_value(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Whether the text is one that the shell pattern describes; of patterns only `*` and `?`.
fn matches_glob(pattern: &str, text: &str) -> bool {
    let mut letters = text.chars();
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = &pattern[1..];
            text.char_indices()
                .map(|(at, _)| at)
                .chain([text.len()])
                .any(|at| matches_glob(rest, &text[at..]))
        }
        Some(expected) => {
            let fits = letters.next().is_some_and(|letter| expected == '?' || letter == expected);
            fits && matches_glob(&pattern[expected.len_utf8()..], letters.as_str())
        }
    }
}

#[test]
fn explain_starts_no_process_and_creates_no_file() {
    let scratch = Scratch::new();
    let (logs, touched) = (scratch.at("logs"), scratch.at("touched"));
    let calls = if cfg!(target_arch = "x86_64") { "mkdir," } else { "" };
    let calls = format!("{calls}clone,clone3,mkdirat,socket");
    // Of other nodes it asks none, and no resolver.
    let nodes =
        "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0.invalid:7 --iface=eth0 --port-range=5-6";
    let nodes: Vec<&str> = nodes.split(' ').collect();
    for (form, nodes) in
        [("--json", &[][..]), ("--script=1", &[]), ("run", &[]), ("--json", &nodes), ("run", &nodes)]
    {
        let wrapper = fixture("seccomp-exec").into_os_string();
        let launch = launch(&scratch, Name::Rankrun).under([wrapper, "KILL".into(), calls.clone().into()]);
        let launch =
            launch.args(["explain", form, "--nproc-per-node", "2", "--tee", "3", "--log-dir", &logs]);
        let launch = launch.args(nodes.iter().copied());
        let outcome = launch.worker([format!("touch={touched}")]).run();
        outcome.expect_exit_code(0).expect_stdout("RANKRUN_JOB");
        assert_eq!(outcome.stderr(), "", "{outcome}");
        for folder in ["tmp", "home"] {
            assert_eq!(fs::read_dir(scratch.at(folder)).expect("it is there").count(), 0, "{folder}");
        }
        assert!(!fs::exists(&logs).expect("a plain path"), "the log folder was made");
        assert!(!fs::exists(&touched).expect("a plain path"), "a worker ran");
    }
}

/// The ranks of a node's workers that have told their environment, in order.
fn ranks_in_output(real: &Outcome) -> BTreeSet<usize> {
    let rank = |line: &str| line.strip_prefix("env")?.split(' ').next()?.parse().ok();
    real.stdout_lines().iter().filter_map(|line| rank(line)).collect()
}

/// Compares a worker's whole environment with the explanation's.
#[track_caller]
fn assert_environment(explained: &Value, real: &Outcome, local_rank: usize) {
    let rank = ranks_in_output(real).into_iter().nth(local_rank);
    let rank = rank.unwrap_or_else(|| panic!("local rank {local_rank} said nothing\n{real}"));
    let prefix = format!("env{rank} ");
    let mut lines: Vec<String> =
        real.stdout_lines().iter().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect();
    lines.retain(|line| !line.starts_with("RANKRUN_E2E_MARK="));
    let entries = explained["ranks"][local_rank]["environment"].as_array().expect("a list");
    let entries: Vec<&Value> = entries.iter().filter(|entry| entry["name"] != "RANKRUN_E2E_MARK").collect();
    assert_eq!(lines.len(), entries.len(), "{lines:#?}\n{entries:#?}");
    for (line, entry) in lines.iter().zip(entries) {
        let (name, value) = line.split_once('=').expect("a variable");
        assert_eq!(entry["name"], name);
        let explained = &entry["value"];
        let fits = match (explained["at_launch"].as_str(), string_value(explained)) {
            (Some("free_port"), _) => value.parse::<u16>().is_ok_and(|port| port > 0),
            // It names the launcher's process.
            (Some("mark"), _) if name == "RANKRUN_NESTING" => value.ends_with("=1"),
            (Some("run_id" | "mark"), _) => value.split('-').map(str::len).eq([8, 4, 4, 4, 12]),
            (Some("agreed_by_the_nodes"), _) => !value.is_empty(),
            // The nodes of these tests meet at `localhost`.
            (Some("interface_of_the_connection"), _) => value == "lo",
            (Some("path"), _) => matches_glob(explained["pattern"].as_str().expect("a pattern"), value),
            (_, text) => text.as_deref() == Some(value),
        };
        assert!(fits, "{name} is `{value}`, and was to be {explained}");
    }
}

#[test]
fn explained_environment_equals_worker_environment() {
    if !is_rankrun() {
        return;
    }
    let port = free_port().to_string();
    let scratch = Scratch::new();
    let (logs, endpoint) = (scratch.at("logs"), format!("localhost:{}", free_port()));
    for name in [Name::Rankrun, Name::Torchrun] {
        let lines: [&[&str]; 8] = [
            &["--nproc-per-node", "2", "--max-restarts", "3", "--role", "it's $a"],
            &["--nproc-per-node", "1", "--rdzv-id", "7"],
            &["--master-port", &port, "--nproc-per-node", "2"],
            &["--log-dir", &logs, "--standalone", "--local-addr", "localhost"],
            &["--log-dir", "/dev/null", "--nproc-per-node", "2"],
            &["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "a/b"],
            &["--virtual-local-rank", "--nproc-per-node", "2"],
            &["--signals-to-handle", "SIGTERM,SIGUSR1", "--rdzv-endpoint", &endpoint],
        ];
        for line in lines {
            let with = |launch: Launch| {
                let launch =
                    launch.env("RANK", "9").env("PET_ROLE", "of the variable").env("MY_DATA", "a b=c");
                launch.args(line.iter().copied()).worker(["env"]).run()
            };
            let explained = stdout_json(&with(explain_launch(&scratch, &["--json"], name)));
            let real = with(launch(&scratch, name));
            real.expect_exit_code(0);
            assert_eq!(explained["name"], if name == Name::Torchrun { "torchrun" } else { "rankrun" });
            let ranks = explained["ranks"].as_array().expect("a list").len();
            (0..ranks).for_each(|rank| assert_environment(&explained, &real, rank));
            for warning in explained["warnings"].as_array().expect("a list") {
                real.expect_stderr(warning.as_str().expect("a text"));
            }
        }
    }
}

#[test]
fn explain_predicts_environment_of_multi_node_workers() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    for name in [Name::Rankrun, Name::Torchrun] {
        let endpoint = format!("--rdzv-endpoint=localhost:{}", free_port());
        let fixed = ["--nnodes=2", "--nproc-per-node=2", &endpoint];
        let dynamic = ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=7", &endpoint];
        for options in [&fixed[..], &dynamic] {
            let ranks =
                if options.len() == 3 { [Some("--node-rank=0"), Some("--node-rank=1")] } else { [None; 2] };
            let with = |launch: Launch, rank: Option<&'static str>| {
                launch.args(options.iter().copied().chain(rank)).worker(["env"])
            };
            let explained =
                ranks.map(|rank| stdout_json(&with(explain_launch(&scratch, &["--json"], name), rank).run()));
            let jobs = ranks.map(|rank| with(launch(&scratch, name), rank).start());
            for (explained, job) in explained.iter().zip(jobs) {
                let real = job.wait();
                real.expect_exit_code(0);
                let workers = explained["ranks"].as_array().expect("a list").len();
                (0..workers).for_each(|local_rank| assert_environment(explained, &real, local_rank));
            }
        }
    }
}

/// A shell that prints its own command line, and arguments that are easily spoilt.
fn unusual_arguments() -> Vec<OsString> {
    let mut line: Vec<OsString> =
        ["--no-python", "sh", "-c", "cat /proc/$$/cmdline; true", "sh"].map(Into::into).into();
    for argument in
        ["it's", "a\nb", "$HOME `id`", "$${x}", "rank=${local_rank}", "", "*", "\\", "\"", "größe", "-n"]
    {
        line.push(argument.into());
    }
    line.push(OsStr::from_bytes(b"\xff\x01\xc3").to_owned());
    line
}

#[test]
fn explained_argv_equals_worker_argv() {
    let scratch = Scratch::new();
    let real = launch(&scratch, Name::Rankrun).args(unusual_arguments()).run();
    real.expect_exit_code(0);
    let explained =
        stdout_json(&explain_launch(&scratch, &["--json"], Name::Rankrun).args(unusual_arguments()).run());
    let mut bytes = Vec::new();
    for argument in explained["ranks"][0]["argv"].as_array().expect("a list") {
        match argument["bytes"].as_array() {
            Some(list) => {
                bytes.extend(
                    list.iter().map(|byte| u8::try_from(byte.as_u64().expect("a byte")).expect("a byte")),
                );
            }
            None => bytes.extend_from_slice(argument.as_str().expect("a text").as_bytes()),
        }
        bytes.push(0);
    }
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(real.stdout_bytes()));
    assert_eq!(bytes, real.stdout_bytes());
}

/// Runs a script with this environment and nothing else.
#[track_caller]
fn run_script(shell: &str, script: &Outcome, environment: &[(&str, &str)]) -> Output {
    script.expect_exit_code(0);
    let scratch = Scratch::new();
    let path = scratch.at("script");
    fs::write(&path, script.stdout_bytes()).expect("the scratch folder is writable");
    let mut command = Command::new(shell);
    command.arg(&path).env_clear().env("PATH", "/usr/bin:/bin").envs(environment.iter().copied());
    command.output().expect("there is a shell")
}

#[test]
fn script_passes_arguments_byte_for_byte() {
    let scratch = Scratch::new();
    let port = free_port().to_string();
    let script = explain_launch(&scratch, &["--script", "0"], Name::Rankrun);
    let script = script.args(["--master-port", &port]).args(unusual_arguments()).run();
    let real = launch(&scratch, Name::Rankrun).args(unusual_arguments()).run();
    for shell in ["sh", "bash"] {
        let output = run_script(shell, &script, &[("LANG", "C.UTF-8")]);
        // A script cannot say `argv[0]`: it is the program's path.
        let argv0 = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0).unwrap_or_default();
        let (actual, expected) = (&output.stdout[argv0(&output.stdout)..], &real.stdout_bytes()[2..]);
        assert_eq!(String::from_utf8_lossy(actual), String::from_utf8_lossy(expected), "{shell}: {output:?}");
        assert_eq!(actual, expected);
    }
}

#[test]
fn script_with_master_port_sets_launch_environment() {
    let scratch = Scratch::new();
    let port = free_port().to_string();
    let with = |launch: Launch| {
        let line = ["--master-port", &port, "--nproc-per-node", "2", "--log-dir", "/dev/null"];
        let odd = OsString::from_vec(b"it's\n\xff $x".to_vec());
        let launch =
            launch.env("UID", "7").env("BASH_FUNC_f%%", "() { :; }").env("MY_DATA", odd).env("IFS", "x");
        launch.args(line).worker(["env"]).run()
    };
    let real = with(launch(&scratch, Name::Rankrun));
    let script = with(explain_launch(&scratch, &["--script", "1"], Name::Rankrun));
    // Its own environment is nothing to the worker, but for the terminal.
    let output = run_script("sh", &script, &[("RANK", "5"), ("MY_OWN", "1"), ("TERM", "xterm")]);
    let lines = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let foreign = |line: &&str| {
            let names = ["JOB", "NESTING", "E2E_MARK", "HEARTBEAT", "PROGRESS_PAGE"];
            let names = names.map(|name| format!("env1 RANKRUN_{name}="));
            !line.starts_with("env0") && !names.iter().any(|name| line.starts_with(name))
        };
        let mut lines: Vec<String> = text.lines().filter(foreign).map(str::to_owned).collect();
        lines.sort();
        // The odd value has two lines, and each of two workers prints both.
        lines.dedup();
        lines
    };
    assert_eq!(lines(&output.stdout), lines(real.stdout_bytes()), "{output:?}");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn script_requires_variables_known_only_at_launch() {
    let scratch = Scratch::new();
    let script = explain_launch(&scratch, &["--script", "0"], Name::Rankrun).worker(["env"]).run();
    for (environment, missing) in [(&[][..], "MASTER_PORT"), (&[("MASTER_PORT", "1")], "TORCHELASTIC_RUN_ID")]
    {
        let output = run_script("sh", &script, environment);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.starts_with(&format!("error: `{missing}` is not set: ")), "{stderr}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    let output = run_script(
        "sh",
        &script,
        &[("MASTER_PORT", "1"), ("TORCHELASTIC_RUN_ID", "a b"), ("RANKRUN_JOB", "j")],
    );
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in ["MASTER_PORT=1", "TORCHELASTIC_RUN_ID=a b", "RANKRUN_JOB=j", "TORCHELASTIC_ERROR_FILE="] {
        assert!(stdout.lines().any(|found| found == format!("env0 {line}")), "no {line} in {stdout}");
    }
}

#[test]
fn script_arguments_are_put_before_its_command() {
    let scratch = Scratch::new();
    let port = free_port().to_string();
    let launch = explain_launch(&scratch, &["--script", "0"], Name::Rankrun).args(["--master-port", &port]);
    let script = launch.args(["--no-python", "echo", "the worker"]).run();
    let path = scratch.at("script");
    fs::write(&path, script.stdout_bytes()).expect("the scratch folder is writable");
    let output = Command::new("sh").args([&path, "echo", "a  b"]).output().expect("there is a shell");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(stdout.starts_with("a  b ") && stdout.ends_with("/echo the worker\n"), "{output:?}");
}

#[test]
fn invalid_command_line_fails_as_the_launch_does() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    for name in [Name::Rankrun, Name::Torchrun] {
        for line in [
            &["--nproc-per-node", "two"][..],
            &["--nproc-per-nod"],
            &[],
            &["missing.py"],
            &["--role", "a", "-h"],
        ] {
            let launched = launch(&scratch, name).args(line.iter().copied()).run();
            let explained = explain_launch(&scratch, &["--json"], name).args(line.iter().copied()).run();
            assert_eq!(explained.status.code(), launched.status.code(), "{line:?}\n{explained}{launched}");
            assert_eq!(
                (explained.stdout(), explained.stderr()),
                (launched.stdout(), launched.stderr()),
                "{line:?}"
            );
        }
    }
}

#[test]
fn explain_does_not_write_parent_error_file() {
    let scratch = Scratch::new();
    let file = scratch.at("error.json");
    let with = |launch: Launch| launch.env("TORCHELASTIC_ERROR_FILE", &*file).args(["missing.py"]).run();
    with(explain_launch(&scratch, &[], Name::Rankrun)).expect_exit_code(1);
    assert!(!fs::exists(&file).expect("a plain path"), "a file was written");
    with(launch(&scratch, Name::Rankrun)).expect_exit_code(1);
    assert!(fs::exists(&file).expect("a plain path"), "a launch writes it");
}

#[test]
fn explain_under_torchrun_name_is_a_script() {
    if !is_rankrun() {
        return;
    }
    let outcome = Launch::new(Name::Torchrun).args(["explain", "--json"]).run();
    outcome.expect_exit_code(1).expect_stderr("explain").expect_absent("settings");
}

#[test]
fn script_write_failure_exits_with_one() {
    let scratch = Scratch::new();
    let launch = explain_launch(&scratch, &["--script", "0"], Name::Rankrun);
    let launch = launch.under(["sh", "-c", "exec \"$@\" > /dev/full", "sh"]);
    launch.worker(["env"]).run().expect_exit_code(1).expect_stderr("error: cannot write the answer");
}

#[test]
fn explain_uses_colours_only_on_terminal() {
    let scratch = Scratch::new();
    let on_terminal = || explain_launch(&scratch, &[], Name::Rankrun).terminal();
    on_terminal().worker(["env"]).run().expect_exit_code(0).expect_stdout("\x1b[1msettings");
    on_terminal().env("NO_COLOR", "1").worker(["env"]).run().expect_exit_code(0).expect_absent("\x1b[");
    explain_launch(&scratch, &[], Name::Rankrun)
        .worker(["env"])
        .run()
        .expect_exit_code(0)
        .expect_stdout("settings")
        .expect_absent("\x1b[");
}
