//! Calls on memory of the host.

use std::ops::{Deref, DerefMut};

use rankrun_worker::process_group::Buffer;
use rankrun_worker::{Group, GroupError, Reduction};

use crate::sweep::Call;
use crate::value::{self, Number};
use crate::{Operation, Options, Owner, ROOT};

/// Memory of one call, of which one part is given and one is taken, or all is both.
pub(crate) struct OnHost<T> {
    operation: Operation,
    how: Reduction,
    input: Memory<T>,
    output: Memory<T>,
}

/// Memory of the group or of the program.
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
    /// Memory for a call in which each rank gives or takes `count` elements.
    pub(crate) fn new(options: &Options, group: &mut Group, count: usize) -> Self {
        let all = count * group.world_size().get() as usize;
        let (input, output) = match options.operation {
            Operation::AllReduce | Operation::Broadcast | Operation::Reduce => (0, count),
            Operation::AllGather => (count, all),
            Operation::ReduceScatter => (all, count),
        };
        let (input, output) = (Memory::new(options, group, input), Memory::new(options, group, output));
        Self { operation: options.operation, how: options.redop.into(), input, output }
    }
}

impl<T: Number> Call for OnHost<T> {
    fn fill(&mut self, group: &Group) {
        let (rank, world) = (group.rank().0, group.world_size().get());
        let given = if self.input.is_empty() { &mut self.output } else { &mut self.input };
        for (index, place) in given.iter_mut().enumerate() {
            *place = T::of(value::element(rank, world, index));
        }
    }

    fn run(&mut self, group: &mut Group) -> Result<(), GroupError> {
        match self.operation {
            Operation::AllReduce => group.all_reduce(&mut self.output, self.how),
            Operation::Reduce => group.reduce(&mut self.output, self.how, ROOT),
            Operation::Broadcast => group.broadcast(&mut self.output, ROOT),
            Operation::AllGather => group.all_gather_into(&self.input, &mut self.output),
            Operation::ReduceScatter => group.reduce_scatter(&self.input, &mut self.output, self.how),
        }
    }

    fn count_wrong(&self, group: &Group) -> u64 {
        let (rank, world) = (group.rank(), group.world_size().get());
        let count = self.output.len();
        let part = count / world as usize;
        let expected = |index: usize| match self.operation {
            Operation::Reduce if rank != ROOT => f64::from(value::element(rank.0, world, index)),
            Operation::AllReduce | Operation::Reduce => value::reduced(T::DATA_TYPE, self.how, world, index),
            Operation::ReduceScatter => {
                value::reduced(T::DATA_TYPE, self.how, world, rank.index() * count + index)
            }
            Operation::Broadcast => f64::from(value::element(ROOT.0, world, index)),
            Operation::AllGather => {
                let giver = u32::try_from(index / part.max(1)).unwrap_or(u32::MAX);
                f64::from(value::element(giver, world, index % part.max(1)))
            }
        };
        self.output.iter().enumerate().filter(|&(index, value)| !value.is(expected(index))).count() as u64
    }
}
