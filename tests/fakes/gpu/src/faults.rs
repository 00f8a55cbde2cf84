//! What goes wrong on request.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::world::Comm;

/// Calls so far, by function.
static CALLS: LazyLock<Mutex<HashMap<String, u32>>> = LazyLock::new(Mutex::default);

#[expect(clippy::disallowed_methods, reason = "a fake library has nothing but the process that opens it")]
fn requested_faults() -> String {
    std::env::var("FAKE_GPU").unwrap_or_default()
}

/// All values of this fault.
fn values(fault: &str) -> Vec<String> {
    let pairs = requested_faults();
    let pairs = pairs.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == fault).map(|(_, value)| value.to_owned()).collect()
}

/// The value of this fault.
pub(crate) fn value(fault: &str) -> Option<String> {
    values(fault).pop()
}

/// Begins a function: the code with which it fails, if it is to; does not return while it hangs.
pub(crate) fn enter(function: &str, comm: Option<&Comm>) -> Option<c_int> {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let call = calls.entry(function.to_owned()).or_default();
    *call += 1;
    let call = *call;
    drop(calls);
    let is_asked = |what: &str| values(what).iter().any(|name| name == function);
    if is_asked("freeze") {
        loop {
            std::thread::park();
        }
    }
    if let Some(comm) = comm.filter(|_| is_asked("hang")) {
        comm.wait_for_abort();
        // As a call that was interrupted.
        return Some(3);
    }
    values("fail").iter().find_map(|fault| {
        let mut parts = fault.split(':');
        let is_ours = parts.next() == Some(function);
        let code = parts.next()?.parse().ok()?;
        let from: u32 = parts.next().map_or(Some(1), |number| number.parse().ok())?;
        (is_ours && call >= from).then_some(code)
    })
}
