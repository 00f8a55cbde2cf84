//! The run state of a process and its descendants, and their CPU time, from `/proc`. For the table of ranks and
//! `rankrun status`; it signals nothing.

use std::time::Duration;

use rankrun_core::job_event::activity::RunState;
use rankrun_core::posix::Errno;
use rankrun_core::posix::Pid;
use rankrun_core::posix::ProcessScanError;

use crate::process::descendants::filter_descendants;
use crate::process::proc::ProcessStat;
use crate::process::reserve::with_reserve;

/// The sum over a process and its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeUsage {
    /// The common state of the process and its descendants.
    pub state: RunState,
    /// User and system time, that of reaped children included.
    pub cpu_time: Duration,
    /// Resident memory in bytes. Shared pages count in each process.
    pub memory: u64,
}

/// The process and its living descendants.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`, or `is_expired` before its end (`ETIME`).
pub(crate) fn tree_of(root: Pid, is_late: &dyn Fn() -> bool) -> Result<Vec<Pid>, ProcessScanError> {
    with_reserve(|| tree_pids(root, is_late))
}

/// The usage of the process and its descendants; `None` if there is no such process, or `/proc` does not answer in
/// time.
#[must_use]
pub(crate) fn tree_usage(root: Pid, is_late: &dyn Fn() -> bool) -> Option<TreeUsage> {
    with_reserve(|| scan_tree_usage(root, is_late))
}

/// The same on another thread than the agent's, which must not wait for the reserve of descriptors.
#[must_use]
pub(crate) fn scan_tree_usage(root: Pid, is_late: &dyn Fn() -> bool) -> Option<TreeUsage> {
    let stats: Result<Vec<_>, _> = tree_pids(root, is_late).ok()?.into_iter().map(ProcessStat::of).collect();
    let units = Units {
        ticks_per_second: rustix::param::clock_ticks_per_second(),
        page_size: rustix::param::page_size() as u64,
    };
    sum_usage(&stats.ok()?, units)
}

/// The units of `/proc/PID/stat`.
#[derive(Clone, Copy)]
struct Units {
    ticks_per_second: u64,
    page_size: u64,
}

fn tree_pids(root: Pid, is_late: &dyn Fn() -> bool) -> Result<Vec<Pid>, ProcessScanError> {
    let in_time = |_, parent_is| {
        if is_late() {
            Err(ProcessScanError(Errno(libc::ETIME)))
        } else {
            Ok::<_, ProcessScanError>(parent_is)
        }
    };
    let found = filter_descendants(root, true, &in_time)?;
    Ok([root].into_iter().chain(found.into_iter().map(|found| found.pid)).collect())
}

/// The root is the first one. Descendants that have ended since the walk count no more.
fn sum_usage(stats: &[Option<ProcessStat>], units: Units) -> Option<TreeUsage> {
    let root = stats.first()?.as_ref()?;
    let all = || stats.iter().flatten();
    let is_one = |states: &str| all().any(|stat| stat.state().is_some_and(|state| states.contains(state)));
    let state = if root.has_ended() {
        RunState::Ended
    } else if is_one("D") {
        RunState::Uninterruptible
    } else if is_one("Tt") {
        RunState::Stopped
    } else if is_one("R") {
        RunState::Running
    } else {
        RunState::Waiting
    };
    let ticks: u64 = all().map(ProcessStat::cpu_ticks).sum();
    let millis = ticks.saturating_mul(1000) / units.ticks_per_second.max(1);
    let pages: u64 = all().map(ProcessStat::resident_pages).sum();
    let memory = pages.saturating_mul(units.page_size);
    Some(TreeUsage { state, cpu_time: Duration::from_millis(millis), memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `stat` of a process in this state that has used 1, 2, 3 and 4 ticks: user, system, and both of its children.
    fn stat(state: char) -> Option<ProcessStat> {
        Some(ProcessStat::parse(
            format!("7 (a b) {state} 1 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 99 8192 5").as_bytes(),
        ))
    }

    #[test]
    fn tree_usage_sums_times_and_picks_most_important_state() {
        let units = Units { ticks_per_second: 100, page_size: 4096 };
        let usage =
            |states: &[char]| sum_usage(&states.iter().map(|state| stat(*state)).collect::<Vec<_>>(), units);
        for (states, state) in [
            (&['S'][..], RunState::Waiting),
            (&['S', 'R'], RunState::Running),
            (&['R', 'T'], RunState::Stopped),
            (&['S', 't'], RunState::Stopped),
            (&['R', 'T', 'D'], RunState::Uninterruptible),
            (&['Z', 'R'], RunState::Ended),
        ] {
            let cpu_time = Duration::from_millis(100 * states.len() as u64);
            let memory = 5 * 4096 * states.len() as u64;
            assert_eq!(usage(states), Some(TreeUsage { state, cpu_time, memory }), "{states:?}");
        }
        assert_eq!(sum_usage(&[None, stat('R')], units), None, "the root is gone");
        assert_eq!(sum_usage(&[stat('S'), None], units), usage(&['S']), "a descendant is gone");
    }

    #[test]
    fn tree_usage_fails_if_late_or_process_is_gone() {
        let (own, gone) = (crate::process::own_pid(), Pid::from_raw(i32::MAX));
        assert!(tree_usage(own, &|| false).is_some());
        assert_eq!(tree_usage(gone, &|| false), None);
        assert_eq!(tree_of(own, &|| false).map(|pids| pids[0]), Ok(own));
        // The test runner has no children, and a walk without one cannot be late: init has some.
        let late = tree_of(crate::process::parent_pid(), &|| true);
        assert_eq!(late, Err(ProcessScanError(Errno(libc::ETIME))));
    }
}
