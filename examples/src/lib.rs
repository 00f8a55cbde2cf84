//! What the examples share.

pub mod console;
pub mod random;
pub mod share;
