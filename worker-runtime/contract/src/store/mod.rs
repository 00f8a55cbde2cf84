//! The store through which launchers and workers meet: its wire protocol (`protocol`) and its state (`keyspace`), both
//! without IO. The launcher's server and the clients of launcher and workers own the sockets.

pub mod keyspace;
pub mod protocol;
