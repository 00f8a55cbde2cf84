//! Words and scripts for a POSIX shell. Pure.

pub mod quote;
pub mod script;
pub mod split;
