//! Properties of groups beside the results of their calls.

use rankrun_worker::{Group, GroupError, Rank, ReduceOp};

use super::run;
use crate::oracle::{Values, samples};
use crate::world::AMPLE;

/// Runs `body` on every rank and asserts that no rank has an error.
fn on_all(world: u32, body: impl Fn(&mut Group, u32) -> Result<(), GroupError> + Sync) {
    let ended = run(world, AMPLE, |mut group| {
        let rank = group.rank().0;
        body(&mut group, rank)
    });
    for (rank, result) in ended.into_iter().enumerate() {
        result.unwrap_or_else(|| panic!("rank {rank} of {world} panicked")).expect("a rank failed");
    }
}

#[test]
fn sums_are_bitwise_reproducible() {
    let sums = || {
        run(4, AMPLE, |mut group| {
            let mut data: Vec<f32> = samples(Values::Any, group.rank().0, 10_001);
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let (first, second) = (sums(), sums());
    assert!(first[0].is_some());
    assert!(first.iter().all(|sum| *sum == first[0]), "ranks differ");
    assert!(first == second, "runs differ");
}

#[test]
fn wrong_argument_is_error_and_group_stays_usable() {
    on_all(2, |group, _| {
        let error = group.scatter(&[1i64], &[1], Rank(0)).unwrap_err();
        assert_eq!(error.to_string(), "`scatter` needs 2 counts, but the call passes 1");
        let error = group.gather(&[1i64], &[2, 2], Rank(0)).unwrap_err();
        assert_eq!(error.to_string(), "`gather` needs 2 elements, but the call passes 1");
        let error = group.gather(&[1i64], &[usize::MAX, 1], Rank(0)).unwrap_err();
        assert!(matches!(error, GroupError::WrongLength { .. }), "{error}");
        let error = group.broadcast(&mut [1i64], Rank(2)).unwrap_err();
        assert_eq!(error.to_string(), "`broadcast` names rank 2, but the group has 2 ranks");
        let me = group.rank();
        let itself = format!("names rank {me}, which is this rank");
        assert_eq!(group.send(&[1i64], me).unwrap_err().to_string(), format!("`send` {itself}"));
        assert_eq!(group.receive(&mut [1i64], me).unwrap_err().to_string(), format!("`receive` {itself}"));
        group.barrier()
    });
}

#[test]
fn ranks_far_ahead_get_correct_results() {
    on_all(3, |group, rank| {
        // The root does not wait for receivers, and senders to another root wait for no rank.
        for round in 0..200 {
            let mut data = vec![if rank == 0 { round } else { -1 }; 100];
            group.broadcast(&mut data, Rank(0))?;
            assert_eq!(data, vec![round; 100]);
            let all = group.gather(&[i64::from(rank), round], &[2; 3], Rank(2))?;
            assert_eq!(all, (rank == 2).then(|| vec![0, round, 1, round, 2, round]));
        }
        Ok(())
    });
}
