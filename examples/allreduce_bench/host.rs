//! Calls on memory of the host.

use std::ops::{Deref, DerefMut};

use rankrun_worker::process_group::Buffer;
use rankrun_worker::{Group, ReduceOp};

use crate::sweep::Call;
use crate::value::{self, Number, RankPlace};
use crate::{BenchError, Operation, Options, Owner, ROOT};

/// Memory of one call: an input and an output part, or one buffer for both.
pub(crate) struct OnHost<T> {
    operation: Operation,
    op: ReduceOp,
    input: Memory<T>,
    output: Memory<T>,
}

/// Memory of the group, or a vector of the program.
enum Memory<T> {
    Own(Buffer<T>),
    Foreign(Vec<T>),
}

impl<T: Number> Memory<T> {
    fn new(options: &Options, group: &mut Group, elements: usize) -> Self {
        match options.memory {
            Owner::Group => Self::Own(group.buffer(elements)),
            Owner::Program => Self::Foreign(vec![T::zeroed(); elements]),
        }
    }
}

impl<T: Number> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Foreign(vector) => vector,
        }
    }
}

impl<T: Number> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Foreign(vector) => vector,
        }
    }
}

impl<T: Number> OnHost<T> {
    /// Memory for a call with `count` elements per rank.
    pub(crate) fn new(options: &Options, group: &mut Group, count: usize) -> Self {
        let (input, output) = options.operation.lengths(group.world_size().get(), count);
        let (input, output) = (Memory::new(options, group, input), Memory::new(options, group, output));
        Self { operation: options.operation, op: options.redop.into(), input, output }
    }
}

impl<T: Number> Call for OnHost<T> {
    fn fill(&mut self, group: &Group) -> Result<(), BenchError> {
        let input = if self.input.is_empty() { &mut self.output } else { &mut self.input };
        value::fill(input, group.rank().0, group.world_size().get());
        Ok(())
    }

    fn run(&mut self, group: &mut Group) -> Result<(), BenchError> {
        let done = match self.operation {
            Operation::AllReduce => group.all_reduce(&mut self.output, self.op),
            Operation::Reduce => group.reduce(&mut self.output, self.op, ROOT),
            Operation::Broadcast => group.broadcast(&mut self.output, ROOT),
            Operation::AllGather => group.all_gather_into(&self.input, &mut self.output),
            Operation::ReduceScatter => group.reduce_scatter(&self.input, &mut self.output, self.op),
        };
        Ok(done?)
    }

    fn count_wrong(&self, group: &Group) -> Result<u64, BenchError> {
        let place = RankPlace { rank: group.rank(), world: group.world_size().get() };
        Ok(value::count_wrong(&self.output, (self.operation, self.op), place))
    }
}
