//! torch's events, one JSON object each (`--event-log-handler console`). Pure; the agent sends them to the console.

use std::time::Duration;

use rankrun_core::posix::Pid;
use serde::Serialize;

use rankrun_contract::json;
use rankrun_contract::rank::{LocalRank, NodeCount, NodeRank, Rank, RestartCount, WorldSize};

use super::program;
use rankrun_core::spec::{LaunchSpec, RendezvousSpec};

/// The fields that all events of a job share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobFacts {
    run_id: String,
    role: String,
    hostname: String,
    backend: &'static str,
    entry_point: String,
}

impl JobFacts {
    /// The facts of one launch on the node of that full name.
    #[must_use]
    pub(crate) fn of(spec: &LaunchSpec, hostname: String) -> Self {
        let backend = match &spec.rendezvous {
            RendezvousSpec::Standalone { .. } | RendezvousSpec::C10d { .. } => "c10d",
            RendezvousSpec::Static { .. } => "static",
        };
        Self {
            run_id: spec.rendezvous.run_id().to_string(),
            role: spec.role.clone(),
            hostname,
            backend,
            entry_point: program::in_events(&spec.entrypoint),
        }
    }
}

/// Where the job is when an event happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobProgress {
    /// Whether a rendezvous was completed: before, the agent has no rank.
    pub membership: RankStatus,
    /// The number of restarts that the job has used.
    pub restarts: RestartCount,
    /// How long the job took; zero until it is over.
    pub run_time: Duration,
}

/// Whether the agent knows its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankStatus {
    /// The rendezvous is not complete.
    Joining,
    /// Its rank among the nodes, and their number.
    Joined {
        /// The rank of this node.
        node_rank: NodeRank,
        /// The number of nodes in the round.
        nodes: NodeCount,
    },
}

/// An event of the job that torch's event log records.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TorchEvent {
    /// The rendezvous completed after this time.
    Rendezvous(Duration),
    /// Handing out the ranks took so long.
    RanksAssigned(Duration),
    /// A worker process was started successfully.
    Started(EventWorker),
    /// A worker exited with 0, as all the others did.
    Succeeded(EventWorker),
    /// A worker was stopped because of another one.
    Terminated(EventWorker),
    /// A worker failed; torch reports it as an error.
    Failed {
        /// The ranks and the process of the failed worker.
        worker: EventWorker,
        /// Its exit code, or the negated signal.
        exit_code: i32,
        /// Its error file as JSON, or torch's text without one.
        raw_error: String,
    },
    /// The agent has done its work, whatever the workers did.
    AgentSucceeded,
    /// The launcher itself failed, or got a signal to stop.
    AgentFailed {
        /// The error text, in torch's `raw_error` form.
        raw_error: String,
    },
}

/// torch's placeholder for the error file of a worker that a signal ended.
pub(crate) const ENDED_BY_SIGNAL: &str = r#"{"message": "<NONE>"}"#;
/// The same for one that exited.
pub(crate) const ENDED_BY_CODE: &str = r#"{"message": "<NONE>", "errorTraits": {"category": "system_terminated_error", "retryability": "False"}}"#;

/// The ranks and the pid of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventWorker {
    /// The worker's rank in the whole job.
    pub rank: Rank,
    /// Index among the workers of its role.
    pub role_rank: Rank,
    /// The worker's rank on its node.
    pub local_rank: LocalRank,
    /// The number of workers with its role.
    pub role_world_size: WorldSize,
    /// The process id of the worker.
    pub pid: Pid,
}

/// One event; the keys are in torch's order.
#[derive(Serialize)]
struct EventRecord<'a> {
    name: String,
    source: &'static str,
    timestamp: u8,
    metadata: Metadata<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    run_id: &'a str,
    global_rank: Option<u32>,
    group_rank: Option<u32>,
    worker_id: Option<String>,
    role: &'a str,
    hostname: &'a str,
    state: &'static str,
    total_run_time: u64,
    rdzv_backend: &'static str,
    raw_error: Option<String>,
    metadata: String,
    agent_restarts: u32,
    duration_ms: Option<f64>,
}

