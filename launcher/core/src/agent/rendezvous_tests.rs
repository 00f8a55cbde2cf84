//! Events on other nodes, as inputs of the state machine.

use super::*;
use crate::agent::message::PeerNotice;
use crate::exit_code::LAUNCHER_FAILED;
use crate::rendezvous::{
    FailureNote, LossRole, LostNode, MembershipChange, NodeName, PeerLoss, RendezvousEnd, WorkerFailure,
};
use crate::spec::restart::FailureShare;
use rankrun_contract::env::Master;
use rankrun_contract::rank::{NodeCount, NodeRank, Rank, WorldSize};

/// A node with two workers, of a job of several nodes.
pub(super) fn node(max_restarts: u32, cli_flavor: CliFlavor) -> SweptState {
    SweptState::new(rules(2, max_restarts, cli_flavor))
}

#[test]
fn restart_request_before_first_round_is_refused_as_a_wait_for_nodes() {
    let mut job = node(1, CliFlavor::Rankrun);
    let _ = job.handle(clock()(0), Input::Ready);
    let refusal = job.check_restart_request().unwrap_err();
    assert_eq!(refusal, "the job waits for its nodes: no worker was started so far");
}

/// A round with this node as the second of two.
pub(super) fn round(number: u64) -> Box<Round> {
    Box::new(Round {
        number,
        node_rank: NodeRank(1),
        nodes: NodeCount::new(2).unwrap(),
        base_rank: Rank(2),
        world_size: WorldSize::new(4).unwrap(),
        base_role_rank: Rank(2),
        role_world_size: WorldSize::new(4).unwrap(),
        master: Master { addr: "th1".to_owned(), port: 29_500, uses_agent_store: true },
        members: Vec::new(),
        interface: None,
    })
}

pub(super) fn joined(number: u64) -> Input {
    Input::Joined(round(number))
}

pub(super) fn lost_node(role: LossRole) -> LostNode {
    LostNode { node: NodeName::of_host("th1"), role }
}

/// The answer that a lost node caused the failure here.
pub(super) fn lost_node_found() -> Input {
    Input::LostNodeFound(Some(lost_node(LossRole::CausesFailureHere)))
}

pub(super) fn peer_lost() -> Input {
    Input::Changed(MembershipChange::Lost(lost_node(LossRole::EndsRound)))
}

pub(super) fn failure_note() -> FailureNote {
    failure_note_with_loss(None)
}

fn failure_note_with_loss(lost_peer: Option<PeerLoss>) -> FailureNote {
    FailureNote::Worker(WorkerFailure {
        node: NodeName { rank: Some(NodeRank(0)), ..NodeName::of_host("th1") },
        rank: Rank(1),
        local_rank: LocalRank(1),
        pid: 77,
        ended: "exit code 3".to_owned(),
        message: None,
        last_lines: Vec::new(),
        lost_peer,
    })
}

pub(super) fn peer_failed() -> Input {
    Input::Changed(MembershipChange::from(failure_note()))
}

/// A node with workers that run in round 0.
pub(super) fn running(max_restarts: u32, at: &impl Fn(u64) -> Instant) -> SweptState {
    let mut job = node(max_restarts, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), joined(0));
    job
}

pub(super) fn joins(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Join { .. }))
}

/// The restart count and the round of the start.
pub(super) fn start(actions: &[Action]) -> Option<(u32, u32, u64)> {
    actions.iter().find_map(|action| match action {
        Action::Start { generation, restart_count, round } => {
            Some((generation.0, restart_count.0, round.number))
        }
        _ => None,
    })
}

pub(super) fn position(actions: &[Action], wanted: impl Fn(&Action) -> bool) -> Option<usize> {
    actions.iter().position(wanted)
}

