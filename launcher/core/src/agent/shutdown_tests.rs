//! How a job of several nodes ends on this node, and what the other nodes are told.

use super::rendezvous_tests::{failure_note, joined, joins, node, peer_lost, running};
use super::*;
use crate::agent::message::PeerNotice;
use crate::rendezvous::note::{RuleEnd, RuleNote};
use crate::rendezvous::{FailureNote, MembershipChange, NodeName, RendezvousEnd};
use crate::spec::stop::{StopReason, TimeLimit};

#[test]
fn signal_ends_every_wait_for_peers_and_leaves_job_open() {
    let at = clock();
    let end_of = |job: &mut SweptState| {
        let actions = job.handle(at(9), stop(Signal::SIGTERM, false));
        let end = end(&actions).expect("invariant 10").clone();
        assert_eq!((end.peer_notice, end.stopped_by), (PeerNotice::Left, Some(Signal::SIGTERM)));
        assert_eq!(job.handle(at(10), joined(1)), [], "invariant 7");
        end.status
    };
    for (cli_flavor, before, after) in [
        (CliFlavor::Rankrun, ExitStatus::Code(143), ExitStatus::Code(143)),
        (CliFlavor::Torchrun, ExitStatus::Signal(15), ExitStatus::Code(1)),
    ] {
        let mut job = node(1, cli_flavor);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(end_of(&mut job), before, "contract 3.3: before the first start");

        let run = |inputs: &[Input]| {
            let mut job = node(1, cli_flavor);
            let _ = job.handle(at(0), Input::Ready);
            let _ = job.handle(at(1), joined(0));
            for input in inputs {
                let _ = job.handle(at(2), input.clone());
            }
            job
        };
        let (failed, stopped) = (exited(0, 0, Exit::Code(1)), exited(0, 1, killed_by(15)));
        let succeeded = |rank| exited(0, rank, Exit::Code(0));
        for mut job in [
            run(&[peer_lost(), exited(0, 0, killed_by(15)), stopped.clone()]),
            run(&[failed.clone(), stopped.clone()]),
            run(&[failed.clone(), stopped.clone(), Input::LostNodeFound(None)]),
            run(&[succeeded(0), succeeded(1)]),
        ] {
            assert_eq!(end_of(&mut job), after, "{:?}", job.phase);
        }
    }
}

/// This node's workers may fail before it is told of the stop.
#[test]
fn worker_failure_soon_before_store_host_stop_is_blamed_on_host() {
    let at = clock();
    let host = FailureNote::NodeLeft { node: NodeName::of_host("th1"), why: "SIGTERM".to_owned() };
    let left = || Input::RendezvousEnded(RendezvousEnd::Closed { failure: Some(host.clone()) });
    let failed = exited(0, 0, Exit::Code(5));
    for (inputs, is_own) in [
        (vec![(2, failed.clone()), (3, exited(0, 1, killed_by(15))), (3, left())], false),
        (vec![(2, failed.clone()), (2, left()), (3, exited(0, 1, killed_by(15)))], false),
        (vec![(2, left()), (2, failed.clone()), (3, exited(0, 1, killed_by(15)))], false),
        (vec![(2, failed), (9, left()), (9, exited(0, 1, killed_by(15)))], true),
    ] {
        let mut job = running(0, &at);
        let actions = inputs.into_iter().flat_map(|(time, input)| job.handle(at(time), input));
        let actions: Vec<_> = actions.collect();
        let end = end(&actions).unwrap();
        assert_eq!(end.failure.is_some(), is_own);
        assert_eq!((end.first_cause.as_deref(), end.status), (Some(&host), ExitStatus::Code(1)));
    }
}

/// Before the signal: the other nodes then know the cause when their workers fail.
#[test]
fn local_stop_is_reported_to_peers_before_stop_signal() {
    let at = clock();
    let assert_peers_first = |actions: &[Action], because: StopReason| {
        assert_eq!(actions[0], Action::TellStop { reason: because });
        let mut rest = actions[1..].iter().filter(|action| !matches!(action, Action::CollectRanks { .. }));
        assert!(matches!(rest.next(), Some(Action::Signal { .. })), "{actions:?}");
    };
    let stop = || Input::StopRequested { signal: Signal::SIGINT, is_second: false };
    assert_peers_first(&running(3, &at).handle(at(2), stop()), StopReason::Signal(Signal::SIGINT));
    // A restart was to follow.
    let mut job = running(3, &at);
    let _ = job.handle(at(2), peer_lost());
    assert_peers_first(&job.handle(at(3), stop()), StopReason::Signal(Signal::SIGINT));
    let time_limit = Some(TimeLimit { limit: Duration::from_secs(10), warning: None });
    let mut job = SweptState::new(JobRules { time_limit, ..rules(2, 3, CliFlavor::Rankrun) });
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), joined(0));
    assert_peers_first(&job.handle(at(11), Input::DeadlinePassed), StopReason::TimeLimit);
    // The other nodes know the cause.
    let mut job = running(3, &at);
    let _ = job.handle(at(2), Input::RendezvousEnded(RendezvousEnd::Closed { failure: None }));
    let actions = job.handle(at(3), stop());
    assert!(!actions.iter().any(|action| matches!(action, Action::TellStop { .. })), "{actions:?}");
}

