//! Agents of two protocols at one store: the newcomer prints both versions and ends; the others run on.
//!
//! There is one build to test. The test edits the version that its agents wrote to the store, so that a later agent
//! reads another protocol.

use harness::{Fleet, Gate, Name, Outcome, fixture, only_ours};
use rankrun::rendezvous::descriptor::PROTOCOL;

use super::{ENDPOINT, LEASE, Team, c10d, fixed, succeed};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How an agent of another protocol begins what it says of itself.
const THEIRS: &str = r#"{"protocol":99,"version":"9.9.9","#;

/// How one of this build does.
fn ours() -> String {
    format!(r#"{{"protocol":{PROTOCOL},"version":"{VERSION}","#)
}

/// Puts one text in place of another in what the agents have said of themselves.
#[track_caller]
fn edit(fleet: &Fleet, agents: &str, from: &str, to: &str) {
    let worker = fixture("worker").display().to_string();
    let _ = fleet.run(0, &[&worker, &format!("store-edit={ENDPOINT}|{agents}|{from}|{to}")]);
}

#[track_caller]
fn is_refused(outcome: &Outcome) {
    outcome.exits(1).never_says("seat rank=").never_says("panicked");
    outcome.complains(&format!("rankrun {VERSION} (protocol {PROTOCOL})"));
    outcome.complains("9.9.9 (protocol 99)").complains("the same version of rankrun");
}

#[test]
fn a_newcomer_among_agents_of_another_protocol_goes() {
    if !only_ours() {
        return;
    }
    let Some(mut team) = Team::start(2, "2:3", &[]) else { return };
    edit(&team.fleet, "/torch.rendezvous.job/rankrun/agent/", &ours(), THEIRS);
    let newcomer = c10d(Name::Rankrun, ENDPOINT, "2:3").args(["--lease", LEASE]).worker(["seat"]);
    is_refused(&team.fleet.on(0, newcomer).run());
    team.gate.open(2);
    for host in [1, 2] {
        let outcome = team.take(host).wait();
        outcome.exits(0).says("finished").never_says("panicked");
        // The first generation of workers is the last.
        assert_eq!(outcome.lines_with("seat rank=").len(), 1, "{outcome}");
    }
    team.ends();
}

/// In a static job, too, where the one that waits is found by its node rank.
#[test]
fn a_second_static_node_of_another_protocol_goes() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let gate = Gate::closed();
    let own = |host| {
        let launch = fixed(Name::Rankrun, "th1", 2, host - 1);
        fleet.on(host, launch.worker(["seat", "sum", &gate.step()]))
    };
    let first = own(1).start();
    first.line("1 of 2");
    edit(&fleet, "/none/rankrun/agent/", &ours(), THEIRS);
    is_refused(&own(2).run());
    // The same version again: nothing has become of the one that waits.
    edit(&fleet, "/none/rankrun/agent/", THEIRS, &ours());
    let jobs = [first, own(2).start()];
    jobs.iter().for_each(|job| drop(job.line("world=2 total=3")));
    gate.open(2);
    for outcome in succeed(jobs) {
        assert_eq!(outcome.lines_with("seat rank=").len(), 1, "{outcome}");
    }
    fleet.is_empty();
}