#[test]
fn workers_start_once_per_completed_round() {
    let at = clock();
    let mut job = node(0, CliFlavor::Rankrun);
    let actions = job.handle(at(0), Input::Ready);
    assert_eq!(
        actions,
        [Action::Join { workers: LocalWorldSize::new(2).unwrap(), leaves_if_possible: false }]
    );
    assert_eq!(job.deadline(), None, "the rendezvous has its own limits");
    let actions = job.handle(at(5), joined(0));
    assert_eq!(start(&actions), Some((0, 0, 0)), "invariant 2");
    assert_eq!(job.handle(at(6), joined(0)), [], "invariant 2");
    let _ = job.handle(at(7), exited(0, 0, Exit::Code(0)));
    assert_eq!(job.handle(at(8), exited(0, 1, Exit::Code(0))), [Action::TellSuccess]);
    assert_eq!(job.handle(at(10), Input::DeadlinePassed), [Action::Emit(JobEvent::Settling)]);
    let actions = job.handle(at(11), Input::AllSucceeded);
    let end = end(&actions).unwrap();
    assert_eq!((end.status, end.peer_notice), (ExitStatus::SUCCESS, PeerNotice::Succeeded));
}

#[test]
fn membership_change_restarts_all_without_using_budget() {
    let at = clock();
    for (change, by) in [
        (peer_lost(), GRACE),
        (peer_failed(), GRACE),
        (Input::Changed(MembershipChange::NodeWaits { node: NodeName::of_host("th3") }), GRACE),
        (
            Input::Changed(MembershipChange::CutOff { kill_by: at(2) + Duration::from_secs(2) }),
            Duration::from_secs(2),
        ),
        (Input::Changed(MembershipChange::StoodStill), Duration::ZERO),
    ] {
        let mut job = running(0, &at);
        let actions = job.handle(at(2), change);
        assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGTERM)]);
        assert!(matches!(actions[1], Action::Emit(JobEvent::Changed { .. })), "{actions:?}");
        assert_eq!(job.deadline(), Some(at(2) + by));
        assert!(!joins(&job.handle(at(3), exited(0, 0, killed_by(15)))), "invariant 1: one is left");
        let actions = job.handle(at(3), exited(0, 1, Exit::Code(1)));
        let swept = position(&actions, |action| matches!(action, Action::KillLeftovers { .. })).unwrap();
        let join = position(&actions, |action| matches!(action, Action::Join { .. })).unwrap();
        assert!(swept < join, "invariant 1: the old generation is gone before the next round");
        assert_eq!(start(&job.handle(at(4), joined(1))), Some((1, 0, 1)), "invariant 6");
    }
}

#[test]
fn cut_off_node_kills_workers_in_time_during_any_stop() {
    let at = clock();
    let cut_off = |seconds| Input::Changed(MembershipChange::CutOff { kill_by: at(seconds) });
    for stop in [exited(0, 0, Exit::Code(1)), stop(Signal::SIGTERM, false), peer_lost()] {
        let mut job = running(0, &at);
        let _ = job.handle(at(2), stop);
        let _ = job.handle(at(3), cut_off(5));
        assert_eq!(job.deadline(), Some(at(5)));
        let _ = job.handle(at(3), cut_off(50));
        assert_eq!(job.deadline(), Some(at(5)), "it never gives more time");
        let killed = signals(&job.handle(at(5), Input::DeadlinePassed));
        assert!(killed.iter().all(|(_, signal)| *signal == Signal::SIGKILL) && !killed.is_empty());
    }
}

#[test]
fn failed_rendezvous_kills_workers_before_lease_expires() {
    let at = clock();
    let over = |seconds| {
        Input::RendezvousEnded(RendezvousEnd::Failed {
            kill_by: Some(at(seconds)),
            error: rendezvous_failure(),
        })
    };
    let mut job = running(3, &at);
    assert_eq!(signals(&job.handle(at(2), over(4))), [(vec![0, 1], Signal::SIGTERM)]);
    assert_eq!(job.deadline(), Some(at(4)));

    let mut job = running(3, &at);
    let _ = job.handle(at(2), peer_lost());
    let _ = job.handle(at(3), over(5));
    assert_eq!(job.deadline(), Some(at(5)), "also workers that are being stopped");
    let killed = signals(&job.handle(at(5), Input::DeadlinePassed));
    assert_eq!(killed, [(vec![0, 1], Signal::SIGKILL)]);
}

