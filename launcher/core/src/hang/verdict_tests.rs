#![expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]

use super::*;
use crate::hang::evidence::{GroupActivity, Groups};
use crate::hang::heartbeat::Heartbeat;
use proptest::prelude::*;

const LIMIT: Duration = Duration::from_secs(60);
const LIMITS: Limits = Limits { hang_timeout: Some(LIMIT), first_step: LIMIT, has_other_nodes: false };

/// What one rank shows, and how long ago it last did.
#[derive(Debug, Clone)]
struct RankCase {
    step: Option<(u64, Option<u64>)>,
    counts: Option<(u64, u64)>,
    is_broadcast: bool,
    silent_for: u64,
    is_finished: bool,
}

fn shown() -> impl Strategy<Value = RankCase> {
    let step = proptest::option::of((0..5_u64, proptest::option::of(1..200_u64)));
    let counts = proptest::option::of((0..6_u64, 0..6_u64));
    (step, counts, any::<bool>(), 0..200_u64, proptest::bool::weighted(0.1)).prop_map(
        |(step, counts, is_broadcast, silent_for, is_finished)| {
            let counts = counts.map(|(one, other)| (one.max(other), one.min(other)));
            RankCase { step, counts, is_broadcast, silent_for, is_finished }
        },
    )
}

fn groups(enqueued: u64, completed: u64, name: &str) -> Groups {
    let recent =
        (1..=enqueued).map(|sequence| Collective { sequence, name: name.to_owned(), elements: Some(4) });
    let recent = recent.collect();
    let group = GroupActivity { is_world: true, enqueued, completed, recent, ..GroupActivity::default() };
    Groups::from([("0".to_owned(), group)])
}

fn heartbeat(step: u64, limit: Option<u64>) -> Heartbeat {
    let section = limit.map(|_| "section".to_owned());
    Heartbeat { step, section, limit: limit.map(Duration::from_secs) }
}

/// The ranks a day after their start.
fn evidence(shown: &[RankCase], started: Instant) -> (Vec<RankEvidence>, Instant) {
    let now = started + Duration::from_secs(86_400);
    let rank = |(rank, it): (usize, &RankCase)| {
        let mut evidence = RankEvidence::new(Rank(rank as u32), started);
        let at = now - Duration::from_secs(it.silent_for);
        if let Some((step, limit)) = it.step {
            evidence.record_heartbeat(heartbeat(step, limit), at);
        }
        if let Some((enqueued, completed)) = it.counts {
            let name = if it.is_broadcast { "broadcast" } else { "all_reduce" };
            evidence.record_groups(groups(enqueued, completed, name), at);
        }
        evidence.is_finished = it.is_finished;
        evidence
    };
    (shown.iter().enumerate().map(rank).collect(), now)
}

