//! The status lines on standard error while the job runs, one line per event. Pure: the agent's events come in,
//! [`UserLog`](super::user_log) writes them.

use std::time::Duration;

use rankrun_contract::rank::{LocalRank, Rank, RestartCount};

use crate::reporter::leftovers;
use crate::reporter::memory::end_in_words;
use crate::reporter::nodes;
use crate::reporter::rank_table::{self, TableSetting};
use crate::reporter::recurrence::recurrence_text;
use rankrun_core::hang::sentence::sentence;
use rankrun_core::hang::verdict::Verdict;
use rankrun_core::job_event::{JobEvent, NoRestart, WorkerEnd};
use rankrun_core::plain::plain;
use rankrun_core::posix::{Pid, Signal, signal_name};
use rankrun_core::rank_names::rank_names;
use rankrun_core::rendezvous::MembershipChange;
use rankrun_core::rendezvous::Round;
use rankrun_core::spec::LaunchSpec;
use rankrun_core::spec::stop::StopReason;

/// The text for one event of the job of `spec`, in this round of several nodes if there is one. `None` if the event
/// has no text. The line of a long wait names the awaited thing. A table has several lines, for no certain terminal.
#[must_use]
pub(crate) fn render(event: &JobEvent, spec: &LaunchSpec, round: Option<&Round>) -> Option<String> {
    Some(match event {
        JobEvent::WorkerFailed { end, live, .. } if live.is_empty() => {
            format!("{} failed: {}", worker_name(end, round), end_in_words(end, rank_of(end, round)))
        }
        JobEvent::WorkerFailed { end, live, grace } => format!(
            "{} failed: {}; {}",
            worker_name(end, round),
            end_in_words(end, rank_of(end, round)),
            wait_for_stop(spec, *grace, &format!("{} other{}", live.len(), plural(live.len())))
        ),
        JobEvent::Changed { .. }
        | JobEvent::Rejoined { .. }
        | JobEvent::EndedElsewhere { .. }
        | JobEvent::Settling
        | JobEvent::FinishedBeforeLoss { .. } => return node_event_text(event, spec),
        JobEvent::SomeFinished { finished, live, waited: since } => {
            some_finished(finished, live, *since, round)
        }
        JobEvent::RankTable(table) => rank_table::render(table, &TableSetting::of(round, None)),
        JobEvent::GroupFailed { .. } => return None,
        JobEvent::ExternalWorkerStarted { local_rank, pid } => external_worker_started(*local_rank, *pid),
        JobEvent::Stopping { signal, live, .. } if live.is_empty() => {
            format!("{signal}: no worker runs")
        }
        JobEvent::Stopping { signal, live, grace, .. } => {
            format!("{signal}: {}; a second signal kills", wait_for_stop(spec, *grace, &workers(live)))
        }
        JobEvent::Uninterruptible { .. }
        | JobEvent::NotJoined { .. }
        | JobEvent::Hang { .. }
        | JobEvent::NoProgress { .. }
        | JobEvent::TimeIsShort { .. }
        | JobEvent::TimeIsUp { .. } => return limit_event_text(event, spec),
        JobEvent::Killing { local_ranks, ignored_signal } => killing_text(local_ranks, *ignored_signal),
        JobEvent::AwaitingGroups { .. } | JobEvent::KillingGroups { .. } => return group_event_text(event),
        JobEvent::CannotEnd { local_ranks } => cannot_end_text(local_ranks),
        JobEvent::AwaitingLeftovers { .. } | JobEvent::LeftoversSurvive { .. } => {
            return leftovers::event_text(event);
        }
        JobEvent::LookingForProgress
        | JobEvent::ProgressUnknown
        | JobEvent::CauseRecurs { .. }
        | JobEvent::RestartRefused(_)
        | JobEvent::CalledSuccess { .. }
        | JobEvent::Waiting { .. }
        | JobEvent::RestartRequested { .. }
        | JobEvent::RestartedByRequest => return policy_event_text(event, spec),
        JobEvent::CheckingDevices
        | JobEvent::DevicesUnchecked { .. }
        | JobEvent::DeviceWarning(_)
        | JobEvent::DeviceDead(_)
        | JobEvent::NoRestart { .. }
        | JobEvent::DevicesReassigned { .. } => return device_event_text(event, spec),
        JobEvent::Restarting { used } => {
            format!("starting all workers again ({})", restart_text(*used, spec))
        }
    })
}

