//! The stacks of running workers: Python's, which the hook of each worker writes into a file in memory, and what the
//! kernel shows of every thread. The calls block for as long as they may: a thread beside the agent's makes them.

mod collect;
mod dump_file;
mod kernel;

pub(crate) use collect::{STACKS_TIMEOUT, StackTarget, take_stacks};
pub(crate) use dump_file::DumpFile;
