//! The answers to a shell, and the scripts as far as a shell that is there can judge them.
#![expect(clippy::disallowed_methods, reason = "the shells themselves are asked")]

use std::fs::DirBuilder;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::process::{Command as Process, Stdio};

use super::*;
use rankrun_core::facts::fake::FakeWorld;

/// What the shell prints for this input; nothing where it is not installed.
fn ask(shell: &str, arguments: &[&str], input: &str) -> Option<String> {
    let mut process = Process::new(shell);
    process.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process.spawn().ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{shell}: {said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// What rankrun offers bash when these words have been typed, split as bash splits them.
fn offered(words: &[&str]) -> Vec<String> {
    offered_with_jobs(words, "/proc")
}

/// The same, with this runtime folder.
fn offered_with_jobs(words: &[&str], runtime_dir: &str) -> Vec<String> {
    let index = words.len().to_string();
    let variables = [(VARIABLE, "bash"), (INDEX_VARIABLE, &index), ("XDG_RUNTIME_DIR", runtime_dir)];
    let facts = FakeWorld::default().facts(&variables);
    let words: Vec<OsString> = ["--", "rankrun"].iter().chain(words).map(OsString::from).collect();
    let answer = answer(&words, &facts).unwrap();
    answer.lines().map(str::to_owned).collect()
}

#[test]
fn rankrun_completes_names_and_values() {
    for (words, answer) in [
        (vec!["--nproc"], vec!["--nproc-per-node"]),
        (vec!["--nproc_"], vec!["--nproc_per_node"]),
        (vec!["--standalone", "--max-r"], vec!["--max-restarts"]),
        (vec!["--nproc-per-node", "2", "--vir"], vec!["--virtual-local-rank"]),
        (vec!["--tee=3", "--vir"], vec!["--virtual-local-rank"]),
        (vec!["--tee", "=", "3", "--vir"], vec!["--virtual-local-rank"]),
        (vec!["--print-completion", ""], vec!["bash", "zsh", "tcsh"]),
        (vec!["--start_method", "for"], vec!["fork", "forkserver"]),
        (vec!["--start-method", "=", "for"], vec!["fork", "forkserver"]),
        (vec!["--rdzv-backend", "="], vec!["static", "c10d"]),
        (vec!["--nproc-per-node", "a"], vec!["auto"]),
        (vec!["train.py", "--nproc"], vec![]),
        (vec!["-r", "3", "train.py", "--nproc"], vec![]),
        (vec!["--standalone", "train.py", ""], vec![]),
        (vec!["completions", ""], vec!["bash", "zsh", "fish"]),
        (vec!["devices", "--device-t"], vec!["--device-type"]),
        (vec!["shim", "o"], vec!["on", "off"]),
        (vec!["explain", "torchrun", "--nnod"], vec!["--nnodes"]),
        (vec!["explain", "--script", "1", "torchrun", "--nproc"], vec!["--nproc-per-node"]),
        (vec!["explain", "torchrun", "--gra"], vec![]),
        (vec!["explain", "rankrun", "--gra"], vec!["--grace"]),
        (vec!["explain", "torchrun", "x.py", "--nnod"], vec![]),
    ] {
        assert_eq!(offered(&words), answer, "{words:?}");
    }
}

#[test]
fn value_of_every_option_is_completed_behind_each_launching_word() {
    for option in options(CliFlavor::Rankrun).filter(|option| option.get_action().takes_values()) {
        let Some(long) = option.get_long().map(|long| format!("--{long}")) else { continue };
        let first = offered(&[&long, ""]);
        for word in ["run", "explain"] {
            let behind = offered(&[word, &long, ""]);
            if !option.get_possible_values().is_empty() {
                assert_eq!(behind, first, "{word} {long}");
            }
            let _ = offered(&[word, &format!("{long}="), ""]);
        }
    }
    assert_eq!(offered(&["run", "--device-type", "cu"]), ["cuda"]);
    assert_eq!(offered(&["run", "--devices", "3", "--device-t"]), ["--device-type"]);
}

#[test]
fn only_option_that_takes_a_path_offers_files() {
    let hints = |cli_flavor| {
        let options = options(cli_flavor).map(move |option| for_shells(option.clone(), cli_flavor));
        let options = options.filter(|option| option.get_action().takes_values());
        let paths = options.filter(|option| option.get_value_hint() != ValueHint::Other);
        let texts = paths.filter(|option| option.get_possible_values().is_empty());
        texts.map(|option| option.long_name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(hints(CliFlavor::Torchrun), ["log-dir"]);
    assert_eq!(
        hints(CliFlavor::Rankrun),
        ["log-dir", "report", "hostfile", "nccl-lib", "config", "progress-dir"]
    );
}

#[test]
fn rankrun_completes_subcommands_only_as_first_word() {
    assert_eq!(offered(&["ru"]), ["run"]);
    assert_eq!(offered(&["run", "--gra"]), ["--grace"]);
    assert_eq!(offered(&["explain", "--gra"]), ["--grace"]);
    assert_eq!(offered(&["run", "train.py", "--gra"]), [""; 0]);
    assert_eq!(offered(&["--standalone", "run", "--gra"]), [""; 0]);
    assert_eq!(offered(&["dev"]), ["devices"]);
    for before in [&["--standalone"][..], &["--tee", "3"], &["--tee=3"], &["-m"]] {
        assert_eq!(offered(&[before, &["dev"]].concat()), [""; 0], "{before:?}");
        let all = offered(&[before, &[""]].concat());
        assert!(!all.contains(&"gc".to_owned()), "{before:?}: {all:?}");
    }
}

/// A job that is connected to starts a thread for its clients.
#[test]
fn completion_connects_to_no_job() {
    let folder = std::env::temp_dir().join(format!("rankrun-completion-{}", std::process::id()));
    let runtime = folder.join("rankrun");
    let job = "00000000-0000-4000-8000-000000000007";
    DirBuilder::new().recursive(true).mode(0o700).create(runtime.join(job)).unwrap();
    let listener = UnixListener::bind(runtime.join(job).join("control.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let place = folder.to_str().unwrap();
    assert_eq!(offered_with_jobs(&["--nproc"], place), ["--nproc-per-node"]);
    for verb in ["status", "stop", "restart"] {
        assert!(offered_with_jobs(&[verb, "00000000-0000-4"], place).contains(&job.to_owned()), "{verb}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn help_completes_commands_and_topics() {
    assert_eq!(offered(&["help", "de"]), ["deepspeed", "devices"]);
    assert_eq!(offered(&["acc"]), ["accelerate"]);
    assert_eq!(offered(&["help", "st"]), ["stacks", "status", "stop", "stopping"]);
    let all = offered(&["help", ""]);
    for topic in TOPICS {
        assert!(all.contains(&topic.to_owned()), "{topic}: {all:?}");
    }
}

#[test]
fn completion_scripts_parse_in_their_shells() {
    for cli_flavor in [CliFlavor::Rankrun, CliFlavor::Torchrun] {
        let read = ask("bash", &["-n"], &script(cli_flavor, Shell::Bash));
        assert_eq!(read.as_deref(), Some(""), "the tests need bash");
        // These need not be there.
        let _ = ask("zsh", &["-n"], &script(cli_flavor, Shell::Zsh));
        let _ = ask("fish", &["-n"], &script(cli_flavor, Shell::Fish));
        let _ = ask("tcsh", &["-f"], &script(cli_flavor, Shell::Tcsh));
    }
}

#[test]
fn torchrun_scripts_list_every_option() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Tcsh] {
        let text = script(CliFlavor::Torchrun, shell);
        for row in options(CliFlavor::Torchrun) {
            assert!(text.contains(row.long_name()), "{shell:?} lacks {}", row.long_name());
        }
    }
}

/// `RANKRUN_UPDATE=1` writes the wheel's scripts anew.
#[test]
fn completions_of_wheel_are_current() {
    let share = concat!(env!("CARGO_MANIFEST_DIR"), "/wheel-data/data/share/");
    for (shell, path) in [
        (Shell::Bash, "bash-completion/completions/rankrun"),
        (Shell::Zsh, "zsh/site-functions/_rankrun"),
        (Shell::Fish, "fish/vendor_completions.d/rankrun.fish"),
    ] {
        let path = format!("{share}{path}");
        let script = script(CliFlavor::Rankrun, shell);
        if std::env::var_os("RANKRUN_UPDATE").is_some() {
            std::fs::write(&path, &script).unwrap();
        }
        assert!(script == std::fs::read_to_string(&path).unwrap(), "RANKRUN_UPDATE=1 writes {path}");
    }
}