fn killing_text(local_ranks: &[LocalRank], ignored_signal: Option<Signal>) -> String {
    format!("killing {}: {}", ranks(local_ranks), kill_reason(ignored_signal))
}

/// The lines about the process groups of ended workers, under both command names; `None` for other events.
#[must_use]
pub(crate) fn group_event_text(event: &JobEvent) -> Option<String> {
    match event {
        JobEvent::AwaitingGroups { local_ranks, signal, grace } => Some(format!(
            "waiting up to {} s for processes that {} left running to stop after {signal}; a second signal kills",
            seconds(*grace),
            ranks(local_ranks)
        )),
        JobEvent::KillingGroups { local_ranks, ignored_signal } => {
            let why = kill_reason(*ignored_signal);
            Some(format!("killing processes that {} left running: {why}", ranks(local_ranks)))
        }
        _ => None,
    }
}

const fn kill_reason(ignored_signal: Option<Signal>) -> &'static str {
    if ignored_signal.is_some() { "still alive after the grace" } else { "second signal received" }
}

fn cannot_end_text(local_ranks: &[LocalRank]) -> String {
    let signal = signal_name(libc::SIGKILL);
    format!("{} survived {signal} for 5 s, probably stuck in the kernel: giving up", ranks(local_ranks))
}

fn rank_of(end: &WorkerEnd, round: Option<&Round>) -> Rank {
    Rank(round.map_or(0, |round| round.base_rank.0).saturating_add(end.local_rank.0))
}

/// The worker that this was the end of.
fn worker_name(end: &WorkerEnd, round: Option<&Round>) -> String {
    match round {
        Some(round) => {
            let rank = round.base_rank.0.saturating_add(end.local_rank.0);
            let node = plain(&round.own_name().to_string());
            format!("rank {rank} (local rank {}, pid {}) on {node}", end.local_rank, end.pid)
        }
        None => format!("local rank {} (pid {})", end.local_rank, end.pid),
    }
}

/// The line about workers that have exited with 0 while other workers of this node still run.
#[must_use]
pub(crate) fn some_finished(
    finished: &[LocalRank],
    live: &[LocalRank],
    since: Duration,
    round: Option<&Round>,
) -> String {
    let base = round.map_or(0, |round| round.base_rank.0);
    let names = |local: &[LocalRank]| {
        rank_names(local.iter().map(|local_rank| Rank(base.saturating_add(local_rank.0))))
    };
    let (has, runs) =
        (if finished.len() == 1 { "has" } else { "have" }, if live.len() == 1 { "s" } else { "" });
    let after = if finished.len() == 1 { "later" } else { "after the first of them" };
    let node = round.map(|round| plain(&format!(", on {}", round.own_name()))).unwrap_or_default();
    format!(
        "{} {has} exited with 0, and {} still run{runs} {} s {after}{node}",
        names(finished),
        names(live),
        since.as_secs()
    )
}

/// The wait that a stop begins with. A signal of `--stop-signal` is named: the launcher got another one, or none.
fn wait_for_stop(spec: &LaunchSpec, grace: Duration, live: &str) -> String {
    let signal = spec.options.stop_signal.map_or_else(String::new, |signal| format!(" after {signal}"));
    format!("waiting up to {} s for {live} to stop{signal}", seconds(grace))
}

fn workers(live: &[LocalRank]) -> String {
    format!("{} worker{}", live.len(), plural(live.len()))
}

/// The lines about other nodes, under both command names; `None` for other events.
#[must_use]
pub(crate) fn node_event_text(event: &JobEvent, spec: &LaunchSpec) -> Option<String> {
    let stopping = |live: &[LocalRank], grace: Duration| match live.len() {
        0 => String::new(),
        _ => format!("; {}", wait_for_stop(spec, grace, &workers(live))),
    };
    Some(match event {
        // The workers are dead already, or are killed now.
        JobEvent::Changed { change: change @ MembershipChange::StoodStill, .. } => {
            nodes::membership_change_text(change)
        }
        JobEvent::Changed { change, live, grace } => {
            format!("{}{}", nodes::membership_change_text(change), stopping(live, *grace))
        }
        JobEvent::Rejoined { round } => nodes::next_round_text(round, spec.workers.get()),
        JobEvent::EndedElsewhere { remote_end: ending, live, grace } => {
            format!("{}{}", nodes::remote_end_text(ending), stopping(live, *grace))
        }
        JobEvent::Settling => {
            "all workers of this node have succeeded: waiting for those of the others; a signal ends the wait"
                .to_owned()
        }
        JobEvent::FinishedBeforeLoss { failed } => nodes::finished_before(failed),
        _ => return None,
    })
}

