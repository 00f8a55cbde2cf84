//! A rank of a gloo job that exits with 0 too early.

use harness::Name;

use crate::programs::script;

/// The rank that waits in `all_reduce` fails, and its partner is named.
#[test]
fn gloo_rank_that_exits_early_is_named_as_the_probable_cause() {
    let outcome = script(Name::Rankrun, "early_exit.py").args(["reduce"]).run();
    outcome.exits(1).never_says("the sum of a rank that is gone");
    outcome.complains("error: rank 0 failed first: exit code 1\n");
    outcome.complains("\n  cause     probably an early end: rank 1 had exited with 0, ");
    outcome
        .complains(" s before; rank 0 reports a lost peer (`")
        .complains("\n  others    rank 1: exit code 0, ");
}

/// An error of its own is not put down to the rank that is gone.
#[test]
fn gloo_rank_with_an_error_of_its_own_is_the_cause() {
    let outcome = script(Name::Rankrun, "early_exit.py").args(["raise"]).run();
    outcome
        .exits(1)
        .complains("error: rank 0 failed first: exit code 1\n")
        .complains("ValueError: the loss is nan");
    outcome.never_says("probably");
}
