//! The worker runtime against a real store on loopback: every operation, and every way to lose a rank.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod calls;
mod group;
mod join;
mod loss;
mod memory;
mod mismatch;
mod mixed;
mod oracle;
mod parting;
mod process;
mod queue;
mod report;
mod server;
mod store;
mod world;
