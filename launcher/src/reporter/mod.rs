//! Everything told to people and machines. The terminal has one writer: [`console`].

pub mod console;
mod row;
pub mod screen;
