//! Appendix A of the torchrun contract: one test for each row, named as the row is.
//!
//! What PyTorch's torchrun can be asked for, it is asked for: a row starts ours under the name torchrun and PyTorch's
//! own with the same command line, and fails unless they agree ([`pair::Pair`]) and the contract is right about both.
//! Rows that torchrun 2.15 itself fails ("better") are asserted of ours alone, under both of our names.
//! [`rows`] has the list, and fails on a row without a test.

mod command_line;
mod environment;
mod logs;
mod pair;
mod processes;
mod rendezvous;
mod report;
mod rows;

pub(crate) use rows::list_tests;
