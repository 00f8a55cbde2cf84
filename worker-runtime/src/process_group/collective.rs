//! One collective call with its memory, whatever the element type and wherever the memory lies. Pure.

use rankrun_contract::rank::{Rank, WorldSize};

use super::element::{DataType, Reduction};
use super::error::GroupError;
use super::message::{Call, Operation};

/// A collective call: `R` is memory that it reads, `W` memory that it writes (and reads, where the call works in place).
///
/// Memory is counted in bytes and holds whole elements of one type. What each call does is said at the method of the same
/// name of [`Group`](super::Group).
#[derive(Debug)]
pub enum Collective<'a, R, W> {
    /// Nobody goes on before all are here.
    Barrier,
    /// `data` becomes the root's.
    Broadcast {
        /// Equally long on all ranks.
        data: W,
        /// Whose data it is.
        root: Rank,
    },
    /// `data` becomes the reduction over all ranks, on all ranks.
    AllReduce {
        /// Equally long on all ranks.
        data: W,
        /// How.
        how: Reduction,
    },
    /// `data` becomes the reduction over all ranks on the root; elsewhere it stays what it is.
    Reduce {
        /// Equally long on all ranks.
        data: W,
        /// How.
        how: Reduction,
        /// Who gets it.
        root: Rank,
    },
    /// Each rank gets its part of the reduction over all ranks.
    ReduceScatter {
        /// As many parts of equal length as there are ranks.
        input: R,
        /// One part.
        output: W,
        /// How.
        how: Reduction,
    },
    /// The inputs of all ranks one after another, on all ranks.
    AllGather {
        /// Equally long on all ranks.
        input: R,
        /// As many parts as there are ranks.
        output: W,
    },
    /// The inputs of all ranks one after another, on the root.
    Gather {
        /// `counts[rank]` elements.
        input: R,
        /// On the root, all elements; elsewhere nothing.
        output: Option<W>,
        /// Elements of each rank, the same on all ranks.
        counts: &'a [usize],
        /// Who gets them.
        root: Rank,
    },
    /// The parts of the root's input, one for each rank.
    Scatter {
        /// On the root, all elements; elsewhere nothing.
        input: Option<R>,
        /// `counts[rank]` elements.
        output: W,
        /// Elements of each rank, the same on all ranks.
        counts: &'a [usize],
        /// Whose they are.
        root: Rank,
    },
    /// To one rank, which receives.
    Send {
        /// As long as what the other rank receives.
        data: R,
        /// To whom.
        to: Rank,
    },
    /// From one rank, which sends.
    Receive {
        /// As long as what the other rank sends.
        data: W,
        /// From whom.
        from: Rank,
    },
}

/// A call on memory of this process.
pub type HostCollective<'a> = Collective<'a, &'a [u8], &'a mut [u8]>;

/// Memory whose length is known.
pub trait Length {
    /// In bytes.
    fn bytes(&self) -> usize;
}