/// The lines about devices after a failure, under both command names; `None` for other events.
#[must_use]
pub(crate) fn device_event_text(event: &JobEvent, spec: &LaunchSpec) -> Option<String> {
    Some(match event {
        JobEvent::CheckingDevices => {
            let limit = spec.device_request.probe_timeout.as_secs_f64();
            format!("waiting up to {limit} s for the devices to be checked; a signal ends the wait")
        }
        JobEvent::DevicesUnchecked { reason: why } => {
            format!("not every device could be checked: {}", plain(why))
        }
        JobEvent::DeviceWarning(warning) => plain(&format!("{}: {}", warning.device, warning.problem)),
        JobEvent::DeviceDead(dead) => {
            plain(&format!("{} of {} is dead: {}", dead.device, ranks(&dead.local_ranks), dead.reason))
        }
        JobEvent::NoRestart { reason: None } => {
            "no restart, since the device is dead; `--exclude-unhealthy` restarts without it".to_owned()
        }
        JobEvent::NoRestart { reason: Some(why) } => {
            format!("no restart without the dead device: {}", plain(why))
        }
        JobEvent::DevicesReassigned { workers } => {
            let workers = workers.get();
            let plural = if workers == 1 { "" } else { "s" };
            format!("going on with {workers} worker{plural} on the devices that are left")
        }
        _ => return None,
    })
}

/// The lines about time limits, under both command names; `None` for other events.
#[must_use]
pub(crate) fn limit_event_text(event: &JobEvent, spec: &LaunchSpec) -> Option<String> {
    let stopping = |live: &[LocalRank], grace: Duration| wait_for_stop(spec, grace, &workers(live));
    Some(match event {
        JobEvent::Uninterruptible { worker: uninterruptible, blocked_for, limit, live, grace } => format!(
            "local rank {} (pid {}) has been stuck in the kernel for {:.1} s, the limit is {} s: {}; no restart",
            uninterruptible.local_rank,
            uninterruptible.pid,
            blocked_for.as_secs_f64(),
            limit.as_secs_f64(),
            stopping(live, *grace)
        ),
        JobEvent::NotJoined { missing, limit, live, grace } => format!(
            "{} {} not joined the store within {} s: {}",
            ranks(missing),
            if missing.len() == 1 { "has" } else { "have" },
            limit.as_secs_f64(),
            stopping(live, *grace)
        ),
        JobEvent::Hang { verdict, live, grace } => {
            format!("{}: {}", sentence(verdict), stopping(live, *grace))
        }
        JobEvent::NoProgress { verdict } if matches!(**verdict, Verdict::Straggler(_)) => sentence(verdict),
        JobEvent::NoProgress { verdict } => format!("no progress: {}", sentence(verdict)),
        JobEvent::TimeIsShort { remaining: before, signal, live } => format!(
            "the time limit is over in {}: {signal} to {}",
            humantime::format_duration(*before),
            workers(live)
        ),
        JobEvent::TimeIsUp { by_warning: Some(end), live, grace, .. } => format!(
            "local rank {} (pid {}) ended by the warning before the time limit ({}): {}; no restart",
            end.local_rank,
            end.pid,
            end.exit,
            stopping(live, *grace)
        ),
        JobEvent::TimeIsUp { limit, by_warning: None, live, .. } if live.is_empty() => {
            format!("the time limit of {} is over; no restart", humantime::format_duration(*limit))
        }
        JobEvent::TimeIsUp { limit, by_warning: None, live, grace } => format!(
            "the time limit of {} is over: {}; no restart",
            humantime::format_duration(*limit),
            stopping(live, *grace)
        ),
        _ => return None,
    })
}

