//! Foreign clients at the store's port: garbage, an invalid state, and a state that is a program.

use std::path::Path;

use harness::{Fleet, Launch, Name, Scratch, Store, fixture, is_rankrun, is_torchrun, payload};

use super::{Team, c10d};

#[test]
fn garbage_on_store_port_does_not_disturb_job() {
    if !is_rankrun() {
        return;
    }
    let Some(team) = Team::start(2, "2", &[]) else { return };
    let worker = fixture("worker").display().to_string();
    let output = team.fleet.run(0, &[&worker, "garbage=th1:29400,1000"]);
    assert_eq!(output, "garbage sent=1000\n");
    // No worker was restarted: the workers of the first round finish.
    assert_eq!(team.job(1).wait_for_lines("place rank=", 1).len(), 1);
    team.finish(&[1, 2]);
}

const KEY: &str = "torch.rendezvous.job";

/// Overwrites the state of the job.
#[track_caller]
fn overwrite_state(value: &str, endpoint: &str, run: impl Fn(&[&str])) {
    let worker = fixture("worker").display().to_string();
    run(&[&worker, &format!("store-set={endpoint},{KEY},{value}")]);
}

#[test]
fn invalid_rendezvous_state_ends_job_with_one_error() {
    if !is_rankrun() {
        return;
    }
    for value in ["no base64 at all", "aGVsbG8="] {
        let Some(mut team) = Team::start(2, "2", &[]) else { return };
        overwrite_state(value, "th1:29400", |line| drop(team.fleet.run(0, line)));
        for host in [1, 2] {
            let outcome = team.take_job(host).wait();
            outcome.expect_exit_code(1).expect_stderr(KEY).expect_absent("panicked");
        }
        team.wait_for_all();
    }
}

/// A pickle that touches a file when it is read by Python's own reader.
fn malicious_pickle(path: &Path) -> String {
    payload::base64(format!("cposix\nsystem\n(S'touch {}'\ntR.", path.display()).as_bytes())
}

#[track_caller]
fn run_with_malicious_state(name: Name) -> bool {
    let (store, scratch) = (Store::open(), Scratch::new());
    let path = scratch.path().join("was-run");
    let endpoint = store.endpoint();
    let launch = c10d(name, &endpoint, "1").args(["--rdzv-conf", "is_host=0,join_timeout=5"]);
    let set = format!("store-set={endpoint},{KEY},{}", malicious_pickle(&path));
    // Without any launcher's variables it is a program like others.
    let worker = Launch::standalone(Name::Rankrun, 1).worker([&set]).run();
    worker.expect_exit_code(0);
    let outcome = launch.worker(["place"]).run();
    if name != Name::Reference {
        outcome.expect_exit_code(1).expect_stderr(KEY).expect_absent("place rank=").expect_absent("panicked");
    }
    path.exists()
}

#[test]
fn malicious_pickle_state_is_not_executed() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        assert!(!run_with_malicious_state(*name));
    }
}

/// Proves that the state is a program: a client that unpickles it runs it.
#[test]
fn malicious_pickle_state_is_executed_by_torchrun() {
    if is_torchrun() || harness::is_soak() {
        assert!(run_with_malicious_state(Name::Reference));
    }
}

#[test]
fn port_scan_before_first_join_does_not_disturb_job() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let own =
        |host| fleet.on(host, c10d(Name::Rankrun, super::ENDPOINT, "2").worker(["place", "sum"])).start();
    let first = own(1);
    first.wait_for_line("1 of 2");
    let worker = fixture("worker").display().to_string();
    fleet.run(0, &[&worker, "garbage=th1:29400,200"]);
    super::assert_all_succeed([first, own(2)]);
    fleet.is_empty();
}
