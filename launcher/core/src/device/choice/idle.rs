//! `--devices idle`: a device that no process uses.
//!
//! An idle device has no process, and of its memory no more is in use than a driver keeps for itself ([`memory_in_use`]).
//! The memory is checked even without a listed process, since a container does not see the processes of other
//! containers. A device with neither fact known does not count as idle.

use crate::device::health::memory_in_use;
use crate::device::{Accelerator, Condition};

/// Why a device is not idle; `None` where it is.
pub(super) fn busy_reason(accelerator: &Accelerator) -> Option<String> {
    if let Condition::Lost { why: reason } = &accelerator.condition {
        return Some(format!("it does not answer: {reason}"));
    }
    let processes = accelerator.state.as_ref().map(|state| state.processes.as_slice());
    if let Some([process, rest @ ..]) = processes {
        let name = process.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let rest = match rest.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        return Some(format!("process {}{name}{rest} uses it", process.pid));
    }
    let Some(memory) = accelerator.memory.filter(|memory| memory.free.is_some()) else {
        return processes.is_none().then(|| "nothing is known about its use".to_owned());
    };
    memory_in_use(memory).map(|used| format!("{} MiB of its memory are in use", used >> 20))
}
