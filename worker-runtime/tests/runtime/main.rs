//! The worker runtime against a real store on loopback: every operation, and every way to lose a rank.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod group;
mod join;
mod loss;
mod meet;
mod mismatch;
#[cfg(feature = "nccl")]
mod nccl;
mod pair;
mod parting;
mod process;
mod report;
mod server;
mod split;
mod store;
mod world;
