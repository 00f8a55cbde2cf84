//! A rank of a gloo job that exits with 0 too early.

use harness::Name;

use crate::programs::script;

/// The rank that waits in `all_reduce` fails, and its partner is named.
#[test]
fn gloo_rank_early_exit_is_probable_cause() {
    let outcome = script(Name::Rankrun, "early_exit.py").args(["reduce"]).run();
    outcome.expect_exit_code(1).expect_absent("the sum of a rank that is gone");
    outcome.expect_stderr("error: rank 0 failed first: exit code 1\n");
    outcome.expect_stderr("\n  cause     probably an early end: rank 1 had exited with 0, ");
    outcome
        .expect_stderr(" s before; rank 0 reports a lost peer (`")
        .expect_stderr("\n  others    rank 1: exit code 0, ");
}

/// An error of its own is not put down to the rank that is gone.
#[test]
fn gloo_rank_with_own_error_is_cause() {
    let outcome = script(Name::Rankrun, "early_exit.py").args(["raise"]).run();
    outcome
        .expect_exit_code(1)
        .expect_stderr("error: rank 0 failed first: exit code 1\n")
        .expect_stderr("ValueError: the loss is nan");
    outcome.expect_absent("probably");
}
