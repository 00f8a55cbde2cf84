//! Agents of two protocols at one store: the newcomer prints both versions and ends; the others run on.
//!
//! There is one build to test. The test edits the version that its agents wrote to the store, so that a later agent
//! reads another protocol.

use harness::{Fleet, Gate, Name, Outcome, fixture, is_rankrun};
use rankrun_core::rendezvous::descriptor::PROTOCOL;

use super::{ENDPOINT, LEASE, Team, assert_all_succeed, c10d, static_launch};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How an agent of another protocol begins what it says of itself.
const OTHER_VERSION: &str = r#"{"protocol":99,"version":"9.9.9","#;

/// How one of this build does.
fn own_version_prefix() -> String {
    format!(r#"{{"protocol":{PROTOCOL},"version":"{VERSION}","#)
}

/// Puts one text in place of another in what the agents have said of themselves.
#[track_caller]
fn replace_in_store(fleet: &Fleet, agents: &str, from: &str, to: &str) {
    let worker = fixture("worker").display().to_string();
    let _ = fleet.run(0, &[&worker, &format!("store-edit={ENDPOINT}|{agents}|{from}|{to}")]);
}

#[track_caller]
fn assert_refused(outcome: &Outcome) {
    outcome.expect_exit_code(1).expect_absent("place rank=").expect_absent("panicked");
    outcome.expect_stderr(&format!("rankrun {VERSION} (protocol {PROTOCOL})"));
    outcome.expect_stderr("9.9.9 (protocol 99)").expect_stderr("the same version of rankrun");
}

#[test]
fn joining_agent_of_other_protocol_is_refused() {
    if !is_rankrun() {
        return;
    }
    let Some(mut team) = Team::start(2, "2:3", &[]) else { return };
    replace_in_store(
        &team.fleet,
        "/torch.rendezvous.job/rankrun/agent/",
        &own_version_prefix(),
        OTHER_VERSION,
    );
    let newcomer = c10d(Name::Rankrun, ENDPOINT, "2:3").args(["--lease", LEASE]).worker(["place"]);
    assert_refused(&team.fleet.on(0, newcomer).run());
    team.gate.open(2);
    for host in [1, 2] {
        let outcome = team.take_job(host).wait();
        outcome.expect_exit_code(0).expect_stdout("finished").expect_absent("panicked");
        // The first generation of workers is the last.
        assert_eq!(outcome.lines_with("place rank=").len(), 1, "{outcome}");
    }
    team.wait_for_all();
}

/// In a static job, too, where the one that waits is found by its node rank.
#[test]
fn static_node_of_other_protocol_is_refused() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let gate = Gate::closed();
    let own = |host| {
        let launch = static_launch(Name::Rankrun, "th1", 2, host - 1);
        fleet.on(host, launch.worker(["place", "sum", &gate.step()]))
    };
    let first = own(1).start();
    first.wait_for_line("1 of 2");
    replace_in_store(&fleet, "/none/rankrun/agent/", &own_version_prefix(), OTHER_VERSION);
    assert_refused(&own(2).run());
    // The same version again: nothing has become of the one that waits.
    replace_in_store(&fleet, "/none/rankrun/agent/", OTHER_VERSION, &own_version_prefix());
    let jobs = [first, own(2).start()];
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
    gate.open(2);
    for outcome in assert_all_succeed(jobs) {
        assert_eq!(outcome.lines_with("place rank=").len(), 1, "{outcome}");
    }
    fleet.is_empty();
}