/// The value of `metadata`: JSON within a string.
#[derive(Serialize)]
struct MetadataText<'a> {
    group_world_size: Option<u32>,
    entry_point: &'a str,
    #[serde(flatten)]
    worker: Option<MetadataWorker>,
}

/// torch writes these as lists of one.
#[derive(Serialize)]
struct MetadataWorker {
    local_rank: [u32; 1],
    role_rank: [u32; 1],
    role_world_size: [u32; 1],
    exit_code: [Option<i32>; 1],
    worker_pid: [Option<i32>; 1],
}

/// Returns the event's line of JSON, without a line break.
#[must_use]
pub(crate) fn render(job: &JobFacts, progress: JobProgress, event: &TorchEvent) -> String {
    let (source, state, worker) = kind(event);
    let joined = match progress.membership {
        RankStatus::Joining => None,
        RankStatus::Joined { node_rank, nodes } => Some((node_rank.0, nodes.get())),
    };
    let exit = match event {
        TorchEvent::Failed { exit_code, worker, .. } => (Some(*exit_code), Some(worker.pid.as_raw())),
        _ => (None, None),
    };
    let inner = MetadataText {
        group_world_size: joined.map(|(_, nodes)| nodes),
        entry_point: &job.entry_point,
        worker: worker.map(|worker| MetadataWorker {
            local_rank: [worker.local_rank.0],
            role_rank: [worker.role_rank.0],
            role_world_size: [worker.role_world_size.get()],
            exit_code: [exit.0],
            worker_pid: [exit.1],
        }),
    };
    let line = EventRecord {
        name: format!("torchelastic.worker.status.{state}"),
        source,
        timestamp: 0,
        metadata: Metadata {
            run_id: &job.run_id,
            global_rank: worker.map(|worker| worker.rank.0),
            group_rank: joined.map(|(node_rank, _)| node_rank),
            worker_id: worker.map(|worker| worker.pid.to_string()),
            role: &job.role,
            hostname: &job.hostname,
            state,
            total_run_time: progress.run_time.as_secs(),
            rdzv_backend: job.backend,
            raw_error: raw_error(event),
            metadata: text(&inner),
            agent_restarts: progress.restarts.0,
            duration_ms: duration(event).map(|duration| duration.as_secs_f64() * 1000.0),
        },
    };
    text(&line)
}

fn text<T: Serialize>(value: &T) -> String {
    json::to_text(value).expect("texts and numbers have a form in JSON")
}

const fn kind(event: &TorchEvent) -> (&'static str, &'static str, Option<EventWorker>) {
    match event {
        TorchEvent::Rendezvous(_) => ("AGENT", "RENDEZVOUS", None),
        TorchEvent::RanksAssigned(_) => ("AGENT", "ASSIGN_WORKER_RANKS", None),
        TorchEvent::Started(worker) => ("WORKER", "START", Some(*worker)),
        TorchEvent::Succeeded(worker) => ("WORKER", "SUCCEEDED", Some(*worker)),
        TorchEvent::Terminated(worker) => ("WORKER", "TERMINATED", Some(*worker)),
        TorchEvent::Failed { worker, .. } => ("WORKER", "FAILED", Some(*worker)),
        TorchEvent::AgentSucceeded => ("AGENT", "SUCCEEDED", None),
        TorchEvent::AgentFailed { .. } => ("AGENT", "FAILED", None),
    }
}

const fn duration(event: &TorchEvent) -> Option<Duration> {
    match event {
        TorchEvent::Rendezvous(duration) | TorchEvent::RanksAssigned(duration) => Some(*duration),
        _ => None,
    }
}