proptest! {
    #[test]
    fn order_of_ranks_has_no_influence(
        (shown, order) in proptest::collection::vec(shown(), 1..9).prop_flat_map(|shown| {
            let order: Vec<usize> = (0..shown.len()).collect();
            (Just(shown), Just(order).prop_shuffle())
        })
    ) {
        let (ranks, now) = evidence(&shown, Instant::now());
        let shuffled: Vec<RankEvidence> = order.iter().map(|at| ranks[*at].clone()).collect();
        prop_assert_eq!(judge(&ranks, now, &LIMITS), judge(&shuffled, now, &LIMITS));
    }

    #[test]
    fn progress_of_any_rank_is_never_a_hang(
        mut shown in proptest::collection::vec(shown(), 1..9),
        silent_for in 0..60_u64,
        at: proptest::sample::Index,
    ) {
        let moving = at.index(shown.len());
        shown[moving].silent_for = silent_for;
        shown[moving].step = Some((9, None));
        shown[moving].is_finished = false;
        let (ranks, now) = evidence(&shown, Instant::now());
        let verdict = judge(&ranks, now, &LIMITS);
        prop_assert!(matches!(verdict, Verdict::Progress | Verdict::Straggler(_)), "{:?}", verdict);
    }

    #[test]
    fn rank_missing_in_a_collective_is_named(shown in proptest::collection::vec(shown(), 1..9)) {
        let (ranks, now) = evidence(&shown, Instant::now());
        let Verdict::Hang(hang) = judge(&ranks, now, &LIMITS) else { return Ok(()) };
        for wait in &hang.waits {
            for it in &ranks {
                let called = it.group("0").map_or(0, |group| group.enqueued);
                let is_missing = called < wait.sequence;
                prop_assert_eq!(wait.missing.contains(&it.rank), is_missing);
                let is_named = hang.waits.iter().any(|wait| wait.waiting.contains(&it.rank))
                    || hang.silent.iter().any(|status| status.rank == it.rank);
                prop_assert!(!is_missing || is_named, "{:?}", it.rank);
            }
        }
    }

    #[test]
    fn ranks_without_evidence_give_no_verdict(mut shown in proptest::collection::vec(shown(), 1..9)) {
        for it in &mut shown {
            (it.step, it.counts) = (None, None);
        }
        let (ranks, now) = evidence(&shown, Instant::now());
        prop_assert_eq!(judge(&ranks, now, &LIMITS), Verdict::NotEnoughEvidence);
    }

    #[test]
    fn hang_is_found_by_a_longer_limit_later_only(
        shown in proptest::collection::vec(shown(), 1..9), longer in 0..100_u64
    ) {
        let (ranks, now) = evidence(&shown, Instant::now());
        let longer = Limits { hang_timeout: Some(LIMIT + Duration::from_secs(longer)), ..LIMITS };
        let is_found = |limits| matches!(judge(&ranks, now, limits), Verdict::Hang(_) | Verdict::Desync(_));
        prop_assert!(is_found(&LIMITS) || !is_found(&longer));
    }
}

#[test]
fn first_step_and_section_have_limits_of_their_own() {
    let started = Instant::now();
    let limits = Limits { first_step: 5 * LIMIT, ..LIMITS };
    let mut rank = RankEvidence::new(Rank(0), started);
    rank.record_groups(groups(2, 1, "all_reduce"), started);
    let is_hang = |rank: &RankEvidence, seconds| {
        let now = started + Duration::from_secs(seconds);
        matches!(judge(std::slice::from_ref(rank), now, &limits), Verdict::Hang(_))
    };
    assert!(!is_hang(&rank, 299), "first step");
    assert!(is_hang(&rank, 300));
    rank.record_heartbeat(heartbeat(1, None), started);
    assert!(is_hang(&rank, 60));
    rank.record_heartbeat(heartbeat(1, Some(100)), started);
    assert!(!is_hang(&rank, 99), "section with a limit");
    assert!(is_hang(&rank, 100));
    rank.record_heartbeat(Heartbeat { limit: None, ..heartbeat(1, Some(1)) }, started);
    assert!(!is_hang(&rank, 299), "section without a limit");
    assert!(is_hang(&rank, 300));
}

#[test]
fn limit_is_learned_only_where_user_sets_none() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    rank.record_heartbeat(heartbeat(1, None), started);
    let second = started + Duration::from_secs(200);
    rank.record_heartbeat(heartbeat(2, None), second);
    let verdict = |limits: Limits, silent| {
        judge(std::slice::from_ref(&rank), second + Duration::from_secs(silent), &limits)
    };
    let learns = Limits { hang_timeout: None, ..LIMITS };
    assert_eq!(verdict(learns, 599), Verdict::Progress);
    assert!(matches!(verdict(learns, 600), Verdict::Hang(_)));
    assert!(matches!(verdict(LIMITS, 60), Verdict::Hang(_)));
}

#[test]
fn suspended_time_does_not_count() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    rank.record_heartbeat(heartbeat(1, None), started);
    rank.add_suspended_time(LIMIT, started + LIMIT);
    assert_eq!(judge(&[rank.clone()], started + LIMIT, &LIMITS), Verdict::Progress);
    assert!(matches!(judge(&[rank], started + 2 * LIMIT, &LIMITS), Verdict::Hang(_)));
}

