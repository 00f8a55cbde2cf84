//! Which samples a rank learns from: torch's `DistributedSampler`, and batches that do not depend on the number of ranks.
//!
//! Everything here is pure: the same length, seed, epoch and ranks give the same samples on every machine and after every
//! restart, so a checkpoint needs to keep the step and nothing else.

mod batches;
mod mt19937;
mod permutation;

use rankrun_contract::rank::{Rank, WorldSize};

pub use batches::GlobalBatches;

/// How samples are chosen. The defaults are torch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerOptions {
    /// Whether each epoch has an order of its own; else samples are taken as they lie.
    pub shuffle: bool,
    /// Decides the orders; the same on all ranks. The sum of seed and epoch seeds the generator, which looks at the lower 32 bits
    /// only, as torch's does. A negative seed of torch is its two's complement here.
    pub seed: u64,
    /// Where the samples cannot be shared out equally: whether the last ones are left out, or the first ones are taken twice.
    pub drop_last: bool,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self { shuffle: true, seed: 0, drop_last: false }
    }
}

/// Why there is nothing to sample.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// A rank that the world does not have.
    #[error("there is no rank {rank} among {world_size} ranks, which are counted from 0")]
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// How many there are.
        world_size: WorldSize,
    },
    /// No sample at all. torch gives an empty sampler, and a training that seems to work.
    #[error("there are no samples: the length of the data is 0")]
    NoSamples,
    /// Steps of no samples.
    #[error("a batch of 0 samples")]
    EmptyBatch,
}

/// The samples of one rank in each epoch: those that PyTorch's `torch.utils.data.DistributedSampler` (2.15) gives the same rank, index
/// for index.
///
/// All ranks share one order of an epoch. It is made as long as a multiple of the number of ranks, by repeating its beginning or by
/// cutting its end, and rank `r` of `n` takes the places `r`, `r + n`, `r + 2n` and so on.
///
/// ```
/// use rankrun_worker::sampler::{DistributedSampler, SamplerOptions};
/// use rankrun_worker::{Rank, WorldSize};
///
/// # fn main() -> Result<(), rankrun_worker::sampler::SamplerError> {
/// let two = WorldSize::new(2).expect("more than none");
/// let options = SamplerOptions { shuffle: false, ..SamplerOptions::default() };
/// let sampler = DistributedSampler::new(5, Rank(1), two, options)?;
/// for epoch in 0..2 {
///     assert_eq!(sampler.indices(epoch), [1, 3, 0]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedSampler {
    length: usize,
    rank: Rank,
    world_size: WorldSize,
    options: SamplerOptions,
}

impl DistributedSampler {
    /// For data of `length` samples.
    ///
    /// # Errors
    /// There is no sample, or no such rank.
    pub fn new(
        length: usize,
        rank: Rank,
        world_size: WorldSize,
        options: SamplerOptions,
    ) -> Result<Self, SamplerError> {
        if rank.0 >= world_size.get() {
            return Err(SamplerError::NoSuchRank { rank, world_size });
        }
        if length == 0 {
            return Err(SamplerError::NoSamples);
        }
        Ok(Self { length, rank, world_size, options })
    }

    /// How many samples each rank takes in an epoch: the same number on every rank, and none at all where `drop_last` leaves fewer
    /// samples than ranks.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "torch's `len`; whether it is 0 is rarely asked")]
    pub fn len(&self) -> usize {
        let ranks = self.world_size.get() as usize;
        if self.options.drop_last { self.length / ranks } else { self.length.div_ceil(ranks) }
    }

    /// The samples of this rank in an epoch, in order. The argument stands for torch's `set_epoch`, which is easily forgotten.
    #[must_use]
    pub fn indices(&self, epoch: u64) -> Vec<usize> {
        let order = self.order(epoch);
        let ranks = self.world_size.get() as usize;
        // torch repeats the order from its beginning as often as needed; a cut order is never that long.
        let at = |place: usize| order[place % order.len()];
        (0..self.len()).map(|turn| at(self.rank.index() + turn * ranks)).collect()
    }

    /// How many samples there are in all.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The order of an epoch, which all ranks share.
    fn order(&self, epoch: u64) -> Vec<usize> {
        if self.options.shuffle {
            permutation::permutation(self.length, self.options.seed.wrapping_add(epoch))
        } else {
            (0..self.length).collect()
        }
    }
}

#[cfg(test)]
mod tests;
