//! Endpoints without a listener, names without an address, and the address that a node publishes.

use std::net::{TcpListener, TcpStream};

use super::*;

#[test]
fn closed_endpoint_port_is_unreachable_error() {
    let mut job = Job::at(&store(), 1, 1);
    job.times.connect = Duration::from_millis(300);
    let error = job.agent().failed();
    assert!(matches!(&error, RendezvousError::Unreachable { .. }), "{error}");
}

#[test]
fn unresolvable_endpoint_host_is_named_in_error() {
    let mut job = Job::at(&store(), 1, 1);
    job.host = "no-such-host.invalid".to_owned();
    job.is_host = None;
    job.times.connect = Duration::from_millis(300);
    let error = job.agent().failed();
    assert!(matches!(&error, RendezvousError::NoSuchHost { host, .. } if *host == job.host), "{error}");
    assert!(error.to_string().contains("`no-such-host.invalid`, which `--rdzv-endpoint` names"), "{error}");
}

#[test]
fn port_of_another_program_is_refused_for_hosting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut job = Job { is_host: Some(true), ..Job::at(&store(), 1, 1) };
    job.port = taken.local_addr().unwrap().port();
    let error = NetworkRendezvous::open(job.setup()).unwrap_err();
    assert!(error.to_string().contains(&job.port.to_string()), "{error}");
}

#[test]
fn unknown_interface_is_refused_at_open() {
    let mut setup = Job::at(&store(), 1, 1).setup();
    setup.network.iface = Some("nope0".to_owned());
    let error = NetworkRendezvous::open(setup).unwrap_err();
    assert!(error.to_string().contains("`nope0`") && error.to_string().contains("`lo`"), "{error}");
}

#[test]
fn chosen_address_is_reported_in_a_note() {
    let store = store();
    let mut setup = Job::at(&store, 2, 2).setup();
    setup.network.iface = Some("lo".to_owned());
    let agent = Agent::of(setup);
    agent.join();
    let note = agent.note();
    assert!(note.contains("`127.0.0.1`") && note.ends_with("the address of `lo`"), "{note}");
}

#[test]
fn loopback_endpoint_store_listens_on_all_without_interface() {
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
fn foreign_local_addr_is_warned_about_once() {
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
