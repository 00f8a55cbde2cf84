//! Which host this process is on, as far as ranks can reach each other without a network.

use std::fs;

use super::plan::Host;
use crate::context::WorkerContext;

/// Where the worker says that it is, else where it is.
pub(super) fn of(context: &WorkerContext) -> Host {
    match context.host() {
        Some(name) => {
            Host::new(&format!("named,{name}")).unwrap_or_else(|| Host::unknown(uuid::Uuid::new_v4()))
        }
        None => this(),
    }
}

/// The machine's boot and this process's network namespace: abstract sockets, through which shared memory is handed over, are
/// those of the namespace (unix(7), network_namespaces(7)), and two machines never have the same boot id (random(4)).
///
/// A process that cannot read them is on a host of its own, which is reached by TCP.
fn this() -> Host {
    let read = || {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/net").ok()?;
        Host::new(&format!("{},{}", boot.trim_end(), namespace.to_str()?))
    };
    read().unwrap_or_else(|| Host::unknown(uuid::Uuid::new_v4()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_for_every_rank_here() {
        assert_eq!(this(), this());
    }
}
