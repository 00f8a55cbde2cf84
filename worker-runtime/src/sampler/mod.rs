//! The samples of a rank: torch's `DistributedSampler`, and batches that do not
//! depend on the number of ranks.
//!
//! All of it is pure: the same length, seed, epoch and ranks give the same samples on every machine and after
//! every restart, so a checkpoint needs only the step.

mod batches;
mod mt19937;
mod permutation;

use rankrun_contract::rank::{Rank, WorldSize};

pub use batches::GlobalBatches;

/// Options of a sampler, with torch's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerOptions {
    /// Whether each epoch has a random order; otherwise samples keep theirs.
    pub shuffle: bool,
    /// Seed of the orders, the same on all ranks. The sum of seed and epoch seeds the generator, which uses
    /// the lower 32 bits, as torch's does. A negative seed of torch is its two's complement here.
    pub seed: u64,
    /// If ranks cannot get equally many samples: drop the last ones instead of repeating the first ones.
    pub drop_last: bool,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self { shuffle: true, seed: 0, drop_last: false }
    }
}

/// Why a sampler cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// The rank is not below the world size.
    #[error("rank {rank} does not exist: the {world_size} ranks are counted from 0")]
    NoSuchRank {
        /// The given rank.
        rank: Rank,
        /// Number of ranks.
        world_size: WorldSize,
    },
    /// The data is empty. torch returns an empty sampler, and a training that seems to work.
    #[error("the data has no samples: its length is 0")]
    NoSamples,
    /// The batch size is 0.
    #[error("the batch size is 0; it must be at least 1")]
    EmptyBatch,
}

/// The samples of one rank in each epoch: index for index those of PyTorch's
/// `torch.utils.data.DistributedSampler` (2.15).
///
/// All ranks share the order of an epoch. Its length is made a multiple of the number of ranks, by repeating
/// its beginning or by cutting its end; rank `r` of `n` takes the positions `r`, `r + n`, `r + 2n` and so on.
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
    /// A sampler for data of `length` samples.
    ///
    /// # Errors
    /// The data is empty, or there is no such rank.
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

    /// Number of samples of each rank in an epoch: the same on every rank, and 0 if
    /// `drop_last` leaves fewer samples than ranks.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "torch's `len`; whether it is 0 is rarely asked")]
    pub fn len(&self) -> usize {
        let ranks = self.world_size.get() as usize;
        if self.options.drop_last { self.length / ranks } else { self.length.div_ceil(ranks) }
    }

    /// Indices of this rank's samples in an epoch, in order. The argument replaces
    /// torch's `set_epoch`, which is easily forgotten.
    #[must_use]
    pub fn indices(&self, epoch: u64) -> Vec<usize> {
        let order = self.epoch_order(epoch);
        let ranks = self.world_size.get() as usize;
        // torch repeats the order as often as needed; a cut order is never that long.
        let at = |place: usize| order[place % order.len()];
        (0..self.len()).map(|turn| at(self.rank.index() + turn * ranks)).collect()
    }

    /// Number of samples in the data.
    #[must_use]
    pub fn dataset_len(&self) -> usize {
        self.length
    }

    /// The order of an epoch, shared by all ranks.
    fn epoch_order(&self, epoch: u64) -> Vec<usize> {
        if self.options.shuffle {
            permutation::permutation(self.length, self.options.seed.wrapping_add(epoch))
        } else {
            (0..self.length).collect()
        }
    }
}

#[cfg(test)]
mod tests;
