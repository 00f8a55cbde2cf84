use proptest::prelude::*;

use super::*;

fn sampler(length: usize, rank: u32, ranks: u32, options: SamplerOptions) -> DistributedSampler {
    DistributedSampler::new(length, Rank(rank), WorldSize::new(ranks).unwrap(), options).unwrap()
}

const PLAIN: SamplerOptions = SamplerOptions { shuffle: false, seed: 0, drop_last: false };

/// `list(DistributedSampler(range(length), num_replicas=…, rank=…, …))` of torch 2.15.0.
#[test]
fn samples_match_torch() {
    let all = |length, ranks, options, epoch| {
        (0..ranks).map(|rank| sampler(length, rank, ranks, options).indices(epoch)).collect::<Vec<_>>()
    };
    let shuffled = SamplerOptions { seed: 3, ..SamplerOptions::default() };
    assert_eq!(all(10, 3, shuffled, 2), [[1, 6, 0, 7], [4, 3, 2, 1], [9, 5, 8, 4]]);
    let dropped = SamplerOptions { drop_last: true, ..shuffled };
    assert_eq!(all(11, 2, dropped, 0), [[9, 3, 4, 2, 1], [0, 6, 5, 8, 10]]);
    assert_eq!(all(2, 5, shuffled, 7), [[1], [0], [1], [0], [1]]);
}

#[test]
fn padding_repeats_samples_and_drop_last_may_leave_none() {
    assert_eq!(sampler(1, 3, 4, PLAIN).indices(0), [0]);
    assert_eq!(sampler(2, 2, 5, PLAIN).indices(0), [0]);
    let drop_last = SamplerOptions { drop_last: true, ..PLAIN };
    assert!(sampler(2, 0, 4, drop_last).indices(0).is_empty());
    assert_eq!(sampler(5, 1, 2, drop_last).indices(0), [1, 3]);
}

#[test]
fn invalid_sampler_is_refused() {
    let two = WorldSize::new(2).unwrap();
    let error = DistributedSampler::new(10, Rank(2), two, PLAIN).unwrap_err();
    assert_eq!(error.to_string(), "rank 2 does not exist: the 2 ranks are counted from 0");
    let error = DistributedSampler::new(0, Rank(0), two, PLAIN).unwrap_err();
    assert_eq!(error.to_string(), "the data has no samples: its length is 0");
    let error = GlobalBatches::new(sampler(10, 0, 2, PLAIN), 0).unwrap_err();
    assert_eq!(error.to_string(), "the batch size is 0; it must be at least 1");
}

#[test]
fn batch_continues_after_previous_batch() {
    let mut batches = GlobalBatches::new(sampler(5, 0, 1, PLAIN), 3).unwrap();
    let steps: Vec<_> = [0, 1, 2, 0].into_iter().map(|step| batches.indices(step)).collect();
    assert_eq!(steps, [[0, 1, 2], [3, 4, 0], [1, 2, 3], [0, 1, 2]]);
}

/// The indices of all ranks in a step.
fn rank_indices(ranks: u32, length: usize, batch: usize, step: u64) -> Vec<Vec<usize>> {
    let share = |rank| GlobalBatches::new(sampler(length, rank, ranks, PLAIN), batch).unwrap().indices(step);
    (0..ranks).map(share).collect()
}

#[test]
fn batch_across_epochs_is_split_evenly() {
    // Step 20 takes the sample 1000 of the first epoch, and 49 of the second one.
    let shares = rank_indices(2, 1001, 50, 20);
    assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [25, 25]);
    assert_eq!(shares[0][..3], [1000, 1, 3]);
    assert_eq!(shares[1][..3], [0, 2, 4]);
}

proptest! {
    #[test]
    fn rank_shares_differ_by_at_most_one_sample(
        (length, batch, step) in (1usize..80, 1usize..200, 0u64..40), ranks in 1u32..9,
    ) {
        let lengths: Vec<usize> = rank_indices(ranks, length, batch, step).iter().map(Vec::len).collect();
        let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{lengths:?}");
    }

    #[test]
    fn rank_count_does_not_change_global_batch(
        (length, batch, step, seed) in (1usize..80, 1usize..50, 0u64..40, any::<u64>()), ranks in 1u32..9,
    ) {
        let options = SamplerOptions { seed, ..SamplerOptions::default() };
        let shares: Vec<Vec<usize>> = (0..ranks)
            .map(|rank| GlobalBatches::new(sampler(length, rank, ranks, options), batch).unwrap().indices(step))
            .collect();
        let mut alone = GlobalBatches::new(sampler(length, 0, 1, options), batch).unwrap().indices(step);
        let mut together = shares.concat();
        alone.sort_unstable();
        together.sort_unstable();
        prop_assert_eq!(alone, together);
    }

    #[test]
    fn all_samples_are_used_unless_dropped(length in 1usize..200, ranks in 1u32..12, seed: u64, drop_last: bool) {
        let options = SamplerOptions { shuffle: true, seed, drop_last };
        let all: Vec<usize> = (0..ranks).flat_map(|rank| sampler(length, rank, ranks, options).indices(1)).collect();
        let different: std::collections::BTreeSet<_> = all.iter().copied().collect();
        let kept = if drop_last { length - length % ranks as usize } else { length };
        prop_assert_eq!(different.len(), kept);
        prop_assert_eq!(all.len(), sampler(length, 0, ranks, options).len() * ranks as usize);
    }
}
