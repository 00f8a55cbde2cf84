//! Shared modules of the examples.

pub mod console;
pub mod gpu;
pub mod random;
pub mod share;
