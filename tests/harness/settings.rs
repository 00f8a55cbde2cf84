//! The switches of the test run, all from the environment.
#![expect(clippy::disallowed_methods, reason = "a test run is configured by its environment")]

use std::env;

fn switched_on(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value == "1")
}

/// `RANKRUN_SOAK=1`: the big counts, with the figures printed.
#[must_use]
pub fn soak() -> bool {
    switched_on("RANKRUN_SOAK")
}

/// `RANKRUN_E2E_ORACLE=1`: PyTorch's torchrun in place of ours under that name.
#[must_use]
pub fn oracle() -> bool {
    switched_on("RANKRUN_E2E_ORACLE")
}

/// Whether tests that need new namespaces run: always, unless `RANKRUN_E2E_NO_NAMESPACES=1` says that this machine
/// does not permit them.
#[must_use]
pub fn namespaces() -> bool {
    !switched_on("RANKRUN_E2E_NO_NAMESPACES")
}
