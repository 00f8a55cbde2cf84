//! Status lines about processes that outlive the workers, one line each. Pure.

use std::time::Duration;

use rankrun_core::posix::{Pid, Signal};

use rankrun_core::job_event::{JobEvent, ShutdownNotice};
use rankrun_core::plain::plain;
use rankrun_core::spec::stop::StopReason;

/// The most processes that one line names.
const MAX_NAMED: usize = 4;

/// A process that a worker left running: pid and command.
pub(crate) type LeftoverProcess = (Pid, String);

/// The processes by pid alone.
#[must_use]
pub(crate) fn without_commands(leftovers: Vec<LeftoverProcess>) -> Vec<LeftoverProcess> {
    leftovers.into_iter().map(|(pid, _)| (pid, String::new())).collect()
}

/// The launcher waits for these processes, up to `at_most`; the time limit of the job ends the wait too.
#[must_use]
pub(crate) fn waiting(leftovers: &[LeftoverProcess], at_most: Duration, is_limited: bool) -> String {
    let at_most = at_most.as_secs_f64();
    let enders = if is_limited { "a signal or the time limit" } else { "a signal" };
    format!(
        "all workers have succeeded; waiting up to {at_most} s for what they left behind, {}; {enders} ends the wait",
        leftover_names(leftovers)
    )
}

/// The launcher sends SIGTERM to these processes.
#[must_use]
pub(crate) fn ending(leftovers: &[LeftoverProcess], reason: StopReason, grace: Duration) -> String {
    let reason = match reason {
        StopReason::Signal(signal) => signal.to_string(),
        StopReason::TimeLimit => "the time limit is over".to_owned(),
        _ => "still there".to_owned(),
    };
    format!(
        "{reason}: ending {}; SIGKILL follows in {} s (RANKRUN_KEEP=1 in its environment lets a process live on)",
        leftover_names(leftovers),
        grace.as_secs_f64()
    )
}

/// The launcher kills these processes (SIGKILL).
#[must_use]
pub(crate) fn killing(leftovers: &[LeftoverProcess], ignored_signal: Option<Signal>) -> String {
    let reason = match ignored_signal {
        Some(signal) => format!("still there after {signal}"),
        None => "second signal received".to_owned(),
    };
    format!("killing {}: {reason}", leftover_names(leftovers))
}

/// These processes survived SIGKILL; the launcher gives up.
#[must_use]
pub(crate) fn unkillable(leftovers: &[LeftoverProcess]) -> String {
    format!("{} survived SIGKILL for 5 s, probably stuck in the kernel: giving up", leftover_names(leftovers))
}

/// The line for an event about processes that the workers left behind; `None` for other events.
#[must_use]
pub(crate) fn event_text(event: &JobEvent) -> Option<String> {
    match event {
        JobEvent::AwaitingLeftovers { signal, pids, at_most } => Some(awaited(*signal, pids, *at_most)),
        JobEvent::LeftoversSurvive { pids } => Some(surviving(pids)),
        _ => None,
    }
}

/// The line about processes that the workers left behind and that SIGKILL has not ended yet.
fn awaited(signal: Option<Signal>, pids: &[Pid], at_most: Duration) -> String {
    let wait = format!(
        "waiting up to {} s for {} to end after SIGKILL: a worker had left that behind",
        (at_most.as_secs_f64() * 10.0).round() / 10.0,
        pid_names(pids)
    );
    match signal {
        Some(signal) => format!("{signal}: {wait}; a second signal ends the wait"),
        None => wait,
    }
}

/// The line about processes that the workers left behind and that SIGKILL has not ended.
#[must_use]
pub(crate) fn surviving(pids: &[Pid]) -> String {
    format!(
        "{} survived SIGKILL, probably stuck in the kernel: a worker had left that behind",
        pid_names(pids)
    )
}

fn pid_names(pids: &[Pid]) -> String {
    let named: Vec<String> = pids.iter().map(|pid| format!("pid {pid}")).collect();
    named.join(", ")
}

/// The line about a long shutdown.
#[must_use]
pub(crate) const fn shutdown_notice(notice: ShutdownNotice) -> &'static str {
    match notice {
        ShutdownNotice::OutputPending => {
            "waiting for a reader of the workers' output; a signal ends the wait"
        }
        ShutdownNotice::OutputAbandoned => {
            "the time limit is over before the workers' output was read to its end"
        }
        ShutdownNotice::PeersPending => "waiting for the other nodes to end; a signal ends the wait",
    }
}

/// Lists processes as ``pid 12 `sleep 9` ``.
fn leftover_names(leftovers: &[LeftoverProcess]) -> String {
    let names = leftovers.iter().take(MAX_NAMED).map(|(pid, command)| match plain(command).as_str() {
        "" => format!("pid {pid}"),
        command => format!("pid {pid} `{command}`"),
    });
    let names: Vec<String> = names.collect();
    match leftovers.len().saturating_sub(MAX_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_above_limit_are_counted() {
        let leftovers: Vec<LeftoverProcess> =
            (1..=6).map(|pid| (Pid::from_raw(pid), format!("up\x1b[31m{pid}"))).collect();
        assert_eq!(
            waiting(&leftovers[..1], Duration::from_millis(1_500), false),
            "all workers have succeeded; waiting up to 1.5 s for what they left behind, pid 1 `up1`; a signal ends \
             the wait"
        );
        assert_eq!(
            killing(&leftovers, Some(Signal::SIGTERM)),
            "killing pid 1 `up1`, pid 2 `up2`, pid 3 `up3`, pid 4 `up4` and 2 more: still there after SIGTERM"
        );
        assert!(
            waiting(&leftovers[..1], Duration::ZERO, true)
                .ends_with("; a signal or the time limit ends the wait")
        );
        assert_eq!(
            killing(&without_commands(leftovers[..2].to_vec()), None),
            "killing pid 1, pid 2: second signal received"
        );
        let by_signal = StopReason::Signal(Signal::SIGTERM);
        assert!(
            ending(&leftovers[..1], by_signal, Duration::from_secs(3))
                .starts_with("SIGTERM: ending pid 1 `up1`;")
        );
    }

    #[test]
    fn awaited_leftovers_are_named_with_longest_wait() {
        let pids = [Pid::from_raw(7), Pid::from_raw(8)];
        let wait = "waiting up to 2.5 s for pid 7, pid 8 to end after SIGKILL: a worker had left that behind";
        assert_eq!(awaited(None, &pids, Duration::from_millis(2_500)), wait);
        assert_eq!(
            awaited(Some(Signal::SIGTERM), &pids, Duration::from_millis(2_500)),
            format!("SIGTERM: {wait}; a second signal ends the wait")
        );
    }
}
