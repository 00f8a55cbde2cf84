//! The lease of this node, and its second stop signal: what the loop asks the state before it has an input.

use super::rendezvous_tests::{joined, peer_lost, running};
use super::*;
use crate::rendezvous::lease_deadlines::LeaseDeadlines;
use crate::rendezvous::{MembershipChange, RendezvousEnd};

fn cut_off(kill_by: Instant) -> Option<Input> {
    Some(Input::Changed(MembershipChange::CutOff { kill_by }))
}

#[test]
fn end_of_lease_cuts_node_off_once() {
    let at = clock();
    let lease = |stop_at, kill_by| Some(LeaseDeadlines { stop_at: at(stop_at), kill_by: at(kill_by) });
    let mut job = running(0, &at);
    assert_eq!(job.lease_deadline(lease(4, 5)), Some(at(4)));
    assert_eq!(job.check_lease(at(3), lease(4, 5)), None);
    assert_eq!(job.check_lease(at(4), lease(4, 5)), cut_off(at(5)));
    assert_eq!((job.check_lease(at(4), lease(4, 5)), job.lease_deadline(lease(4, 5))), (None, None), "once");
    assert_eq!(job.workers_killed_by_guard(at(5)), None, "known");
    assert_eq!(job.lease_deadline(lease(6, 7)), Some(at(6)), "the store has answered again");
    assert_eq!(job.lease_deadline(None), None);
}

#[test]
fn workers_killed_by_guard_are_reported_once() {
    let at = clock();
    let lease = Some(LeaseDeadlines { stop_at: at(4), kill_by: at(5) });
    let mut job = running(0, &at);
    assert_eq!(job.workers_killed_by_guard(at(5)), Some(Input::Changed(MembershipChange::StoodStill)));
    assert_eq!((job.workers_killed_by_guard(at(5)), job.check_lease(at(6), lease)), (None, None));
}

/// The loop acts long before the end of the lease, unless its process stands still.
#[test]
fn launcher_that_slept_through_its_lease_stood_still() {
    let at = clock();
    let lease = Some(LeaseDeadlines { stop_at: at(4), kill_by: at(5) });
    let stood_still = Some(Input::Changed(MembershipChange::StoodStill));
    let mut job = running(0, &at);
    assert_eq!(job.check_lease(at(5), lease), stood_still);
    assert_eq!((job.check_lease(at(6), lease), job.workers_killed_by_guard(at(5))), (None, None), "once");
    // The loop acts on a suspended job at the end of its lease only.
    let mut job = running(0, &at);
    job.rules.may_have_peers = true;
    let _ = job.handle(at(1), Input::SuspendRequested);
    assert_eq!(job.check_lease(at(5), lease), cut_off(at(5)));
}

#[test]
fn lease_without_workers_has_no_deadline() {
    let at = clock();
    let lease = Some(LeaseDeadlines { stop_at: at(2), kill_by: at(3) });
    let mut job = running(0, &at);
    let _ = job.handle(at(1), peer_lost());
    for rank in [0, 1] {
        let _ = job.handle(at(1), exited(0, rank, killed_by(15)));
    }
    assert_eq!(
        (job.lease_deadline(lease), job.check_lease(at(9), lease)),
        (None, None),
        "between two rounds"
    );
    let _ = job.handle(at(9), joined(1));
    let lease = Some(LeaseDeadlines { stop_at: at(9), kill_by: at(10) });
    assert_eq!(job.check_lease(at(9), lease), cut_off(at(10)));
}

#[test]
fn suspended_workers_of_one_node_outlive_lease() {
    let at = clock();
    let lease = Some(LeaseDeadlines { stop_at: at(2), kill_by: at(3) });
    for (may_have_peers, deadline) in [(false, None), (true, Some(at(3)))] {
        let mut job = running(0, &at);
        job.rules.may_have_peers = may_have_peers;
        let _ = job.handle(at(1), Input::SuspendRequested);
        assert_eq!(job.lease_deadline(lease), deadline);
    }
}

#[test]
fn failed_rendezvous_ends_its_lease() {
    let at = clock();
    let lease = Some(LeaseDeadlines { stop_at: at(2), kill_by: at(3) });
    let over = || {
        Input::RendezvousEnded(RendezvousEnd::Failed { kill_by: Some(at(3)), error: rendezvous_failure() })
    };
    let mut job = running(0, &at);
    assert_eq!(signals(&job.handle(at(1), over())), [(vec![0, 1], Signal::SIGTERM)]);
    assert_eq!(job.check_lease(at(2), lease), None);
    // The lease ends in the turn in which the rendezvous fails: both are in the queue.
    let mut job = running(0, &at);
    let change = job.check_lease(at(2), lease).unwrap();
    let _ = job.handle(at(2), over());
    assert_eq!(job.handle(at(2), change), [], "the user is told once");
}

#[test]
fn second_stop_of_user_is_a_second_request() {
    let mut job = new_job(1, 0, CliFlavor::Rankrun);
    let expected =
        [false, true, true].map(|is_second| Input::StopRequested { signal: Signal::SIGTERM, is_second });
    assert_eq!([(); 3].map(|()| job.stop_by_guard(Signal::SIGTERM)), expected);
    assert_eq!([(); 3].map(|()| job.stop_by_client()), expected, "with the signal it is one stop");
}
