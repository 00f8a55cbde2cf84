//! What the examples share.

pub mod console;
pub mod gpu;
pub mod random;
pub mod share;
