//! Batches of which the number of ranks changes nothing but who takes which sample.

use std::num::NonZeroUsize;

use super::{DistributedSampler, SamplerError};

/// The samples of all ranks in each step, `batch` in all, and this rank's share of them.
///
/// Epochs follow each other without a gap: a step takes the next samples of the orders that [`DistributedSampler`] gives to all ranks
/// together, and may end one epoch and begin the next. No sample is repeated or left out, so the samples of a step are the same with
/// any number of ranks: a training that goes on with more or fewer of them learns from the same batches. Shares differ by at most
/// one sample, so gradients are summed over the ranks and divided by the batch; they are not means of means.
#[derive(Debug, Clone)]
pub struct GlobalBatches {
    sampler: DistributedSampler,
    batch: NonZeroUsize,
    /// The order of one epoch, which is costly to make.
    known: Option<(u64, Vec<usize>)>,
}

impl GlobalBatches {
    /// Steps of `batch` samples over all ranks.
    ///
    /// # Errors
    /// A batch of none.
    pub fn new(sampler: DistributedSampler, batch: usize) -> Result<Self, SamplerError> {
        let batch = NonZeroUsize::new(batch).ok_or(SamplerError::EmptyBatch)?;
        Ok(Self { sampler, batch, known: None })
    }

    /// This rank's samples of a step, of which the first one is 0. There may be none where ranks are many.
    pub fn share(&mut self, step: u64) -> Vec<usize> {
        let (batch, length) = (self.batch.get() as u128, self.sampler.length as u128);
        let ranks = u128::from(self.sampler.world_size.get());
        let own = u128::from(self.sampler.rank.0);
        let start = u128::from(step) * batch;
        (start..start + batch)
            // Counted over all epochs: where an epoch ends, no rank gets a second extra sample.
            .filter(|place| place % ranks == own)
            // An epoch beyond 2^64 is not reached; the remainder is below a length, which is a `usize`.
            .map(|place| self.sample((place / length) as u64, (place % length) as usize))
            .collect()
    }

    /// The sample at a place of an epoch.
    fn sample(&mut self, epoch: u64, place: usize) -> usize {
        if self.known.as_ref().is_none_or(|(known, _)| *known != epoch) {
            self.known = Some((epoch, self.sampler.order(epoch)));
        }
        self.known.as_ref().map_or(0, |(_, order)| order[place])
    }
}
