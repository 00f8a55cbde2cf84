//! Signals what is left of the process groups of ended workers. When to do so is the state's decision (`state::groups`).

use std::collections::HashSet;

use rankrun_core::posix::{Pid, ProcessScanError, Signal};

use crate::process::descendants::{FoundProcess, live_descendants};
use crate::process::own_pid;
use crate::process::proc::ProcessStat;

/// A second walk finds processes born during the first.
const MAX_SCANS: usize = 16;

/// Signals the processes below this one that are in these groups; returns the groups that have any. The number of a group
/// may be another's by now, so only a process below this one counts.
///
/// # Errors
/// The processes cannot be listed.
pub(crate) fn signal_groups_left(
    groups: &[Pid],
    signal: Option<Signal>,
) -> Result<HashSet<Pid>, ProcessScanError> {
    let mut found = HashSet::new();
    let mut known = HashSet::new();
    for _ in 0..MAX_SCANS {
        let mut members = members_of(groups)?;
        found.extend(members.iter().map(|(_, group)| *group));
        members.retain(|(process, _)| known.insert(process.pid));
        let Some(signal) = signal.filter(|_| !members.is_empty()) else { break };
        members.iter().for_each(|(process, _)| process.signal_and_continue(signal));
    }
    Ok(found)
}

fn members_of(groups: &[Pid]) -> Result<Vec<(FoundProcess, Pid)>, ProcessScanError> {
    let mut members = Vec::new();
    for process in live_descendants(own_pid())? {
        let group = ProcessStat::of(process.pid)?.and_then(|stat| stat.process_group());
        members.extend(group.filter(|group| groups.contains(group)).map(|group| (process, group)));
    }
    Ok(members)
}
