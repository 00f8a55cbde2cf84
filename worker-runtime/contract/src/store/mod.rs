//! The store: its wire protocol and its state, both without IO.

pub mod keyspace;
pub mod protocol;
