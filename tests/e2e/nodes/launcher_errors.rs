//! One launcher has an error of its own, which ends the job: every other node tells it, with the node.

use harness::{Fleet, Job, Launch, Name, Outcome, Scratch, is_rankrun};

use super::{ENDPOINT, c10d, static_launch};

#[track_caller]
fn run(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<Outcome> {
    let jobs: Vec<_> = fleet.hosts().map(|host| fleet.on(host, launch(host)).start()).collect();
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    for outcome in &outcomes {
        outcome.expect_exit_code(1).expect_absent("panicked").expect_absent("is lost");
    }
    fleet.is_empty();
    outcomes
}

/// Each node in turn: the host of the store, and another one.
#[test]
fn start_failure_on_one_node_is_the_cause_on_every_node() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let scratch = Scratch::new();
    // The others have another program of this name.
    let program = format!("{}/worker", scratch.folder("bad", 0o777));
    fleet.shell(1, &format!("printf '#!/no/interpreter\\n' > {program}; chmod 755 {program}"));
    let dynamic =
        |host: usize| c10d(Name::Rankrun, ENDPOINT, "1:3").args(["--node-rank", &format!("{host}")]);
    let static_ = |host| static_launch(Name::Rankrun, "th1", 3, host - 1);
    for (own, bad) in [(dynamic as fn(usize) -> Launch, 1), (dynamic, 2), (static_, 1), (static_, 2)] {
        let outcomes = run(&fleet, |host| {
            let launch = own(host).args(["--max-restarts", "1"]);
            if host == bad {
                launch.args(["--no-python", &program])
            } else {
                launch.worker(["place", "forever"])
            }
        });
        let cause = format!("cannot start rank {}: `{program}`", bad - 1);
        for (host, outcome) in (1..).zip(&outcomes) {
            if host == bad {
                outcome.expect_stderr(&cause);
            } else {
                let node = format!("node {} (th{bad}, {})", bad - 1, Fleet::address(bad));
                let why = format!("{cause}: its first line names `/no/interpreter`, which does not exist");
                outcome.expect_stderr(&format!("{node} has ended the job: {why}"));
                outcome.expect_stderr(&format!("hint: the launcher on {node} says more"));
            }
        }
    }
}

/// It has the store and rank 0, and the only port of the range is the store's own.
#[test]
fn store_host_without_free_port_is_the_cause_on_every_node() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let outcomes = run(&fleet, |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "3").args(["--node-rank", &host.to_string()]);
        launch.args(["--port-range", "29400-29400"]).worker(["place"])
    });
    let cause = "every port from `29400` to `29400` is in use";
    outcomes[0].expect_stderr(cause);
    for outcome in &outcomes[1..] {
        outcome.expect_stderr(&format!("node 0 (th1, 198.18.0.11) has ended the job: {cause}"));
    }
}

/// As of a variable that is not set in a job's script.
#[test]
fn empty_rdzv_id_of_several_nodes_is_refused() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch = c10d(*name, ENDPOINT, "2").args(["--rdzv-id="]).worker(["place"]);
        let cause = "`--rdzv-id` is empty, and each of 2 nodes would make up a run id that no other node has";
        launch
            .run()
            .expect_exit_code(1)
            .expect_stderr(cause)
            .expect_stderr("hint: give all nodes the same name, as in `--rdzv-id NAME`");
    }
}
