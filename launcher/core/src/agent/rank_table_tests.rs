//! The ranks are collected before a stop, and shown where a rank may hang.

use super::rendezvous_tests::{failure_note, joined, node, peer_lost, running};
use super::*;
use crate::job_event::activity::LastOutput;
use crate::job_event::activity::RunState;
use crate::job_event::rank_table::{EndedRank, JoinState, ProcessState, RankRow, RankTable};
use crate::rendezvous::{FailureNote, MembershipChange, NodeName, RendezvousEnd};
use crate::spec::stop::{StopReason, TimeLimit};

const SIGTERM: StopReason = StopReason::Signal(Signal::SIGTERM);

fn table(reason: StopReason, joined: &[JoinState]) -> RankTable {
    let row = |(local_rank, joined): (u32, &JoinState)| RankRow {
        local_rank: LocalRank(local_rank),
        pid: Some(Pid::from_raw(100)),
        process: ProcessState::Alive(RunState::Waiting),
        joined: *joined,
        cpu_time: None,
        output: LastOutput::Empty,
    };
    RankTable { reason, rows: (0..).zip(joined).map(row).collect() }
}

fn collect_action(reason: StopReason, ended: Vec<EndedRank>) -> Action {
    Action::CollectRanks { generation: Generation(0), ended, reason }
}

fn collects_ranks(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::CollectRanks { .. }))
}

fn ranks_collected(table: &RankTable, generation: u32) -> Input {
    Input::RanksCollected { generation: Generation(generation), table: table.clone() }
}

#[test]
fn ranks_are_collected_before_stop_and_shown_if_one_is_missing() {
    use JoinState::{Joined, NotJoined, Unknown};
    let at = clock();
    for (joined, is_shown) in
        [([Joined, Joined], false), ([Joined, NotJoined], true), ([Unknown, Joined], true)]
    {
        let mut job = new_job(2, 0, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let actions = job.handle(at(1), stop(Signal::SIGTERM, false));
        assert_eq!(actions[0], collect_action(SIGTERM, Vec::new()));
        assert!(matches!(actions[1], Action::Signal { .. }), "{actions:?}");
        let table = table(SIGTERM, &joined);
        let said = is_shown.then(|| Action::Emit(JobEvent::RankTable(table.clone())));
        assert_eq!(job.handle(at(1), ranks_collected(&table, 7)), [], "of another generation");
        assert_eq!(job.handle(at(1), ranks_collected(&table, 0)), Vec::from_iter(said), "{joined:?}");
        assert!(!collects_ranks(&job.handle(at(2), stop(Signal::SIGINT, true))), "once");
    }
}

#[test]
fn ended_ranks_are_passed_and_finished_job_shows_no_table() {
    let at = clock();
    let mut job = new_job(3, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 1, Exit::Code(0)));
    // The same signal may be on its way to the launcher.
    let _ = job.handle(at(2), exited(0, 2, killed_by(15)));
    let actions = job.handle(at(2), stop(Signal::SIGTERM, false));
    let ended = [(1, Exit::Code(0)), (2, killed_by(15))];
    let ended = ended.map(|(rank, exit)| EndedRank { local_rank: LocalRank(rank), exit });
    assert_eq!(actions[0], collect_action(SIGTERM, ended.to_vec()));
    assert!(end(&job.handle(at(2), exited(0, 0, killed_by(15)))).is_some());
    assert_eq!(job.handle(at(2), ranks_collected(&table(SIGTERM, &[JoinState::NotJoined]), 0)), []);
}

#[test]
fn early_success_shows_table_and_signalled_rank_does_not() {
    let at = clock();
    for (exit, is_shown) in [(Exit::Code(0), true), (killed_by(15), false)] {
        let mut job = new_job(2, 0, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), exited(0, 1, exit));
        let _ = job.handle(at(1), stop(Signal::SIGTERM, false));
        let mut table = table(SIGTERM, &[JoinState::Joined, JoinState::Joined]);
        table.rows[1].process = ProcessState::Ended(exit);
        assert_eq!(!job.handle(at(1), ranks_collected(&table, 0)).is_empty(), is_shown, "{exit:?}");
    }
}

#[test]
fn time_limit_shows_table_of_joined_or_single_rank() {
    let at = clock();
    for workers in [1, 2] {
        let mut job = new_job(workers, 0, CliFlavor::Rankrun);
        let limit = Duration::from_secs(5);
        job.rules.time_limit = Some(TimeLimit { limit, warning: None });
        let _ = job.handle(at(0), Input::Ready);
        let actions = job.handle(at(5), Input::DeadlinePassed);
        assert_eq!(actions[0], collect_action(StopReason::TimeLimit, Vec::new()));
        let table = table(StopReason::TimeLimit, &[JoinState::Joined]);
        assert_eq!(
            job.handle(at(5), ranks_collected(&table, 0)),
            [Action::Emit(JobEvent::RankTable(table.clone()))]
        );
    }
}

#[test]
fn signal_under_torchrun_or_single_rank_collects_no_ranks() {
    let at = clock();
    for (cli_flavor, workers) in [(CliFlavor::Torchrun, 2), (CliFlavor::Rankrun, 1)] {
        let mut job = new_job(workers, 0, cli_flavor);
        let _ = job.handle(at(0), Input::Ready);
        assert!(!collects_ranks(&job.handle(at(1), stop(Signal::SIGINT, false))), "{cli_flavor:?}");
    }
}

#[test]
fn ranks_are_collected_if_other_node_stops_the_job() {
    let at = clock();
    let host = FailureNote::NodeLeft { node: NodeName::of_host("th1"), why: "SIGTERM".to_owned() };
    let over = |failure| Input::RendezvousEnded(RendezvousEnd::Closed { failure: Some(failure) });
    let actions = running(0, &at).handle(at(2), over(host.clone()));
    assert_eq!(actions[0], collect_action(StopReason::EndedElsewhere, Vec::new()));
    assert!(
        !collects_ranks(&running(0, &at).handle(at(2), over(failure_note()))),
        "a worker has failed there"
    );
    let left = MembershipChange::Left { node: NodeName::of_host("th1"), why: "SIGTERM".to_owned() };
    let actions = running(0, &at).handle(at(2), Input::Changed(left));
    assert_eq!(actions[0], collect_action(StopReason::Membership, Vec::new()));
    assert!(!collects_ranks(&running(0, &at).handle(at(2), peer_lost())), "it was not told to stop");
    // The time limits of two nodes expire at about the same time.
    for (limit, reason) in [(3, StopReason::TimeLimit), (9, StopReason::EndedElsewhere)] {
        let mut job = node(0, CliFlavor::Rankrun);
        let limit = Duration::from_secs(limit);
        job.rules.time_limit = Some(TimeLimit { limit, warning: None });
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), joined(0));
        assert_eq!(job.handle(at(3), over(host.clone()))[0], collect_action(reason, Vec::new()));
    }
}