#[test]
fn cut_off_is_ignored_without_live_workers() {
    let at = clock();
    let mut job = node(0, CliFlavor::Rankrun);
    assert!(!job.has_workers());
    let _ = job.handle(at(0), Input::Ready);
    assert!(!job.has_workers());
    let _ = job.handle(at(1), joined(0));
    assert!(job.has_workers());
    for rank in [0, 1] {
        let _ = job.handle(at(2), exited(0, rank, Exit::Code(0)));
    }
    assert!(!job.has_workers());
    assert_eq!(
        job.handle(at(3), Input::Changed(MembershipChange::CutOff { kill_by: at(4) })),
        [],
        "it is done"
    );
    assert!(end(&job.handle(at(5), Input::AllSucceeded)).is_some());
}

#[test]
fn removed_node_kills_workers_at_once() {
    let at = clock();
    let mut job = running(0, &at);
    let _ = job.handle(at(2), Input::Changed(MembershipChange::Removed));
    assert_eq!(job.deadline(), Some(at(2)));
    let _ = job.handle(at(2), Input::DeadlinePassed);
    for rank in [0, 1] {
        let _ = job.handle(at(3), exited(0, rank, killed_by(9)));
    }
    assert_eq!(start(&job.handle(at(4), joined(7))), Some((1, 0, 7)));
}

#[test]
fn succeeded_workers_run_again_if_peer_node_failed() {
    let at = clock();
    let mut job = running(0, &at);
    let _ = job.handle(at(2), exited(0, 0, Exit::Code(0)));
    let _ = job.handle(at(2), exited(0, 1, Exit::Code(0)));
    let actions = job.handle(at(3), peer_failed());
    assert!(matches!(actions[0], Action::KillLeftovers { .. }), "invariant 1");
    assert!(joins(&actions) && signals(&actions).is_empty());
    assert_eq!(job.handle(at(3), Input::AllSucceeded), [], "of the round before");
    assert_eq!(start(&job.handle(at(4), joined(1))), Some((1, 0, 1)));
}

#[test]
fn stop_signal_exit_is_not_a_failure_if_node_was_lost() {
    let at = clock();
    let mut job = running(0, &at);
    assert_eq!(job.handle(at(2), exited(0, 0, killed_by(15))), []);
    let actions = job.handle(at(2), peer_lost());
    assert_eq!(signals(&actions), [(vec![1], Signal::SIGTERM)]);
    assert!(!actions.iter().any(|action| matches!(action, Action::TellFailure { .. })));
    assert!(joins(&job.handle(at(3), exited(0, 1, killed_by(15)))));
}

fn any_rendezvous_input() -> impl Strategy<Value = Input> {
    let change = prop_oneof![Just(peer_lost()), Just(peer_failed())];
    prop_oneof![
        6 => any_input(),
        4 => (0u64..5).prop_map(joined),
        3 => change,
        2 => Just(Input::LostNodeFound(None)),
        1 => Just(lost_node_found()),
        1 => Just(Input::AllSucceeded),
        1 => Just(Input::RendezvousEnded(RendezvousEnd::Closed { failure: None })),
    ]
}

proptest! {
    /// Any inputs in any order: a start answers a join, the count is right, and nothing follows the end.
    #[test]
    fn random_inputs_start_workers_only_after_join(inputs in prop::collection::vec(any_rendezvous_input(), 0..80)) {
        let at = clock();
        let mut job = running(1, &at);
        let (mut has_joined, mut ended, mut generations) = (false, false, 1);
        // Each may come from a failure here too, on which the faster node has decided.
        let mut most = 1;
        for (second, input) in (0..).map(|step| 2 + step * 10).zip(inputs) {
            most += u32::from(input == peer_failed());
            let is_round = matches!(input, Input::Joined(_));
            let actions = handle_and_drain(|input| job.handle(at(second), input), input);
            prop_assert!(!ended || actions.is_empty());
            if let Some((generation, restarts, _)) = start(&actions) {
                prop_assert!(is_round && has_joined, "invariant 2");
                prop_assert_eq!(generation, generations);
                prop_assert!(restarts <= most, "invariant 6");
                (has_joined, generations) = (false, generations + 1);
            }
            has_joined |= joins(&actions);
            ended |= end(&actions).is_some();
        }
    }
}

