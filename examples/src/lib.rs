//! Shared modules of the examples.

pub mod batch_split;
pub mod console;
pub mod gpu;
pub mod random;
