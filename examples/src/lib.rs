//! What the example programs share: the split of a batch over devices, output, kernels for GPUs, random numbers.
//! The programs bring their models and arguments, and print the results. Nothing of the launcher or of the worker
//! runtime depends on this crate.

pub mod batch_split;
pub mod console;
pub mod gpu;
pub mod random;
