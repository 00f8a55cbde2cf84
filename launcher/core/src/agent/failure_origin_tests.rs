//! Which node's failure ends a round of several nodes.

use super::rendezvous_tests::{
    failure_note, joined, joins, lost_node, lost_node_found, node, peer_failed, position, running, start,
};
use super::*;
use crate::agent::message::PeerNotice;
use crate::exit_code::TIME_LIMIT;
use crate::rendezvous::{LossRole, MembershipChange, RendezvousEnd};
use crate::spec::stop::TimeLimit;

#[test]
fn failure_is_reported_at_once_and_decided_after_lost_node_query() {
    let at = clock();
    let mut job = running(1, &at);
    let actions = job.handle(at(2), exited(0, 1, Exit::Code(7)));
    let is_tell_failure =
        |action: &Action| matches!(action, Action::TellFailure { end, .. } if end.local_rank.0 == 1);
    assert_eq!(position(&actions, is_tell_failure), Some(0), "before any worker is stopped");
    assert_eq!(signals(&actions), [(vec![0], Signal::SIGTERM)]);
    let actions = job.handle(at(3), exited(0, 0, killed_by(15)));
    assert_eq!(actions.last(), Some(&Action::FindLostNode));
    let actions = job.handle(at(3), Input::LostNodeFound(None));
    assert!(matches!(actions[0], Action::Emit(JobEvent::Restarting { .. })) && joins(&actions));
    assert_eq!(start(&job.handle(at(4), joined(1))), Some((1, 1, 1)), "its own failure is its own restart");

    let _ = job.handle(at(5), exited(1, 1, Exit::Code(7)));
    let _ = job.handle(at(6), exited(1, 0, killed_by(15)));
    let actions = job.handle(at(6), Input::LostNodeFound(None));
    let end = end(&actions).unwrap();
    assert_eq!((end.status, end.peer_notice), (ExitStatus::Code(7), PeerNotice::Failed));
    assert_eq!((&end.remote_end, &end.first_cause), (&None, &None));
}

#[test]
fn failure_caused_by_lost_node_uses_no_restart() {
    let at = clock();
    let mut job = running(0, &at);
    let _ = job.handle(at(2), exited(0, 1, Exit::Code(1)));
    let _ = job.handle(at(3), exited(0, 0, Exit::Code(1)));
    let actions = job.handle(at(3), lost_node_found());
    assert!(
        matches!(&actions[0], Action::Emit(JobEvent::Changed { change: MembershipChange::Lost(lost), .. })
            if *lost == lost_node(LossRole::CausesFailureHere))
    );
    assert!(joins(&actions));
    assert_eq!(start(&job.handle(at(4), joined(1))), Some((1, 0, 1)), "invariant 6");
    assert_eq!(job.handle(at(4), lost_node_found()), [], "no question was open");
}

#[test]
fn earlier_failure_of_peer_node_is_the_cause() {
    let at = clock();
    let mut job = running(0, &at);
    let _ = job.handle(at(2), exited(0, 1, Exit::Code(1)));
    let said = job.handle(at(2), peer_failed());
    assert!(matches!(&said[..], [Action::Emit(JobEvent::Changed { .. })]), "{said:?}");
    let actions = job.handle(at(3), exited(0, 0, killed_by(15)));
    assert!(joins(&actions) && !actions.contains(&Action::FindLostNode), "{actions:?}");
    let actions = job.handle(at(4), Input::RendezvousEnded(RendezvousEnd::Closed { failure: None }));
    let end = end(&actions).unwrap();
    assert_eq!(end.status, ExitStatus::Code(LAUNCHER_FAILED));
    assert_eq!(
        end.first_cause.as_deref(),
        Some(&failure_note()),
        "invariant 5: the closing peer named no cause, and it was known before"
    );
    assert_eq!((&end.failure, end.peer_notice), (&None, PeerNotice::Left), "a peer has closed");

    let mut job = running(0, &at);
    let _ = job.handle(at(2), exited(0, 1, Exit::Code(1)));
    let _ = job.handle(at(3), exited(0, 0, killed_by(15)));
    let _ = job.handle(at(3), peer_failed());
    assert!(joins(&job.handle(at(3), Input::LostNodeFound(None))), "it came while the question was open");
}

#[test]
fn lost_node_query_without_answer_times_out() {
    let at = clock();
    let mut job = running(1, &at);
    let _ = job.handle(at(2), exited(0, 1, Exit::Code(1)));
    let _ = job.handle(at(3), exited(0, 0, killed_by(15)));
    assert_eq!(job.handle(at(10), Input::DeadlinePassed), []);
    assert!(joins(&job.handle(at(11), Input::DeadlinePassed)), "its own restart");
}

#[test]
fn peer_failure_during_lost_node_query_counts_after_time_limit() {
    let at = clock();
    let mut job = node(0, CliFlavor::Rankrun);
    job.rules.time_limit = Some(TimeLimit { limit: Duration::from_secs(4), warning: None });
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), joined(0));
    let _ = job.handle(at(2), exited(0, 1, Exit::Code(7)));
    let _ = job.handle(at(3), exited(0, 0, killed_by(15)));
    let _ = job.handle(at(3), peer_failed());
    let actions = job.handle(at(5), Input::DeadlinePassed);
    let end = end(&actions).unwrap();
    assert_eq!((end.status, &end.failure), (ExitStatus::Code(TIME_LIMIT), &None), "invariant 8");
}