fn raw_error(event: &TorchEvent) -> Option<String> {
    match event {
        TorchEvent::Failed { raw_error, .. } | TorchEvent::AgentFailed { raw_error } => {
            Some(raw_error.clone())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::spec::fake::example;

    fn line(progress: JobProgress, event: &TorchEvent) -> String {
        render(&JobFacts::of(&example(), "localhost".to_owned()), progress, event)
    }

    fn progress(membership: RankStatus) -> JobProgress {
        JobProgress { membership, restarts: RestartCount(0), run_time: Duration::ZERO }
    }

    const ALONE: RankStatus = RankStatus::Joined { node_rank: NodeRank(0), nodes: NodeCount::ONE };

    fn example_worker() -> EventWorker {
        let (rank, local_rank, pid) = (Rank(1), LocalRank(1), Pid::from_raw(20257));
        EventWorker { rank, role_rank: rank, local_rank, role_world_size: WorldSize::new(2).unwrap(), pid }
    }

    /// What torchrun 2.15.0 printed, but for the run id and the name of the program.
    #[test]
    fn events_match_torchrun_bytes() {
        let event = TorchEvent::Rendezvous(Duration::from_micros(124_207));
        assert_eq!(
            line(progress(RankStatus::Joining), &event),
            r#"{"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "example", "global_rank": null, "group_rank": null, "worker_id": null, "role": "default", "hostname": "localhost", "state": "RENDEZVOUS", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": null, \"entry_point\": \"true\"}", "agent_restarts": 0, "duration_ms": 124.207}}"#
        );
        assert_eq!(
            line(progress(ALONE), &TorchEvent::Started(example_worker())),
            r#"{"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "example", "global_rank": 1, "group_rank": 0, "worker_id": "20257", "role": "default", "hostname": "localhost", "state": "START", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": 1, \"entry_point\": \"true\", \"local_rank\": [1], \"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [null], \"worker_pid\": [null]}", "agent_restarts": 0, "duration_ms": null}}"#
        );
        let over = JobProgress {
            restarts: RestartCount(1),
            run_time: Duration::from_millis(2_900),
            ..progress(ALONE)
        };
        assert_eq!(
            line(
                over,
                &TorchEvent::Failed {
                    worker: example_worker(),
                    exit_code: 3,
                    raw_error: ENDED_BY_CODE.to_owned()
                }
            ),
            r#"{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "example", "global_rank": 1, "group_rank": 0, "worker_id": "20257", "role": "default", "hostname": "localhost", "state": "FAILED", "total_run_time": 2, "rdzv_backend": "c10d", "raw_error": "{\"message\": \"<NONE>\", \"errorTraits\": {\"category\": \"system_terminated_error\", \"retryability\": \"False\"}}", "metadata": "{\"group_world_size\": 1, \"entry_point\": \"true\", \"local_rank\": [1], \"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [3], \"worker_pid\": [20257]}", "agent_restarts": 1, "duration_ms": null}}"#
        );
    }

    #[test]
    fn agent_failure_event_has_raw_error() {
        let event =
            TorchEvent::AgentFailed { raw_error: "SignalException: Process 7 got signal: 15".to_owned() };
        let text = line(progress(ALONE), &event);
        assert!(text.contains(r#""source": "AGENT""#) && text.contains(r#""state": "FAILED""#), "{text}");
        assert!(text.contains(r#""raw_error": "SignalException: Process 7 got signal: 15""#), "{text}");
    }

    #[test]
    fn event_of_multi_node_job_names_node_rank() {
        let membership = RankStatus::Joined { node_rank: NodeRank(1), nodes: NodeCount::new(3).unwrap() };
        let worker = EventWorker { rank: Rank(5), role_rank: Rank(2), ..example_worker() };
        let text = line(progress(membership), &TorchEvent::Started(worker));
        assert!(text.contains(r#""global_rank": 5, "group_rank": 1"#), "{text}");
        assert!(
            text.contains(r#"\"group_world_size\": 3"#) && text.contains(r#"\"role_rank\": [2]"#),
            "{text}"
        );
    }
}
