//! What the example programs share: output, random numbers. The programs bring their models and arguments, and print the
//! results. Nothing of the launcher or of the worker runtime depends on this crate.

pub mod console;
pub mod random;
