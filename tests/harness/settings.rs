//! The switches of the test run, all from the environment.
#![expect(clippy::disallowed_methods, reason = "a test run is configured by its environment")]

use std::env;
use std::io::{self, Write};

/// Writes to the user's terminal, past the capture of a passing test's output.
pub fn print_notice(text: &str) {
    // A closed stderr is not a reason to fail.
    let _ = writeln!(io::stderr(), "{text}");
}

fn is_enabled(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value == "1")
}

/// `RANKRUN_SOAK=1`: the big counts, with the figures printed.
#[must_use]
pub fn is_soak() -> bool {
    is_enabled("RANKRUN_SOAK")
}

/// `RANKRUN_E2E_ORACLE=1`: PyTorch's torchrun in place of ours under that name.
#[must_use]
pub fn is_torchrun() -> bool {
    is_enabled("RANKRUN_E2E_ORACLE")
}

/// Whether tests that need new namespaces run: always, unless `RANKRUN_E2E_NO_NAMESPACES=1` says that this machine
/// does not permit them.
#[must_use]
pub fn can_use_namespaces() -> bool {
    let skipped = is_enabled("RANKRUN_E2E_NO_NAMESPACES");
    if skipped {
        print_notice("skipped: RANKRUN_E2E_NO_NAMESPACES=1");
    }
    !skipped
}

/// Whether a behaviour that PyTorch's torchrun lacks is to be tested: not with that one in our place.
#[must_use]
pub fn is_rankrun() -> bool {
    let skipped = is_torchrun();
    if skipped {
        print_notice("skipped: torchrun 2.15 fails this one");
    }
    !skipped
}
