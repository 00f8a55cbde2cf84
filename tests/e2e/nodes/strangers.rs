//! Foreign clients at the store's port: garbage, an invalid state, and a state that is a program.

use std::path::Path;

use harness::{Fleet, Launch, Name, Scratch, Store, fixture, only_ours, oracle, payload};

use super::{Team, c10d};

#[test]
fn garbage_on_the_store_of_a_running_job() {
    if !only_ours() {
        return;
    }
    let Some(team) = Team::start(2, "2", &[]) else { return };
    let worker = fixture("worker").display().to_string();
    let said = team.fleet.run(0, &[&worker, "garbage=th1:29400,1000"]);
    assert_eq!(said, "garbage sent=1000\n");
    // No worker was restarted: the workers of the first round finish.
    assert_eq!(team.job(1).lines("seat rank=", 1).len(), 1);
    team.finishes(&[1, 2]);
}

const KEY: &str = "torch.rendezvous.job";

/// Overwrites the state of the job.
#[track_caller]
fn poison(value: &str, endpoint: &str, run: impl Fn(&[&str])) {
    let worker = fixture("worker").display().to_string();
    run(&[&worker, &format!("store-set={endpoint},{KEY},{value}")]);
}

#[test]
fn a_state_that_is_none_ends_a_running_job_with_one_error() {
    if !only_ours() {
        return;
    }
    for value in ["no base64 at all", "aGVsbG8="] {
        let Some(mut team) = Team::start(2, "2", &[]) else { return };
        poison(value, "th1:29400", |line| drop(team.fleet.run(0, line)));
        for host in [1, 2] {
            let outcome = team.take(host).wait();
            outcome.exits(1).complains(KEY).never_says("panicked");
        }
        team.ends();
    }
}

/// A pickle that touches a file when it is read by Python's own reader.
fn program(path: &Path) -> String {
    payload::base64(format!("cposix\nsystem\n(S'touch {}'\ntR.", path.display()).as_bytes())
}

#[track_caller]
fn reads_a_program(name: Name) -> bool {
    let (store, scratch) = (Store::open(), Scratch::new());
    let path = scratch.path().join("was-run");
    let endpoint = store.endpoint();
    let launch = c10d(name, &endpoint, "1").args(["--rdzv-conf", "is_host=0,join_timeout=5"]);
    let set = format!("store-set={endpoint},{KEY},{}", program(&path));
    // Without any launcher's variables it is a program like others.
    let worker = Launch::standalone(Name::Rankrun, 1).worker([&set]).run();
    worker.exits(0);
    let outcome = launch.worker(["seat"]).run();
    if name != Name::Reference {
        outcome.exits(1).complains(KEY).never_says("seat rank=").never_says("panicked");
    }
    path.exists()
}

#[test]
fn a_state_that_is_a_program_is_not_run() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        assert!(!reads_a_program(*name));
    }
}

/// Proves that the state is a program: a client that unpickles it runs it.
#[test]
fn torchrun_runs_it() {
    if oracle() || harness::soak() {
        assert!(reads_a_program(Name::Reference));
    }
}

#[test]
fn a_port_scanner_before_anybody_has_joined() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let own =
        |host| fleet.on(host, c10d(Name::Rankrun, super::ENDPOINT, "2").worker(["seat", "sum"])).start();
    let first = own(1);
    first.line("1 of 2");
    let worker = fixture("worker").display().to_string();
    fleet.run(0, &[&worker, "garbage=th1:29400,200"]);
    super::succeed([first, own(2)]);
    fleet.is_empty();
}
