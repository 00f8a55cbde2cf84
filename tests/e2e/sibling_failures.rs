//! Siblings of a failed worker under the name torchrun: the report lists them as torchrun 2.15 does.

use harness::{Launch, Name, Outcome, Scratch};
use nix::sys::stat::Mode;

use crate::torchrun_reports::{assert_same_report, torch_log_lines, torchrun_report, worker_launch};

/// Rank 0 ends with 3. Rank 1 goes on when rank 0 is a zombie, or reaped: a process closes its files before it can be reaped,
/// so the end of a FIFO comes too early.
fn run_failure_with_sibling(name: Name, sibling: &str) -> Outcome {
    let scratch = Scratch::new();
    let pid = scratch.path().join("pid");
    nix::unistd::mkfifo(&pid, Mode::from_bits_truncate(0o600)).expect("the scratch folder takes a FIFO");
    let pid = pid.display();
    let line = format!(
        "if [ $$RANK = 0 ]; then echo $$$$ >{pid}; exit 3; fi; read -r pid <{pid}; \
         while read -r _ _ state _ 2>&- </proc/$$pid/stat && [ $$state != Z ]; do :; done; {sibling}"
    );
    worker_launch(name, 2).shell(&line).run()
}

#[test]
fn sibling_that_succeeds_is_not_in_report() {
    let text = assert_same_report(|name| run_failure_with_sibling(name, "exit 0"));
    assert!(text.contains("\n  <NO_OTHER_FAILURES>\n"), "{text}");
    for _ in 0..10 {
        let outcome = run_failure_with_sibling(Name::Torchrun, "exit 0");
        let text = torchrun_report(&outcome);
        assert!(text.contains("\n  <NO_OTHER_FAILURES>\n"), "{text}");
        assert!(
            !torch_log_lines(&outcome).concat().contains("closing signal"),
            "the sibling was stopped\n{outcome}"
        );
    }
}

#[test]
fn sibling_that_fails_is_in_report_with_own_code() {
    let text = assert_same_report(|name| run_failure_with_sibling(name, "exit 7"));
    assert!(text.contains("  exitcode  : 7 (pid: N) \n") && !text.contains("SIGTERM"), "{text}");
    for _ in 0..10 {
        let text = torchrun_report(&run_failure_with_sibling(Name::Torchrun, "exit 7"));
        assert!(text.contains("  exitcode  : 7 (pid: N) \n"), "{text}");
    }
}

#[test]
fn running_sibling_is_stopped_and_in_report() {
    for (sibling, exit) in [
        ("exec sleep 1000", "  exitcode  : -15 (pid: N)  (SIGTERM)\n"),
        ("trap 'exit 9' TERM; while :; do sleep 0.01; done", "  exitcode  : 9 (pid: N) \n"),
        ("trap 'exit 0' TERM; while :; do sleep 0.01; done", "  <NO_OTHER_FAILURES>\n"),
    ] {
        let text = assert_same_report(|name| run_failure_with_sibling(name, sibling));
        assert!(text.contains(exit), "{sibling}\n{text}");
    }
}

/// A restart prints no report, and does not wait for the siblings.
#[test]
fn sibling_is_stopped_at_once_before_a_restart() {
    let launch = Launch::standalone(Name::Torchrun, 2).args(["--max-restarts", "1"]);
    let line = "if [ $$TORCHELASTIC_RESTART_COUNT = 1 ]; then exit 0; fi; \
                if [ $$RANK = 0 ]; then exit 3; fi; exec sleep 1000";
    let outcome = launch.shell(line).run();
    outcome.expect_exit_code(0).expect_stderr(" closing signal SIGTERM");
}
