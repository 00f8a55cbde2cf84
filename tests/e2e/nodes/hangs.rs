//! Ranks of several nodes that make no progress: one sentence names them all, on every node.

use harness::{Fleet, Job, Launch, Name, Outcome, is_rankrun};

use super::{ENDPOINT, c10d, static_launch};

/// One rank on each of two hosts. In step 10 of the first attempt rank 1, on host 2, does what `how` says.
fn outcomes(own: impl Fn(usize) -> Launch, how: &str) -> Option<Vec<Outcome>> {
    let fleet = Fleet::start(2)?;
    let start = |host| {
        let launch = own(host).args(["--hang-timeout", "1", "--max-restarts", "1"]);
        fleet.on(host, launch.worker([format!("march={how},20,5")])).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let outcomes: Vec<Outcome> = jobs.into_iter().map(Job::wait).collect();
    for outcome in &outcomes {
        outcome.expect_exit_code(0).expect_absent("panicked");
    }
    fleet.is_empty();
    Some(outcomes)
}

#[test]
fn hang_of_one_node_names_waiting_ranks_of_other_nodes() {
    if !is_rankrun() {
        return;
    }
    for how in ["stop", "sleep"] {
        let own = |host| match how {
            "stop" => c10d(Name::Rankrun, ENDPOINT, "2"),
            _ => static_launch(Name::Rankrun, "th1", 2, host - 1),
        };
        let Some(outcomes) = outcomes(own, how) else { return };
        let sentence = "rank 0 waits in all_reduce #10; rank 1 has made no progress for ";
        outcomes.iter().for_each(|outcome| _ = outcome.expect_stderr(sentence));
        // The node of the rank that hangs stops it; the other node is told.
        outcomes[1].expect_stderr("waiting up to 30 s for 1 worker to stop");
        outcomes[0].expect_stderr("failed: hang: ");
    }
}

/// Each for four times the limit: alone, host 2 would take its waiting rank for one that hangs.
#[test]
fn rank_that_works_on_other_node_is_not_a_hang() {
    if !is_rankrun() {
        return;
    }
    let Some(outcomes) = outcomes(|_| c10d(Name::Rankrun, ENDPOINT, "2"), "evaluate") else { return };
    outcomes.iter().for_each(|outcome| _ = outcome.expect_absent("no progress").expect_stdout("attempt=0"));
    outcomes[0]
        .expect_stderr("rank 1 waits in barrier #10; rank 0 has worked in section evaluate at step 10 for ");
}
