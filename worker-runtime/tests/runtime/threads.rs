//! Ranks that are threads: an error of the program reaches every rank at once.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rankrun_worker::process_group::{GroupError, GroupFailure, LossCause};
use rankrun_worker::{Group, Rank, ReduceOp, ThreadGroup};

use crate::world::crash;

/// A timeout that passes in a test.
const SHORT: Duration = Duration::from_millis(300);

/// Runs `body` on every rank; the results in rank order, `None` of one that panics.
fn run<R: Send>(groups: Vec<Group>, body: impl Fn(Group) -> R + Sync) -> Vec<Option<R>> {
    thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().ok()).collect()
    })
}

fn lost(error: &GroupError) -> (Rank, LossCause) {
    match error {
        GroupError::Failed { failure: GroupFailure::Lost { rank, cause }, .. } => (*rank, cause.clone()),
        error => panic!("{error}"),
    }
}

#[test]
fn panicked_rank_is_lost_at_once_and_permanently() {
    let ended = run(ThreadGroup::world(3), |mut group| {
        group.barrier().unwrap();
        if group.rank() == Rank(1) {
            crash(group);
        }
        let errors = [group.barrier().unwrap_err(), group.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap_err()];
        errors.map(|error| lost(&error))
    });
    let expected = Some([(Rank(1), LossCause::Closed), (Rank(1), LossCause::Closed)]);
    assert_eq!(ended, [expected.clone(), None, expected]);
}

#[test]
fn dropped_group_counts_as_leave() {
    let rank_left = Barrier::new(3);
    let ended = run(ThreadGroup::world(3), |mut group| {
        if group.rank() == Rank(2) {
            drop(group);
            rank_left.wait();
            return None;
        }
        rank_left.wait();
        // These two do not need it.
        let mut data = [group.rank().0 as i32];
        match group.rank() {
            Rank(0) => group.send(&data, Rank(1)).unwrap(),
            _ => group.receive(&mut data, Rank(0)).unwrap(),
        }
        assert_eq!(data, [0]);
        Some(lost(&group.broadcast(&mut data, Rank(0)).unwrap_err()))
    });
    let expected = Some(Some((Rank(2), LossCause::Left)));
    assert_eq!(ended, [expected.clone(), expected, Some(None)]);
}

#[test]
fn absent_rank_is_named_at_timeout() {
    let over = Barrier::new(3);
    let ended = run(ThreadGroup::world_with_timeout(3, SHORT), |mut group| {
        if group.rank() == Rank(0) {
            over.wait();
            return lost(&group.barrier().unwrap_err());
        }
        let error = group.barrier().unwrap_err();
        over.wait();
        lost(&error)
    });
    let missed = Some((Rank(0), LossCause::Timeout(SHORT)));
    assert_eq!(ended, [Some((Rank(0), LossCause::Reported)), missed.clone(), missed]);
}

#[test]
fn call_mismatch_is_error_on_every_rank() {
    let ended = run(ThreadGroup::world(3), |mut group| {
        group.barrier().unwrap();
        let elements = if group.rank() == Rank(2) { 5 } else { 4 };
        group.all_reduce(&mut vec![1.0f32; elements], ReduceOp::Sum).unwrap_err().to_string()
    });
    for (rank, error) in ended.into_iter().enumerate() {
        let error = error.expect("no rank panics");
        assert!(rank == 2 || error.contains("rank 2 makes"), "rank {rank}: {error}");
        for call in ["call 2, `all_reduce` (sum) of 4 f32", "call 2, `all_reduce` (sum) of 5 f32"] {
            assert!(error.contains(call), "rank {rank}: {error}");
        }
    }
}

#[test]
fn receive_against_collective_is_mismatch() {
    let ended = run(ThreadGroup::world(2), |mut group| match group.rank() {
        Rank(0) => group.barrier().unwrap_err().to_string(),
        _ => group.receive(&mut [0u8], Rank(0)).unwrap_err().to_string(),
    });
    for (rank, error) in ended.into_iter().enumerate() {
        let error = error.expect("no rank panics");
        assert!(error.contains(&format!("rank {} makes call 1", 1 - rank)), "rank {rank}: {error}");
    }
}

#[test]
fn message_length_difference_is_mismatch() {
    let ended = run(ThreadGroup::world(2), |mut group| match group.rank() {
        Rank(0) => group.send(&[1i32, 2], Rank(1)).and_then(|()| group.barrier()).unwrap_err().to_string(),
        _ => group.receive(&mut [0i32], Rank(0)).unwrap_err().to_string(),
    });
    let (sent, received) = ("call 1, `send` of 2 i32 to rank 1", "call 1, `receive` of 1 i32 from rank 0");
    for error in ended {
        let error = error.expect("no rank panics");
        assert!(error.contains(sent) && error.contains(received), "{error}");
    }
}

#[test]
fn message_sent_before_leave_is_received() {
    let rank_left = Barrier::new(2);
    run(ThreadGroup::world(2), |mut group| {
        if group.rank() == Rank(0) {
            group.send(&[7u8], Rank(1)).unwrap();
            group.leave();
            rank_left.wait();
            return;
        }
        rank_left.wait();
        let mut data = [0u8];
        group.receive(&mut data, Rank(0)).unwrap();
        assert_eq!(data, [7]);
        assert_eq!(lost(&group.receive(&mut data, Rank(0)).unwrap_err()), (Rank(0), LossCause::Left));
    })
    .into_iter()
    .for_each(|ended| ended.expect("no rank panics"));
}

#[test]
fn message_to_departed_rank_is_error() {
    let rank_left = Barrier::new(2);
    let ended = run(ThreadGroup::world(2), |mut group| {
        if group.rank() == Rank(0) {
            group.leave();
            rank_left.wait();
            return None;
        }
        rank_left.wait();
        Some(lost(&group.send(&[1u8], Rank(0)).unwrap_err()))
    });
    assert_eq!(ended, [Some(None), Some(Some((Rank(0), LossCause::Left)))]);
}

#[test]
fn second_message_waits_for_first() {
    let over = Barrier::new(2);
    let ended = run(ThreadGroup::world_with_timeout(2, SHORT), |mut group| {
        if group.rank() == Rank(0) {
            over.wait();
            return None;
        }
        group.send(&[1u8], Rank(0)).unwrap();
        let error = group.send(&[1u8], Rank(0)).unwrap_err();
        over.wait();
        Some(lost(&error))
    });
    assert_eq!(ended, [Some(None), Some(Some((Rank(0), LossCause::Timeout(SHORT))))]);
}

#[test]
fn sub_groups_run_collectives() {
    let ended = run(ThreadGroup::world(5), |mut group| {
        let rank = group.rank().0;
        // Ranks 0, 2, 4 from behind, and 1; 3 has no part.
        let color = (rank != 3).then_some(rank % 2);
        let Some(mut own) = group.split(color, 10 - rank).unwrap() else {
            group.barrier().unwrap();
            return vec![];
        };
        let members = own.all_gather(&[rank as i32]).unwrap();
        group.barrier().unwrap();
        members
    });
    let even = Some(vec![4, 2, 0]);
    assert_eq!(ended, [even.clone(), Some(vec![1]), even.clone(), Some(vec![]), even]);
}

#[test]
fn large_thread_world_sums_correctly() {
    let ranks = 1025;
    let ended = run(ThreadGroup::world(ranks), |mut group| {
        let mut data = [i64::from(group.rank().0), 1];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        data
    });
    assert_eq!(ended, vec![Some([i64::from(ranks * (ranks - 1) / 2), i64::from(ranks)]); ranks as usize]);
}
