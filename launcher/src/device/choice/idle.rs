//! `--devices idle`: a device that nobody uses.
//!
//! It has no process, and of its memory no more is in use than a driver keeps for itself: 5 per cent or 500 MiB,
//! whichever is more. The memory is looked at even where no process is listed, since a container sees none of the
//! others'. A device about which neither is known is not idle, since nobody can promise it.

use crate::device::{Accelerator, Condition};

/// What a driver may keep of any card, in bytes.
const DRIVERS_OWN: u64 = 500 << 20;

/// Why a device is not idle; `None` where it is.
pub(super) fn busy(accelerator: &Accelerator) -> Option<String> {
    if let Condition::Lost { why } = &accelerator.condition {
        return Some(format!("it does not answer: {why}"));
    }
    let processes = accelerator.state.as_ref().map(|state| state.processes.as_slice());
    if let Some([process, others @ ..]) = processes {
        let name = process.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let others = match others.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        return Some(format!("process {}{name}{others} uses it", process.pid));
    }
    let Some((total, free)) = accelerator.memory.and_then(|memory| Some((memory.total, memory.free?))) else {
        return processes.is_none().then(|| "nothing is known about its use".to_owned());
    };
    let used = total.saturating_sub(free);
    (used > DRIVERS_OWN.max(total / 20)).then(|| format!("{} MiB of its memory are in use", used >> 20))
}