#[test]
fn time_limit_ends_every_wait_for_peers() {
    let at = clock();
    let limited = || {
        let time_limit = Some(TimeLimit { limit: Duration::from_secs(10), warning: None });
        let rules = JobRules { time_limit, ..rules(2, 3, CliFlavor::Rankrun) };
        let mut job = SweptState::new(rules);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(job.deadline(), None, "it runs from the first start of the workers");
        let _ = job.handle(at(100), joined(0));
        job
    };
    let ends = [exited(0, 0, killed_by(15)), exited(0, 1, killed_by(15))];
    let (rejoining, settling) = (
        [vec![peer_lost()], ends.to_vec()].concat(),
        vec![exited(0, 0, Exit::Code(0)), exited(0, 1, Exit::Code(0))],
    );
    for inputs in [rejoining.clone(), settling] {
        let mut job = limited();
        for input in inputs {
            let _ = job.handle(at(101), input);
        }
        let actions = job.handle(at(110), Input::DeadlinePassed);
        let end = end(&actions).unwrap_or_else(|| panic!("{:?}", job.phase));
        assert_eq!((end.status, end.peer_notice), (ExitStatus::Code(124), PeerNotice::Left));
    }
    let mut job = limited();
    for input in rejoining {
        let _ = job.handle(at(101), input);
    }
    assert!(end(&job.handle(at(110), joined(1))).is_some(), "invariant 7: no start after it");
}

#[test]
fn job_ended_on_other_node_ends_here_in_every_phase() {
    let at = clock();
    let closed = || Input::RendezvousEnded(RendezvousEnd::Closed { failure: Some(failure_note()) });
    let status = |actions: &[Action]| {
        let end = end(actions).unwrap();
        assert_eq!((end.first_cause.as_deref(), end.peer_notice), (Some(&failure_note()), PeerNotice::Left));
        end.status
    };
    let mut job = node(0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(status(&job.handle(at(1), closed())), ExitStatus::Code(1));

    let mut job = running(3, &at);
    let actions = job.handle(at(2), closed());
    assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGTERM)]);
    assert!(matches!(&actions[1], Action::Emit(JobEvent::EndedElsewhere { .. })));
    let _ = job.handle(at(3), exited(0, 0, Exit::Code(5)));
    let actions = job.handle(at(3), exited(0, 1, killed_by(15)));
    assert_eq!(status(&actions), ExitStatus::Code(1), "invariant 7: the job is closed");

    let mut job = running(3, &at);
    let _ = job.handle(at(2), exited(0, 0, Exit::Code(5)));
    assert_eq!(job.handle(at(2), closed()), []);
    let actions = job.handle(at(3), exited(0, 1, killed_by(15)));
    assert_eq!(status(&actions), ExitStatus::Code(1));
    assert!(end(&actions).unwrap().failure.is_some(), "contract 8.12: what failed here is told too");

    let mut spare = node(0, CliFlavor::Torchrun);
    let _ = spare.handle(at(0), Input::Ready);
    let actions = spare.handle(at(1), Input::RendezvousEnded(RendezvousEnd::NotNeeded));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::SUCCESS, "contract 8.11");
    assert_eq!(spare.handle(at(2), closed()), []);
}

/// A failure that was reported before does not count where a rule calls it a success; nor does an own exit
/// that followed.
#[test]
fn restart_rule_of_other_node_ends_job_with_same_status() {
    let at = clock();
    for (then, code, cause) in [
        (RuleEnd::Succeed, 0, None),
        (RuleEnd::Requeue, 75, Some(failure_note())),
        (RuleEnd::NoRequeue, 78, Some(failure_note())),
    ] {
        let rule = RuleNote { text: "exit=7".to_owned(), then };
        let over = || {
            Input::RendezvousEnded(RendezvousEnd::ByRule {
                rule: rule.clone(),
                failure: Some(failure_note()),
            })
        };
        let ends = [exited(0, 0, Exit::Code(5)), exited(0, 1, killed_by(15))];
        let peer_failed = Input::Changed(MembershipChange::from(failure_note()));
        for inputs in [
            [vec![over()], ends.to_vec()].concat(),
            [vec![peer_failed.clone(), over()], ends.to_vec()].concat(),
            [vec![peer_failed], ends.to_vec(), vec![over()]].concat(),
            [ends.to_vec(), vec![over()]].concat(),
            vec![exited(0, 0, Exit::Code(0)), exited(0, 1, Exit::Code(0)), over()],
        ] {
            let mut job = running(3, &at);
            let actions: Vec<Action> =
                inputs.iter().flat_map(|input| job.handle(at(2), input.clone())).collect();
            let end = end(&actions).unwrap_or_else(|| panic!("{inputs:?}"));
            assert_eq!(end.status, ExitStatus::Code(code), "{inputs:?}");
            assert_eq!((end.first_cause.as_deref(), end.peer_notice), (cause.as_ref(), PeerNotice::Left));
            assert!(then != RuleEnd::Succeed || end.failure.is_none(), "{inputs:?}");
        }
    }
}

#[test]
fn start_failure_fails_job_and_unkillable_worker_leaves_it() {
    let at = clock();
    let mut job = running(3, &at);
    let none_started = start_failed(0);
    assert_eq!(end(&job.handle(at(1), none_started)).unwrap().peer_notice, PeerNotice::Failed);

    let mut job = running(3, &at);
    let _ = job.handle(at(2), peer_lost());
    let _ = job.handle(at(32), Input::DeadlinePassed);
    let actions = job.handle(at(37), Input::DeadlinePassed);
    assert!(!joins(&actions), "invariant 1: a worker is alive");
    assert_eq!(end(&actions).unwrap().peer_notice, PeerNotice::Left, "the others may go on");
}