impl Length for &[u8] {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Length for &mut [u8] {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl<R: Length, W: Length> Collective<'_, R, W> {
    /// Which operation it is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Barrier => Operation::Barrier,
            Self::Broadcast { .. } => Operation::Broadcast,
            Self::AllReduce { .. } => Operation::AllReduce,
            Self::Reduce { .. } => Operation::Reduce,
            Self::ReduceScatter { .. } => Operation::ReduceScatter,
            Self::AllGather { .. } => Operation::AllGather,
            Self::Gather { .. } => Operation::Gather,
            Self::Scatter { .. } => Operation::Scatter,
            Self::Send { .. } => Operation::Send,
            Self::Receive { .. } => Operation::Receive,
        }
    }

    /// The one rank that the call names.
    #[must_use]
    pub fn named_rank(&self) -> Option<Rank> {
        match *self {
            Self::Broadcast { root, .. }
            | Self::Reduce { root, .. }
            | Self::Gather { root, .. }
            | Self::Scatter { root, .. }
            | Self::Send { to: root, .. }
            | Self::Receive { from: root, .. } => Some(root),
            Self::Barrier | Self::AllReduce { .. } | Self::ReduceScatter { .. } | Self::AllGather { .. } => {
                None
            }
        }
    }

    fn reduction(&self) -> Option<Reduction> {
        match *self {
            Self::AllReduce { how, .. } | Self::Reduce { how, .. } | Self::ReduceScatter { how, .. } => {
                Some(how)
            }
            _ => None,
        }
    }

    /// Elements over all ranks where these differ, else elements of one rank's input (of its data).
    fn elements(&self, data_type: DataType) -> usize {
        let of = |bytes: usize| bytes / data_type.size().max(1);
        match self {
            Self::Barrier => 0,
            Self::Broadcast { data, .. }
            | Self::AllReduce { data, .. }
            | Self::Reduce { data, .. }
            | Self::Receive { data, .. } => of(data.bytes()),
            Self::Send { data: input, .. }
            | Self::ReduceScatter { input, .. }
            | Self::AllGather { input, .. } => of(input.bytes()),
            Self::Gather { counts, .. } | Self::Scatter { counts, .. } => counts.iter().sum(),
        }
    }

    /// The call, as far as all ranks must agree on it; it has no number yet.
    #[must_use]
    pub fn call(&self, data_type: DataType) -> Call {
        let (operation, reduction, root) = (self.operation(), self.reduction(), self.named_rank());
        let data_type = if operation == Operation::Barrier { DataType::None } else { data_type };
        Call { operation, data_type, reduction, root, count: self.elements(data_type) as u64, sequence: 0 }
    }

    /// Whether every length fits the others, and every rank is one of the group, for `rank` of `world_size` ranks.
    ///
    /// # Errors
    /// [`GroupError::NoSuchRank`], [`GroupError::WrongLength`].
    pub fn check(&self, data_type: DataType, rank: Rank, world_size: WorldSize) -> Result<(), GroupError> {
        let (operation, world) = (self.operation(), world_size.get() as usize);
        if let Some(root) = self.named_rank().filter(|named| named.0 >= world_size.get()) {
            return Err(GroupError::NoSuchRank { operation, root, world_size });
        }
        let expect = |what, expected: usize, given: usize| {
            if expected == given {
                Ok(())
            } else {
                Err(GroupError::WrongLength { operation, what, expected, given })
            }
        };
        let size = data_type.size().max(1);
        let of = |bytes: usize| bytes / size;
        match self {
            Self::ReduceScatter { input, output, .. } => {
                expect("elements as input", of(output.bytes()).saturating_mul(world), of(input.bytes()))
            }
            Self::AllGather { input, output } => {
                expect("elements as output", of(input.bytes()).saturating_mul(world), of(output.bytes()))
            }
            Self::Gather { counts, .. } | Self::Scatter { counts, .. } => {
                expect("counts", world, counts.len())?;
                let total = total(counts, size).ok_or(GroupError::WrongLength {
                    operation,
                    what: "elements at most",
                    expected: usize::MAX,
                    given: usize::MAX,
                })?;
                let own = counts[rank.index()];
                let (part, all) = match self {
                    Self::Gather { input, output, .. } => (input.bytes(), output.as_ref().map(Length::bytes)),
                    Self::Scatter { input, output, .. } => {
                        (output.bytes(), input.as_ref().map(Length::bytes))
                    }
                    _ => return Ok(()),
                };
                expect("elements", own, of(part))?;
                let is_root = self.named_rank() == Some(rank);
                if is_root { expect("elements", total, of(all.unwrap_or(0))) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}

/// Elements in all, unless there are more than memory holds.
fn total(counts: &[usize], size: usize) -> Option<usize> {
    let total = counts.iter().try_fold(0usize, |total, &count| total.checked_add(count))?;
    total.checked_mul(size).map(|_| total)
}
