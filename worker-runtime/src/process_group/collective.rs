//! One collective call with its memory, for any element type and memory kind. Pure.

use rankrun_contract::rank::{Rank, WorldSize};

use super::element::{DataType, ReduceOp};
use super::error::GroupError;
use super::message::{Call, Operation};

/// A collective call. `R` is memory that the call reads, `W` memory that it writes
/// (or reads and writes in place).
///
/// Memory is counted in bytes and holds whole elements of one type. The method of the same
/// name of [`Group`](super::Group) describes each call.
#[derive(Debug)]
pub enum Collective<'a, R, W> {
    /// No rank continues before every rank has made this call.
    Barrier,
    /// `data` becomes that of the root.
    Broadcast {
        /// Same length on every rank.
        data: W,
        /// The rank that provides the data.
        root: Rank,
    },
    /// `data` becomes the reduction over all ranks, on all ranks.
    AllReduce {
        /// Same length on every rank.
        data: W,
        /// The operation between the values of two ranks.
        op: ReduceOp,
    },
    /// `data` becomes the reduction over all ranks on the root; elsewhere it stays what it is.
    Reduce {
        /// Same length on every rank.
        data: W,
        /// The operation between the values of two ranks.
        op: ReduceOp,
        /// The rank that receives the result.
        root: Rank,
    },
    /// Each rank gets its part of the reduction over all ranks.
    ReduceScatter {
        /// One part of equal length for each rank, in rank order.
        input: R,
        /// The reduced part of this rank.
        output: W,
        /// The operation between the values of two ranks.
        op: ReduceOp,
    },
    /// Concatenates the inputs of all ranks in rank order, on all ranks.
    AllGather {
        /// Same length on every rank.
        input: R,
        /// The length of `input` times the number of ranks.
        output: W,
    },
    /// Concatenates the inputs of all ranks in rank order, on the root.
    Gather {
        /// `counts[rank]` elements of this rank.
        input: R,
        /// The sum of `counts` elements on the root, `None` elsewhere.
        output: Option<W>,
        /// Element count of each rank; the same list on every rank.
        counts: &'a [usize],
        /// The rank that receives the data.
        root: Rank,
    },
    /// Splits the input of the root into one part for each rank.
    Scatter {
        /// The sum of `counts` elements on the root, `None` elsewhere.
        input: Option<R>,
        /// `counts[rank]` elements for this rank.
        output: W,
        /// Element count of each rank; the same list on every rank.
        counts: &'a [usize],
        /// The rank that provides the data.
        root: Rank,
    },
    /// Sends to one rank, which makes the matching receive call.
    Send {
        /// Same length as the receive buffer of the other rank.
        data: R,
        /// The receiving rank.
        to: Rank,
    },
    /// Receives from one rank, which makes the matching send call.
    Receive {
        /// Same length as the data of the sending rank.
        data: W,
        /// The sending rank.
        from: Rank,
    },
}

/// A call on host memory of this process.
pub type HostCollective<'a> = Collective<'a, &'a [u8], &'a mut [u8]>;

/// Memory with a length in bytes, on the host or on a device.
pub trait Length {
    /// Length in bytes.
    fn byte_len(&self) -> usize;
}

impl Length for &[u8] {
    fn byte_len(&self) -> usize {
        self.len()
    }
}

impl Length for &mut [u8] {
    fn byte_len(&self) -> usize {
        self.len()
    }
}

impl<R: Length, W: Length> Collective<'_, R, W> {
    /// The operation, without its memory.
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

    /// The root of a rooted call, or the peer of a message.
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

    fn reduce_op(&self) -> Option<ReduceOp> {
        match *self {
            Self::AllReduce { op, .. } | Self::Reduce { op, .. } | Self::ReduceScatter { op, .. } => Some(op),
            _ => None,
        }
    }

    /// The element count that all ranks compare: the total where counts differ by rank, else that
    /// of one rank's input (or data).
    fn elements(&self, data_type: DataType) -> usize {
        let of = |bytes: usize| bytes / data_type.size().max(1);
        match self {
            Self::Barrier => 0,
            Self::Broadcast { data, .. }
            | Self::AllReduce { data, .. }
            | Self::Reduce { data, .. }
            | Self::Receive { data, .. } => of(data.byte_len()),
            Self::Send { data: input, .. }
            | Self::ReduceScatter { input, .. }
            | Self::AllGather { input, .. } => of(input.byte_len()),
            Self::Gather { counts, .. } | Self::Scatter { counts, .. } => counts.iter().sum(),
        }
    }

    /// The fields on which all ranks must agree. The sequence number is still 0.
    #[must_use]
    pub fn call(&self, data_type: DataType) -> Call {
        let (operation, reduction, root) = (self.operation(), self.reduce_op(), self.named_rank());
        let data_type = if operation == Operation::Barrier { DataType::None } else { data_type };
        Call {
            operation,
            data_type,
            reduce_op: reduction,
            root,
            count: self.elements(data_type) as u64,
            sequence: 0,
        }
    }

    /// Checks that lengths match each other and that every rank exists, for `rank` of `world_size` ranks.
    ///
    /// # Errors
    /// [`GroupError::NoSuchRank`], [`GroupError::WrongLength`].
    pub fn check(&self, data_type: DataType, rank: Rank, world_size: WorldSize) -> Result<(), GroupError> {
        let (operation, world) = (self.operation(), world_size.get() as usize);
        if let Some(root) = self.named_rank().filter(|named| named.0 >= world_size.get()) {
            return Err(GroupError::NoSuchRank { operation, root, world_size });
        }
        let expect = |unit, expected: usize, actual: usize| {
            if expected == actual {
                Ok(())
            } else {
                Err(GroupError::WrongLength { operation, unit, expected, actual })
            }
        };
        let size = data_type.size().max(1);
        let of = |bytes: usize| bytes / size;
        match self {
            Self::ReduceScatter { input, output, .. } => {
                expect("elements as input", of(output.byte_len()).saturating_mul(world), of(input.byte_len()))
            }
            Self::AllGather { input, output } => expect(
                "elements as output",
                of(input.byte_len()).saturating_mul(world),
                of(output.byte_len()),
            ),
            Self::Gather { counts, .. } | Self::Scatter { counts, .. } => {
                expect("counts", world, counts.len())?;
                let total = total_elements(counts, size).ok_or(GroupError::WrongLength {
                    operation,
                    unit: "elements at most",
                    expected: usize::MAX,
                    actual: usize::MAX,
                })?;
                let own = counts[rank.index()];
                let (part, all) = match self {
                    Self::Gather { input, output, .. } => {
                        (input.byte_len(), output.as_ref().map(Length::byte_len))
                    }
                    Self::Scatter { input, output, .. } => {
                        (output.byte_len(), input.as_ref().map(Length::byte_len))
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

/// The total element count; `None` if it exceeds the address space.
fn total_elements(counts: &[usize], size: usize) -> Option<usize> {
    let total = counts.iter().try_fold(0usize, |total, &count| total.checked_add(count))?;
    total.checked_mul(size).map(|_| total)
}
