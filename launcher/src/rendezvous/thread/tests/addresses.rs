//! Endpoints and addresses: where nobody listens, what means nothing, and what is said of one's own.

use std::net::{TcpListener, TcpStream};

use super::*;

#[test]
fn nobody_listens() {
    let mut job = Job::at(&store(), 1, 1);
    job.times.connect = Duration::from_millis(300);
    let error = job.agent().failed();
    assert!(matches!(&error, RendezvousError::Unreachable { .. }), "{error}");
}

#[test]
fn a_host_name_that_means_nothing() {
    let mut job = Job::at(&store(), 1, 1);
    job.host = "no-such-host.invalid".to_owned();
    job.is_host = None;
    job.times.connect = Duration::from_millis(300);
    let error = job.agent().failed();
    assert!(matches!(&error, RendezvousError::NoSuchHost { host, .. } if *host == job.host), "{error}");
    assert!(error.to_string().contains("`no-such-host.invalid`, which `--rdzv-endpoint` names"), "{error}");
}

#[test]
fn a_port_of_somebody_else_is_no_store() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut job = Job { is_host: Some(true), ..Job::at(&store(), 1, 1) };
    job.port = taken.local_addr().unwrap().port();
    let error = Rendezvous::open(job.setup()).unwrap_err();
    assert!(error.to_string().contains(&job.port.to_string()), "{error}");
}

#[test]
fn an_interface_that_is_not_there_is_refused_at_once() {
    let mut setup = Job::at(&store(), 1, 1).setup();
    setup.network.iface = Some("nope0".to_owned());
    let error = Rendezvous::open(setup).unwrap_err();
    assert!(error.to_string().contains("`nope0`") && error.to_string().contains("`lo`"), "{error}");
}

#[test]
fn the_address_is_said() {
    let store = store();
    let mut setup = Job::at(&store, 2, 2).setup();
    setup.network.iface = Some("lo".to_owned());
    let agent = Agent::of(setup);
    agent.join();
    let note = agent.note();
    assert!(note.contains("`127.0.0.1`") && note.ends_with("the address of `lo`"), "{note}");
}

#[test]
fn an_endpoint_of_the_loopback_leaves_the_store_open_to_others() {
    let is_open = |iface: Option<&str>| {
        let job = hosted(2, 2);
        let mut setup = job.setup();
        setup.network.iface = iface.map(str::to_owned);
        let _agent = Agent::of(setup);
        TcpStream::connect(("127.0.0.1", job.port)).unwrap();
        // An address of the loopback too, but another one.
        TcpStream::connect(("127.0.0.2", job.port)).is_ok()
    };
    assert!(is_open(None));
    assert!(!is_open(Some("lo")));
}

#[test]
fn a_given_address_of_another_machine_is_told_once() {
    let store = store();
    let mut setup = Job::at(&store, 2, 2).setup();
    let RendezvousSpec::C10d { local_addr, .. } = &mut setup.spec else { panic!("a job of many nodes") };
    *local_addr = Some("203.0.113.7".to_owned());
    let agent = Agent::of(setup);
    agent.join();
    let note = agent.note();
    assert!(note.starts_with("`--local-addr` is `203.0.113.7`, which no interface"), "{note}");
    assert!(agent.note().ends_with("reach this one at `203.0.113.7`, as `--local-addr` says"));
}
