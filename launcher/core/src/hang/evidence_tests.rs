#![expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]

use super::*;

const LATER: Duration = Duration::from_secs(50);

fn groups(enqueued: u64, messages: MessageCounts) -> Groups {
    let group = GroupActivity { enqueued, completed: enqueued, messages, ..GroupActivity::default() };
    Groups::from([("0".to_owned(), group)])
}

#[test]
fn message_that_is_called_or_over_is_progress() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    let counts =
        [(1, 0), (1, 1), (2, 1), (2, 1)].map(|(called, finished)| MessageCounts { called, finished });
    let times = (1..).map(|seconds| started + Duration::from_secs(seconds));
    let progress: Vec<bool> = counts
        .into_iter()
        .zip(times)
        .map(|(messages, at)| {
            rank.record_groups(groups(4, messages), at);
            rank.last_progress == at
        })
        .collect();
    assert_eq!(progress, [true, true, true, false]);
    assert_eq!(rank.pending().count(), 0);
}

#[test]
fn group_that_is_dropped_is_progress_and_no_wait() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    let waits = GroupActivity { enqueued: 10, completed: 9, ..GroupActivity::default() };
    rank.record_groups(Groups::from([("default".to_owned(), waits)]), started);
    assert_eq!(rank.pending().count(), 1);
    rank.record_groups(Groups::new(), started + LATER);
    assert_eq!((rank.pending().count(), rank.last_progress), (0, started + LATER));
}

#[test]
fn first_answer_without_groups_is_neither_progress_nor_evidence() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    rank.record_groups(Groups::new(), started + LATER);
    assert_eq!((rank.last_progress, rank.has_evidence()), (started, false));
}

#[test]
fn suspended_time_leads_to_no_time_in_the_future() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    rank.add_suspended_time(LATER, started + 2 * LATER);
    assert_eq!(rank.last_progress, started + LATER);
    rank.add_suspended_time(5 * LATER, started + 2 * LATER);
    assert_eq!((rank.started, rank.last_progress), (started + 2 * LATER, started + 2 * LATER));
}

#[test]
fn recorder_that_fails_now_and_then_shows_no_progress() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    rank.record_groups(groups(4, MessageCounts::default()), started + LATER);
    for times in 2..5 {
        rank.forget_groups();
        assert!(!rank.has_groups());
        rank.record_groups(groups(4, MessageCounts::default()), started + times * LATER);
        assert_eq!(rank.last_progress, started + LATER);
    }
    rank.forget_groups();
    rank.record_groups(groups(5, MessageCounts::default()), started + 9 * LATER);
    assert_eq!(rank.last_progress, started + 9 * LATER);
}