/// The lines about the restart policy, under both command names; `None` for other events.
#[must_use]
pub(crate) fn policy_event_text(event: &JobEvent, spec: &LaunchSpec) -> Option<String> {
    let folder = spec.restart.progress.as_ref().and_then(|limit| limit.folder.as_ref());
    let source = folder.map_or_else(
        || "heartbeats".to_owned(),
        |folder| format!("files of `{}`", plain(&folder.display().to_string())),
    );
    Some(match event {
        JobEvent::RestartRequested { live, .. } if live.is_empty() => "restart by request".to_owned(),
        JobEvent::RestartRequested { live, grace } => {
            format!("restart by request: {}", wait_for_stop(spec, *grace, &workers(live)))
        }
        JobEvent::RestartedByRequest => {
            "starting all workers again by request; no restart of the budget is used".to_owned()
        }
        JobEvent::LookingForProgress => {
            format!("waiting for the {source} to be looked at; a signal ends the wait")
        }
        JobEvent::ProgressUnknown => format!(
            "the {source} could not be looked at: this restart does not count as one without progress"
        ),
        JobEvent::CauseRecurs { signature, restarts } => recurrence_text(signature, *restarts),
        JobEvent::RestartRefused(NoRestart::Rule(rule)) => format!("no restart, by the rule `{rule}`"),
        JobEvent::RestartRefused(NoRestart::NoProgress { restarts, step }) => {
            let without = step
                .map_or_else(|| format!("no change in the {source}"), |step| format!("no step after {step}"));
            let plural = plural(*restarts as usize);
            format!("no restart: {restarts} restart{plural} led to the same failure, with {without}")
        }
        JobEvent::RestartRefused(NoRestart::TooLate { wait }) => {
            let wait = wait.as_secs_f64();
            format!("no restart: the next one would come in {wait:.1} s, and the time limit is over by then")
        }
        JobEvent::RestartRefused(NoRestart::Window { restarts, window }) => {
            format!("no restart: {restarts} within {} are used up", humantime::format_duration(*window))
        }
        JobEvent::CalledSuccess { rule } => format!("the job is done, by the rule `{rule}`"),
        JobEvent::Waiting { wait, used } => format!(
            "starting all workers again in {:.1} s ({}); a signal ends the wait",
            wait.as_secs_f64(),
            restart_text(*used, spec)
        ),
        _ => return None,
    })
}

fn restart_text(used: RestartCount, spec: &LaunchSpec) -> String {
    let (most, policy) = (spec.max_restarts, &spec.restart);
    match policy.window {
        Some(window) => format!("restart {used}, {most} within {}", humantime::format_duration(window)),
        None if policy.reset_after.is_some() => format!("restart {used}, {most} in a row"),
        None => format!("restart {used} of {most}"),
    }
}

/// The launcher's line about the start of a worker by hand.
#[must_use]
pub(crate) fn external_worker_started(local_rank: LocalRank, pid: Pid) -> String {
    format!("local rank {local_rank} was started by hand (pid {pid})")
}

/// The message to the terminal of a worker started by hand, once the agent stops waiting for it. That worker keeps
/// running.
#[must_use]
pub(crate) fn external_worker_released(reason: StopReason, failed: Option<WorkerEnd>) -> String {
    let what = match (failed, reason) {
        (Some(end), _) => format!("local rank {} failed: {}", end.local_rank, end.exit),
        (None, StopReason::TimeLimit) => "the time limit of the job is over".to_owned(),
        (None, StopReason::NotStarted) => "another worker could not be started".to_owned(),
        (None, StopReason::RestartRequest) => "all workers restart by request".to_owned(),
        (None, StopReason::Membership) => "nodes joined or left the job, and all workers restart".to_owned(),
        (None, StopReason::EndedElsewhere) => "the job has ended elsewhere".to_owned(),
        (None, _) => "the job was told to stop".to_owned(),
    };
    format!("{what}; the job does not wait for this worker any more")
}

const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Rounds a remaining grace period to milliseconds.
fn seconds(grace: Duration) -> f64 {
    (grace.as_secs_f64() * 1000.0).round() / 1000.0
}

