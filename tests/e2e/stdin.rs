//! Which worker reads the terminal, and what the others read.

use harness::{Launch, Name};

#[test]
fn stdin_all_is_shared_by_workers() {
    for name in Name::both() {
        let mut launch = Launch::standalone(*name, 2).stdin_open();
        if *name == Name::Rankrun {
            launch = launch.args(["--stdin", "all"]);
        }
        let mut job = launch.worker(["read"]).start();
        job.type_text("a\n");
        job.wait_for_line("text=<a>");
        job.type_text("b\n");
        let outcome = job.wait();
        outcome.expect_exit_code(0).expect_stdout("text=<b>");
        assert_eq!(outcome.lines_with("read rank=0").len(), 1, "{outcome}");
        assert_eq!(outcome.lines_with("read rank=1").len(), 1, "{outcome}");
    }
}

#[test]
fn stdin_rank_reads_and_other_ranks_get_eof() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--stdin", "1"]).stdin("for one\n");
    let outcome = launch.worker(["read"]).run();
    outcome
        .expect_exit_code(0)
        .expect_stdout("read rank=1 text=<for one>")
        .expect_stdout("read rank=0 text=<>");
}

#[test]
fn stdin_none_gives_all_ranks_eof() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--stdin", "none"]).stdin("unread\n");
    let outcome = launch.worker(["read"]).run();
    outcome.expect_exit_code(0).expect_stdout("read rank=0 text=<>").expect_stdout("read rank=1 text=<>");
}

#[test]
fn stdin_of_missing_rank_is_refused() {
    let outcome = Launch::standalone(Name::Rankrun, 2).args(["--stdin", "2"]).worker(["print=started"]).run();
    outcome.expect_stderr("error:").expect_stderr("2").expect_absent("started");
    assert!(!outcome.status.success(), "{outcome}");
}

#[test]
fn stdin_option_under_torchrun_name_is_refused() {
    let outcome =
        Launch::standalone(Name::Torchrun, 2).args(["--stdin", "none"]).worker(["print=started"]).run();
    outcome.expect_exit_code(2).expect_absent("started");
}
