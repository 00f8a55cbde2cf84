//! The scripts, as far as a shell that is there can judge them.
#![expect(clippy::disallowed_methods, reason = "the shells themselves are asked")]

use std::io::Write;
use std::process::{Command as Process, Stdio};

use super::*;

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

/// What bash offers when the line has been typed so far, split as bash splits it.
fn offered(cli_flavor: CliFlavor, words: &[&str]) -> Vec<String> {
    let name = Command::of(cli_flavor).name;
    let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let input = format!(
        "cd /nonexistent 2>/dev/null\n{}\nCOMP_WORDS=({name} {})\nCOMP_CWORD={}\n_{name}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script(cli_flavor, Shell::Bash),
        line.join(" "),
        words.len(),
    );
    let answer = ask("bash", &["--norc", "--noprofile"], &input).expect("the tests need bash");
    answer.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_names_and_values() {
    let both = [CliFlavor::Rankrun, CliFlavor::Torchrun];
    for cli_flavor in both {
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
            (vec!["--role", "--nproc"], vec![]),
            (vec!["train.py", "--nproc"], vec![]),
            (vec!["-r", "3", "train.py", "--nproc"], vec![]),
        ] {
            assert_eq!(offered(cli_flavor, &words), answer, "{words:?}");
        }
    }
}

#[test]
fn rankrun_completes_subcommands_only_as_first_word() {
    assert_eq!(offered(CliFlavor::Rankrun, &["ru"]), ["run"]);
    assert_eq!(offered(CliFlavor::Rankrun, &["run", "--gra"]), ["--grace"]);
    assert_eq!(offered(CliFlavor::Rankrun, &["--standalone", "run", "--gra"]), [""; 0]);
    assert_eq!(offered(CliFlavor::Torchrun, &["ru"]), [""; 0]);
    assert_eq!(offered(CliFlavor::Torchrun, &["--gra"]), [""; 0]);
}

#[test]
fn completion_scripts_parse_in_their_shells() {
    for cli_flavor in [CliFlavor::Rankrun, CliFlavor::Torchrun] {
        let read = ask("bash", &["-n"], &script(cli_flavor, Shell::Bash));
        assert_eq!(read.as_deref(), Some(""), "the tests need bash");
        // These two need not be there.
        let _ = ask("zsh", &["-n"], &script(cli_flavor, Shell::Zsh));
        let _ = ask("tcsh", &["-f"], &script(cli_flavor, Shell::Tcsh));
    }
}

#[test]
fn completion_scripts_list_every_option() {
    for cli_flavor in [CliFlavor::Rankrun, CliFlavor::Torchrun] {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Tcsh] {
            let text = script(cli_flavor, shell);
            for row in options(cli_flavor) {
                assert!(text.contains(row.long_name()), "{shell:?} lacks {}", row.long_name());
            }
        }
    }
}