fn ranks(local_ranks: &[LocalRank]) -> String {
    let list: Vec<String> = local_ranks.iter().map(ToString::to_string).collect();
    format!("local rank{} {}", plural(list.len()), list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::spec::fake::example;

    #[test]
    fn finished_and_live_workers_are_named_by_global_rank() {
        let spec = example();
        let render = |finished: &[u32], live: &[u32], round: Option<&Round>| {
            let [finished, live] =
                [finished, live].map(|ranks| ranks.iter().copied().map(LocalRank).collect());
            let since = Duration::from_millis(60_400);
            super::render(&JobEvent::SomeFinished { finished, live, waited: since }, &spec, round)
                .unwrap_or_default()
        };
        assert_eq!(render(&[1], &[0], None), "rank 1 has exited with 0, and rank 0 still runs 60 s later");
        let master =
            rankrun_contract::env::Master { addr: "th1".to_owned(), port: 1, uses_agent_store: true };
        let mut round = Round::of_one_node(spec.workers, master);
        (round.node_rank, round.base_rank) = (rankrun_contract::rank::NodeRank(1), Rank(8));
        assert_eq!(
            render(&[0, 1, 2], &[3, 5], Some(&round)),
            "ranks 8-10 have exited with 0, and ranks 11, 13 still run 60 s after the first of them, on node 1"
        );
    }

    #[test]
    fn launcher_that_stood_still_waits_for_no_worker() {
        let (live, grace) = (vec![LocalRank(0)], Duration::ZERO);
        let event = JobEvent::Changed { change: MembershipChange::StoodStill, live, grace };
        let text = super::render(&event, &example(), None).unwrap_or_default();
        assert!(text.starts_with("this launcher stood still for longer than its lease"), "{text}");
        assert!(text.ends_with("are killed, since the other nodes take this node for lost"), "{text}");
    }

    #[test]
    fn lines_on_stopping_name_the_stop_signal() {
        let mut spec = example();
        spec.options.stop_signal = "INT".parse().ok();
        let (live, grace) = (vec![LocalRank(0)], Duration::from_secs(9));
        let (signal, worker_signal, limit) = (Signal::SIGTERM, Signal::SIGINT, Duration::from_secs(60));
        let stopping = JobEvent::Stopping { signal, worker_signal, live: live.clone(), grace };
        let time_is_up = JobEvent::TimeIsUp { limit, by_warning: None, live: live.clone(), grace };
        for event in [stopping, time_is_up, JobEvent::RestartRequested { live, grace }] {
            let text = super::render(&event, &spec, None).unwrap_or_default();
            assert!(text.contains("waiting up to 9 s for 1 worker to stop after SIGINT"), "{text}");
        }
    }

    #[test]
    fn event_texts_use_singular_and_plural() {
        let mut spec = example();
        let grace = Duration::from_micros(2_500_001);
        spec.max_restarts = RestartCount(3);
        let render = |event| super::render(&event, &spec, None).unwrap_or_default();
        let (signal, live) = (Signal::SIGINT, vec![LocalRank(0)]);
        assert_eq!(
            render(JobEvent::Stopping { signal, worker_signal: signal, live, grace }),
            "SIGINT: waiting up to 2.5 s for 1 worker to stop; a second signal kills"
        );
        assert_eq!(
            render(JobEvent::Killing {
                local_ranks: vec![LocalRank(0), LocalRank(2)],
                ignored_signal: Some(signal)
            }),
            "killing local ranks 0, 2: still alive after the grace"
        );
        assert_eq!(
            render(JobEvent::Restarting { used: RestartCount(1) }),
            "starting all workers again (restart 1 of 3)"
        );
        assert_eq!(
            render(JobEvent::TimeIsUp {
                limit: Duration::from_secs(5400),
                by_warning: None,
                live: vec![LocalRank(0)],
                grace
            }),
            "the time limit of 1h 30m is over: waiting up to 2.5 s for 1 worker to stop; no restart"
        );
        let (before, live) = (Duration::from_secs(60), vec![LocalRank(0), LocalRank(1)]);
        assert_eq!(
            render(JobEvent::TimeIsShort { remaining: before, signal: Signal::SIGUSR1, live }),
            "the time limit is over in 1m: SIGUSR1 to 2 workers"
        );
    }
}
