//! Which worker reads the terminal, and what the others read.

use harness::{Launch, Name};

#[test]
fn all_workers_share_it() {
    for name in Name::both() {
        let mut launch = Launch::standalone(*name, 2).stdin_open();
        if *name == Name::Rankrun {
            launch = launch.args(["--stdin", "all"]);
        }
        let mut job = launch.worker(["read"]).start();
        job.type_text("a\n");
        job.line("text=<a>");
        job.type_text("b\n");
        let outcome = job.wait();
        outcome.exits(0).says("text=<b>");
        assert_eq!(outcome.lines_with("read rank=0").len(), 1, "{outcome}");
        assert_eq!(outcome.lines_with("read rank=1").len(), 1, "{outcome}");
    }
}

#[test]
fn one_worker_reads_and_the_others_see_the_end() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--stdin", "1"]).stdin("for one\n");
    let outcome = launch.worker(["read"]).run();
    outcome.exits(0).says("read rank=1 text=<for one>").says("read rank=0 text=<>");
}

#[test]
fn nobody_reads() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--stdin", "none"]).stdin("for nobody\n");
    let outcome = launch.worker(["read"]).run();
    outcome.exits(0).says("read rank=0 text=<>").says("read rank=1 text=<>");
}

#[test]
fn a_rank_that_is_not_there_is_refused() {
    let outcome = Launch::standalone(Name::Rankrun, 2).args(["--stdin", "2"]).worker(["print=started"]).run();
    outcome.complains("error:").complains("2").never_says("started");
    assert!(!outcome.status.success(), "{outcome}");
}

#[test]
fn torchrun_has_no_such_option() {
    let outcome =
        Launch::standalone(Name::Torchrun, 2).args(["--stdin", "none"]).worker(["print=started"]).run();
    outcome.exits(2).never_says("started");
}
