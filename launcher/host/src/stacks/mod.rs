//! The stacks of running workers: Python's, which the hook of each worker writes into a file in memory, and what the
//! kernel shows of every thread. Tools look into workers without a Python stack, where they may. The calls block for as
//! long as they may: a thread beside the agent's makes them.

mod collect;
mod device_power;
mod dump_file;
mod kernel;
mod ptrace_facts;
mod python_reader;
mod tool_run;
mod tools;
#[cfg(test)]
mod tools_tests;

pub(crate) use collect::{STACKS_TIMEOUT, StackMethod, StackTarget, take_stacks};
pub(crate) use dump_file::DumpFile;
pub use python_reader::{parse_python_reader_argument, run_python_reader};