fn emits_early_end(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Emit(JobEvent::FinishedBeforeLoss { .. })))
}

#[test]
fn finished_node_reports_that_peer_lost_its_workers() {
    let at = clock();
    let closed = |note| Input::RendezvousEnded(RendezvousEnd::Closed { failure: Some(note) });
    let failed = |note| Input::Changed(MembershipChange::from(note));
    // This node has ranks 2 and 3.
    for (lost, expected) in [
        (Some(PeerLoss::Rank(Rank(3))), true),
        (Some(PeerLoss::Unnamed), true),
        (Some(PeerLoss::Rank(Rank(0))), false),
        (None, false),
    ] {
        for input in [failed(failure_note_with_loss(lost)), closed(failure_note_with_loss(lost))] {
            let mut job = running(0, &at);
            let _ = job.handle(at(2), exited(0, 0, Exit::Code(0)));
            let _ = job.handle(at(2), exited(0, 1, Exit::Code(0)));
            let actions = job.handle(at(3), input);
            assert_eq!(emits_early_end(&actions), expected, "{lost:?}: {actions:?}");
        }
    }
    let mut job = running(0, &at);
    let _ = job.handle(at(2), exited(0, 0, Exit::Code(0)));
    let actions = job.handle(at(3), failed(failure_note_with_loss(Some(PeerLoss::Unnamed))));
    assert!(!emits_early_end(&actions), "a worker of this node runs: {actions:?}");
}

#[test]
fn peer_failure_during_lost_node_query_is_reported_once() {
    let at = clock();
    let mut job = running(3, &at);
    let _ = job.handle(at(2), exited(0, 0, Exit::Code(1)));
    let _ = job.handle(at(2), exited(0, 1, killed_by(15)));
    let said = |actions: Vec<Action>| actions.len();
    assert_eq!(said(job.handle(at(3), peer_failed())), 1);
    assert_eq!(said(job.handle(at(3), peer_failed())), 0, "it was told twice");
}

/// Whether this node is to leave at its next restart.
fn leaves_if_possible(actions: &[Action]) -> Option<bool> {
    actions.iter().find_map(|action| match action {
        Action::Join { leaves_if_possible, .. } => Some(*leaves_if_possible),
        _ => None,
    })
}

/// Ends both workers of this generation after a failure here, or after one on another node.
fn fail_generation(job: &mut SweptState, generation: u32, is_own: bool, at: Instant) -> Vec<Action> {
    let first = if is_own { exited(generation, 0, Exit::Code(3)) } else { peer_failed() };
    let _ = job.handle(at, first);
    if !is_own {
        let _ = job.handle(at, exited(generation, 0, killed_by(15)));
    }
    let mut actions = job.handle(at, exited(generation, 1, killed_by(15)));
    if is_own {
        actions.extend(job.handle(at, Input::LostNodeFound(None)));
    }
    actions
}

#[test]
fn node_whose_workers_fail_first_too_often_leaves_if_others_are_enough() {
    let at = clock();
    let mut rules = rules(2, 9, CliFlavor::Rankrun);
    rules.restart.exclude_node_after = Some(FailureShare { failures: 2, restarts: 3 });
    let mut job = SweptState::new(rules);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), joined(0));
    // Of own and other failures two of the last three are to be own, and the last one too.
    let failures =
        [(true, false), (false, false), (false, false), (true, false), (false, false), (true, true)];
    for ((generation, (is_own, leaves)), second) in (0..).zip(failures).zip(2..) {
        let actions = fail_generation(&mut job, generation, is_own, at(second));
        assert_eq!(leaves_if_possible(&actions), Some(leaves), "{generation}");
        if !leaves {
            let _ = job.handle(at(second), joined(u64::from(generation) + 1));
        }
    }
    let ended = Input::RendezvousEnded(RendezvousEnd::Excluded { others: 2 });
    let actions = job.handle(at(20), ended);
    let end = end(&actions).unwrap();
    assert_eq!((end.status, end.peer_notice), (ExitStatus::Code(LAUNCHER_FAILED), PeerNotice::Left));
    assert!(end.failure.is_some(), "the report has the last failure");
}