#[test]
fn collective_that_leads_to_the_missing_rank_is_named_first() {
    let started = Instant::now();
    let group = |members: [u32; 2], enqueued, completed| GroupActivity {
        members: Some(members.map(Rank).into()),
        enqueued,
        completed,
        ..GroupActivity::default()
    };
    let ranks: Vec<RankEvidence> = [
        Groups::from([("a".to_owned(), group([0, 1], 3, 2))]),
        Groups::from([("a".to_owned(), group([0, 1], 2, 2)), ("b".to_owned(), group([1, 2], 8, 7))]),
        Groups::from([("b".to_owned(), group([1, 2], 7, 7))]),
    ]
    .into_iter()
    .zip(0..)
    .map(|(groups, rank)| {
        let mut evidence = RankEvidence::new(Rank(rank), started);
        evidence.record_groups(groups, started);
        evidence
    })
    .collect();
    let Verdict::Hang(hang) = judge(&ranks, started + LIMIT, &LIMITS) else { panic!("no hang") };
    let waits: Vec<(u64, u32)> =
        hang.waits.iter().map(|wait| (wait.sequence, wait.missing.first().unwrap().0)).collect();
    assert_eq!(waits, [(8, 2), (3, 1)]);
    assert_eq!(hang.silent.iter().map(|status| status.rank).collect::<Vec<_>>(), [Rank(2)]);
}

/// Ranks that have called the third of three collectives, but for rank 1, which has completed two.
fn waiting_ranks(started: Instant) -> Vec<RankEvidence> {
    let rank = |rank: u32| {
        let mut evidence = RankEvidence::new(Rank(rank), started);
        evidence.record_groups(groups(if rank == 1 { 2 } else { 3 }, 2, "all_reduce"), started);
        evidence
    };
    (0..3).map(rank).collect()
}

#[test]
fn rank_whose_recorder_does_not_answer_is_missing_and_never_waits() {
    let started = Instant::now();
    let mut ranks = waiting_ranks(started);
    let unanswered = |rank: &mut RankEvidence| {
        rank.forget_groups();
        rank.is_unanswered = true;
    };
    unanswered(&mut ranks[1]);
    let Verdict::Hang(hang) = judge(&ranks, started + 2 * LIMIT, &LIMITS) else { panic!("no hang") };
    assert_eq!(
        (&hang.waits[0].waiting, &hang.waits[0].missing),
        (&[0, 2].map(Rank).into(), &[Rank(1)].into())
    );
    let silent: Vec<_> = hang.silent.iter().map(|status| (status.rank, &status.activity)).collect();
    assert_eq!(silent, [(Rank(1), &Activity::Unanswered)]);
    // Collectives that were in their midst when the recorders answered last may be over by now.
    ranks.iter_mut().for_each(unanswered);
    assert_eq!(judge(&ranks, started + 2 * LIMIT, &LIMITS), Verdict::NotEnoughEvidence);
}

#[test]
fn calls_of_older_group_of_same_name_are_no_desync() {
    let started = Instant::now();
    let mut ranks = waiting_ranks(started);
    ranks[1].record_groups(groups(20, 20, "broadcast"), started);
    let Verdict::Hang(hang) = judge(&ranks, started + 2 * LIMIT, &LIMITS) else { panic!("no hang") };
    assert_eq!(hang.silent[0].rank, Rank(1));
}

#[test]
fn rank_that_stands_still_for_longest_is_blamed() {
    let silent_at = |step, silent_for| RankCase {
        step: Some((step, None)),
        counts: None,
        is_broadcast: false,
        silent_for,
        is_finished: false,
    };
    let silent = RankCase { step: None, ..silent_at(0, 200) };
    let blamed = |shown: &[RankCase]| {
        let (ranks, now) = evidence(shown, Instant::now());
        judge(&ranks, now, &LIMITS).blamed_rank()
    };
    assert_eq!(blamed(&[silent_at(7, 70), silent_at(7, 70), silent_at(4, 75)]), Some(Rank(2)));
    assert_eq!(blamed(&[silent_at(7, 70), silent_at(7, 70)]), Some(Rank(0)));
    // One that sends no heartbeats may work as ever.
    assert_eq!(blamed(&[silent, silent_at(7, 70)]), Some(Rank(1)));
    // One that the others wait for is blamed although another one is silent for longer.
    let waiting = RankCase { step: None, counts: Some((3, 2)), ..silent_at(0, 70) };
    let missing = RankCase { step: None, counts: Some((2, 2)), ..silent_at(0, 70) };
    let past_it = RankCase { step: None, counts: Some((3, 3)), ..silent_at(0, 200) };
    assert_eq!(blamed(&[past_it, waiting, missing]), Some(Rank(2)));
}
