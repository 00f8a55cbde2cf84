//! The line of a command that a signal ends while it waits.

use std::thread::Builder;

use nix::sys::signal::{SigSet, Signal, raise};
use rankrun_host::blocking::CallStep;
use rankrun_host::process::signal::is_ignored;

/// From now on SIGINT and SIGTERM say what the command waits for, and then end it as they would have done. Called before
/// any other thread runs.
pub(super) fn report_interrupts(step: &CallStep, report: fn(&str)) {
    let mut signals = SigSet::empty();
    for (signal, known) in [
        (Signal::SIGINT, rankrun_core::posix::Signal::SIGINT),
        (Signal::SIGTERM, rankrun_core::posix::Signal::SIGTERM),
    ] {
        if !is_ignored(known) {
            signals.add(signal);
        }
    }
    let step = step.clone();
    if signals.thread_block().is_err() {
        return;
    }
    let waiter = Builder::new().spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        report(&format!("{signal}: gave up waiting for {}", step.get()));
        // Here: the signal goes to this thread, and its default action ends the process.
        let _ = signals.thread_unblock();
        let _ = raise(signal);
    });
    if waiter.is_err() {
        let _ = signals.thread_unblock();
    }
}
