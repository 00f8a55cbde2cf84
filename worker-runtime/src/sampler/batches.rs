//! Batches that are the same with any number of ranks.

use std::num::NonZeroUsize;

use super::{DistributedSampler, SamplerError};

/// The samples of each step, `batch_size` over all ranks, and this rank's part of them.
///
/// Epochs follow each other without a gap: a step takes the next samples from the orders of
/// [`DistributedSampler`], and may end one epoch and begin the next. No sample is repeated or dropped, so the
/// samples of a step are the same with any number of ranks, and a training that continues with more or fewer
/// ranks learns from the same batches. Parts differ by at most one sample: sum gradients over the ranks and
/// divide by the batch, instead of taking means of means.
#[derive(Debug, Clone)]
pub struct GlobalBatches {
    sampler: DistributedSampler,
    batch_size: NonZeroUsize,
    /// The cached order of one epoch.
    cached_epoch: Option<(u64, Vec<usize>)>,
}

impl GlobalBatches {
    /// Batches of `batch_size` samples over all ranks.
    ///
    /// # Errors
    /// `batch_size` is 0.
    pub fn new(sampler: DistributedSampler, batch: usize) -> Result<Self, SamplerError> {
        let batch = NonZeroUsize::new(batch).ok_or(SamplerError::EmptyBatch)?;
        Ok(Self { sampler, batch_size: batch, cached_epoch: None })
    }

    /// Indices of this rank's samples in a step, from step 0. The list is empty if ranks outnumber the batch.
    pub fn indices(&mut self, step: u64) -> Vec<usize> {
        let (batch, length) = (self.batch_size.get() as u128, self.sampler.length as u128);
        let ranks = u128::from(self.sampler.world_size.get());
        let own = u128::from(self.sampler.rank.0);
        let start = u128::from(step) * batch;
        (start..start + batch)
            // Counted over all epochs: at the end of an epoch no rank gets a second extra sample.
            .filter(|place| place % ranks == own)
            // An epoch beyond 2^64 is never reached; the remainder is below a length, which is a `usize`.
            .map(|place| self.sample_at((place / length) as u64, (place % length) as usize))
            .collect()
    }

    /// The sample at a position of an epoch.
    fn sample_at(&mut self, epoch: u64, place: usize) -> usize {
        if self.cached_epoch.as_ref().is_none_or(|(known, _)| *known != epoch) {
            self.cached_epoch = Some((epoch, self.sampler.epoch_order(epoch)));
        }
        self.cached_epoch.as_ref().map_or(0, |(_, order)| order[place])
    }
}
