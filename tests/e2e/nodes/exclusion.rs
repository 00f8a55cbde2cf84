//! Nodes that the job leaves out: by name, and when their workers fail first too often.

use harness::{Fleet, Gate, Job, Launch, Name, is_rankrun};

use super::{ENDPOINT, c10d};

fn node_of_two_or_three() -> Launch {
    c10d(Name::Rankrun, ENDPOINT, "2:3").args(["--max-restarts", "5"])
}

#[test]
fn node_that_fails_too_often_leaves_and_the_others_go_on() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let gate = Gate::closed();
    let start = |host: usize| {
        let launch = node_of_two_or_three().args(["--exclude-node-after", "2/2"]);
        let end = if host == 3 { "exit=7".to_owned() } else { gate.step() };
        fleet.on(host, launch.worker(["place", "sum", &end, "print=finished"])).start()
    };
    let mut jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let failing = jobs.remove(2).wait();
    failing
        .expect_exit_code(1)
        .expect_stderr("failed first: exit code 7")
        .expect_stderr("this node leaves the job, since its workers failed first too often")
        .expect_absent("panicked");
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
    gate.open(2);
    for outcome in jobs.into_iter().map(Job::wait) {
        outcome.expect_exit_code(0).expect_stdout("finished");
        // Both rounds ended by its failure, the second too, after which it left.
        let failures = outcome.lines_with("failed: exit code 7");
        assert!(failures.len() == 2 && failures.iter().all(|line| line.contains("(th3, ")), "{outcome}");
        outcome.expect_absent("wants to take part").expect_absent("is lost");
    }
    fleet.is_empty();
}

#[test]
fn node_that_is_named_takes_no_part() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let start = |host| {
        let launch = node_of_two_or_three().args(["--exclude-node", "th9,th3"]);
        fleet.on(host, launch.worker(["place", "sum", "print=finished"])).start()
    };
    let outcomes: Vec<_> = fleet.hosts().map(start).collect::<Vec<_>>().into_iter().map(Job::wait).collect();
    for outcome in &outcomes[..2] {
        outcome.expect_exit_code(0).expect_stdout("world=2");
    }
    outcomes[2]
        .expect_exit_code(0)
        .expect_stderr("this node takes no part: `--exclude-node` names `th3`")
        .expect_absent("place rank=");
    fleet.is_empty();
}
