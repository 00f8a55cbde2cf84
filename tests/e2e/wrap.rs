//! `--wrap`: a command starts the program of chosen ranks.

use harness::{Launch, Name, Outcome, Scratch, is_rankrun};

/// Prints its first argument, and runs the rest in its place.
const WRAPPER: &str = "#!/bin/sh\necho \"wrapped as $1\"\nshift\nexec \"$@\"\n";

/// The lines of the wrapper, in order.
fn wrapped(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.lines_with("wrapped as ");
    let mut lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn chosen_ranks_are_started_by_their_wrapper() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let wrapper = scratch.file("wrapper", WRAPPER, 0o755);
    let outcome = Launch::standalone(Name::Rankrun, 3)
        .args(["--wrap", &format!("1-2:{wrapper} '%r of node' "), "--wrap", "1:env A=%l%%"])
        .worker(["env", "alive"])
        .run();
    outcome.expect_exit_code(0).expect_stdout("env1 A=1%").expect_absent("env2 A=");
    assert_eq!(wrapped(&outcome), ["wrapped as 1 of node", "wrapped as 2 of node"]);
    assert_eq!(outcome.lines_with("alive rank=").len(), 3, "{outcome}");
}

#[test]
fn wrapper_of_variable_runs_script_by_run_path() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let wrapper = scratch.file("wrapper", WRAPPER, 0o755);
    let script = scratch.file("x.py", "import sys; print('argv', sys.argv[1:], flush=True)", 0o644);
    for name in [Name::Rankrun, Name::Torchrun] {
        let launch = Launch::standalone(name, 1).env("RANKRUN_WRAP", format!("all:{wrapper} r%r"));
        let outcome = launch.args(["--run-path", &script, "a b"]).run();
        outcome.expect_exit_code(0).expect_stdout("argv ['a b']");
        assert_eq!(wrapped(&outcome), ["wrapped as r0"]);
    }
}

#[test]
fn wrapper_that_cannot_be_started_is_refused_before_the_start() {
    if !is_rankrun() {
        return;
    }
    let launch = |wrap: &str| Launch::standalone(Name::Rankrun, 2).args(["--wrap", wrap]).worker(["alive"]);
    for (wrap, message) in [
        ("0:no-such-profiler -o x", "its program `no-such-profiler` is not in PATH"),
        ("2:env", "`--wrap` is `2:env`, and the job has no rank 2: the ranks are 0 to 1"),
    ] {
        let outcome = launch(wrap).run();
        outcome.expect_exit_code(1).expect_stderr(message).expect_stderr("hint: ").expect_absent("alive");
    }
}
