//! Ctrl-Z: the whole job is suspended for a while.

use super::*;
use crate::spec::stop::TimeLimit;

const HOUR: Duration = Duration::from_secs(3_600);

fn halted(lasted: Duration) -> Input {
    Input::Resumed { suspended_for: lasted }
}

#[test]
fn the_time_limit_is_a_time_on_the_clock() {
    let at = clock();
    let limit = TimeLimit { limit: HOUR, warning: None };
    let mut job = State::new(JobRules { time_limit: Some(limit), ..rules(1, 3, CliFlavor::Rankrun) });
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.handle(at(7_200), halted(HOUR * 2 - Duration::from_secs(60))), []);
    assert_eq!(signals(&job.handle(at(7_200), Input::DeadlinePassed)), [(vec![0], Signal::SIGTERM)]);
}

#[test]
fn suspended_worker_is_not_healthy() {
    let at = clock();
    for (life, restarts) in [(1, None), (2, Some(2))] {
        let mut rules = rules(1, 1, CliFlavor::Rankrun);
        rules.restart.reset_after = Some(Duration::from_secs(2));
        let mut job = State::new(rules);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(started(&job.handle(at(1), exited(0, 0, Exit::Code(4)))), Some(1));
        assert_eq!(job.handle(at(3_602), halted(HOUR)), []);
        assert_eq!(started(&job.handle(at(3_601 + life), exited(1, 0, Exit::Code(4)))), restarts);
    }
}

/// An input, and its time after the input before.
fn input() -> impl Strategy<Value = (u64, Input)> {
    let exit = prop_oneof![Just(Exit::Code(0)), Just(Exit::Code(3)), Just(killed_by(15)), Just(killed_by(9))];
    let asleep = prop_oneof![
        Just(Vec::new()),
        Just(vec![UninterruptibleWorker { local_rank: LocalRank(0), pid: Pid::from_raw(100) }])
    ];
    let what = prop_oneof![
        3 => (0..3_u32, 0..3_u32, exit).prop_map(|(generation, rank, exit)| exited(generation, rank, exit)),
        1 => any::<bool>().prop_map(|again| stop(Signal::SIGTERM, again)),
        1 => (0..3_u32, asleep).prop_map(|(generation, asleep)| Input::DStateProbed {
            generation: Generation(generation),
            at: SystemTime::UNIX_EPOCH,
            uninterruptible: asleep,
        }),
        4 => Just(Input::DeadlinePassed),
    ];
    (prop_oneof![Just(0), 0..100_u64, 0..700_u64, 0..40_000_u64], what)
}

proptest! {
    /// Except for the time limit, the machine's actions do not depend on a suspension.
    #[test]
    fn what_happens_after_a_halt_happens_as_without_it(
        inputs in prop::collection::vec(input(), 1..25),
        halt_before in 0..25_usize,
        lasted in prop_oneof![Just(HOUR), (0..2_000_u64).prop_map(Duration::from_millis)],
    ) {
        let at = clock();
        let mut rules = JobRules {
            dstate_timeout: Some(Duration::from_millis(300)),
            start_timeout: Some(Duration::from_secs(2)),
            ..rules(3, 2, CliFlavor::Rankrun)
        };
        rules.restart.reset_after = Some(Duration::from_millis(500));
        let (mut plain, mut interrupted) = (State::new(rules.clone()), State::new(rules));
        let (mut now, mut behind) = (at(0), Duration::ZERO);
        prop_assert_eq!(plain.handle(now, Input::Ready), interrupted.handle(now, Input::Ready));
        for (index, (later, input)) in inputs.into_iter().enumerate() {
            if index == halt_before {
                behind = lasted;
                prop_assert_eq!(interrupted.handle(now + behind, halted(lasted)), []);
            }
            now += Duration::from_millis(later);
            let told = (plain.handle(now, input.clone()), interrupted.handle(now + behind, input));
            prop_assert_eq!(told.0, told.1);
            prop_assert_eq!(plain.deadline().map(|deadline| deadline + behind), interrupted.deadline());
        }
    }
}
