//! The worker runtime against a real store on loopback: every operation, and every way to lose a rank.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![expect(clippy::duplicate_mod, reason = "the same tests run on two transports")]

mod async_group;
mod calls;
mod counts;
#[cfg(feature = "cuda")]
mod cuda;
mod ddp;
mod elastic;
mod exit_order;
mod flood;
mod group;
mod join;
mod loss;
mod mismatch;
mod mixed;
mod mixed_kills;
#[cfg(feature = "nccl")]
mod nccl;
mod oracle;
mod pair;
mod process;
mod rendezvous;
mod report;
mod server;
mod shm;
mod split;
mod store;
mod threads;
mod world;

/// Ranks of one host share memory; what holds for them holds over TCP, too.
#[path = "."]
mod over_tcp {
    mod group;
    mod loss;
    mod mismatch;

    use std::time::Duration;

    use rankrun_worker::Group;
    use rankrun_worker::process_group::BackendChoice;

    fn run<R: Send>(world: u32, timeout: Duration, body: impl Fn(Group) -> R + Sync) -> Vec<Option<R>> {
        crate::world::run_on(BackendChoice::Tcp, (world, timeout), body)
    }
}

use world::run;
