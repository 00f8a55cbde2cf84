//! The lines of the control socket: one JSON object per line, with the version first. Pure.

use serde::{Deserialize, Serialize};

use rankrun_core::hang::trainer_status::TrainerStatus;
use rankrun_core::job_event::JobState;
use rankrun_core::stacks::WorkerStacks;

/// The version that a request names. A job answers only its own version.
pub const VERSION: u32 = 1;
/// A longer request is refused.
pub(crate) const MAX_REQUEST_BYTES: usize = 4096;

/// What a client asks of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRequest {
    /// One [`JobStatus`].
    Status,
    /// A stream of [`JobEventLine`]s until the job ends.
    Events,
    /// Stop the job as SIGTERM does. A second such request kills.
    Stop,
    /// Stop all workers and start them again, outside of the restart budget.
    Restart,
    /// The stacks of all workers of this node.
    Stacks,
}

/// Why a request is refused. The text is the answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    /// The line is longer than a request can be.
    #[error("a request has at most {MAX_REQUEST_BYTES} bytes")]
    TooLong,
    /// The line is not a JSON object with `version` and `request`.
    #[error(
        "a request is one line of JSON, as in {{\"version\":{VERSION},\"request\":\"status\"}}: {reason}"
    )]
    Malformed {
        /// The parser's words.
        reason: String,
    },
    /// The request is of another version of the protocol.
    #[error("this job speaks version {VERSION} of the control protocol, not {version}")]
    Version {
        /// The version of the request.
        version: u64,
    },
    /// This version has no such request.
    #[error("no request has the name `{name}`: there are status, events, stop, restart and stacks")]
    Unknown {
        /// The name in the request, shortened.
        name: String,
    },
}

#[derive(Deserialize)]
struct RequestLine {
    version: u64,
    request: String,
}

/// Parses one line, without its end.
///
/// # Errors
/// The line is not a request of this version.
pub(crate) fn parse_request(line: &[u8]) -> Result<ClientRequest, RequestError> {
    if line.len() > MAX_REQUEST_BYTES {
        return Err(RequestError::TooLong);
    }
    let parsed: RequestLine = serde_json::from_slice(line)
        .map_err(|error| RequestError::Malformed { reason: error.to_string() })?;
    if parsed.version != u64::from(VERSION) {
        return Err(RequestError::Version { version: parsed.version });
    }
    match parsed.request.as_str() {
        "status" => Ok(ClientRequest::Status),
        "events" => Ok(ClientRequest::Events),
        "stop" => Ok(ClientRequest::Stop),
        "restart" => Ok(ClientRequest::Restart),
        "stacks" => Ok(ClientRequest::Stacks),
        name => Err(RequestError::Unknown { name: name.chars().take(40).collect() }),
    }
}

impl ClientRequest {
    /// The line of this request, with its end.
    #[must_use]
    pub fn to_line(self) -> String {
        let name = match self {
            Self::Status => "status",
            Self::Events => "events",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Stacks => "stacks",
        };
        format!("{{\"version\":{VERSION},\"request\":\"{name}\"}}\n")
    }
}

/// One line from a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplyLine {
    /// The version of the job's protocol.
    pub version: u32,
    /// What a client does about an error. A job that is older than the kind leaves it out, and a client that is older
    /// skips it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ErrorKind>,
    /// The content of the line.
    #[serde(flatten)]
    pub reply: Reply,
}

/// An error on which a client acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The job serves as many clients as it can.
    TooManyClients,
    /// One of a later job.
    #[serde(other)]
    Other,
}

impl ReplyLine {
    /// The line of a job that serves as many clients as it can.
    pub(crate) fn too_many_clients() -> String {
        let text = "too many clients are connected; try again".to_owned();
        let kind = Some(ErrorKind::TooManyClients);
        Self { version: VERSION, kind, reply: Reply::Error(text) }.to_line()
    }

    /// The whole line, with its end.
    fn to_line(&self) -> String {
        // Only maps with keys that are not strings fail, and there are none.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The content of a line from a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The answer to [`ClientRequest::Status`].
    Status(Box<JobStatus>),
    /// One event of the stream.
    Event(JobEventLine),
    /// The answer to [`ClientRequest::Stacks`], in the order of the ranks.
    Stacks(Vec<WorkerStacks>),
    /// The request has reached the job, which acts on it now.
    Accepted(Accepted),
    /// The request is refused, or the stream ends before the job.
    Error(String),
}

impl Reply {
    /// The whole line, with its end.
    #[must_use]
    pub fn to_line(self) -> String {
        ReplyLine { version: VERSION, kind: None, reply: self }.to_line()
    }
}

/// A request that the job acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The process whose end is the end of the job.
    pub launcher_pid: i32,
}

/// The answer to [`ClientRequest::Status`]. It has no command line and no environment: both may hold secrets.
///
/// A field that is added is `#[serde(default)]`: a job of an older launcher leaves it out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The id of the job, which marks its processes.
    pub job: String,
    /// The run id (`--rdzv-id`).
    pub run_id: String,
    /// The process that the user started.
    pub launcher_pid: i32,
    /// The file name of the script, the module, or the program.
    pub program: String,
    /// The phase of the job on this node.
    pub state: JobState,
    /// The generation of the worker group on this node, counted from 0.
    pub generation: u64,
    /// Restarts of the job that count against the budget.
    pub restarts: u32,
    /// The budget of `--max-restarts`.
    pub max_restarts: u32,
    /// Nodes in the round; 0 before the first one.
    pub nodes: u32,
    /// Workers in the round; 0 before the first one.
    pub world_size: u32,
    /// Time since the launcher was ready to start workers.
    pub uptime_seconds: f64,
    /// What the Trainer of rank 0 has reported last (`--progress trainer`), on its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingStatus>,
    /// The workers of this node.
    pub ranks: Vec<WorkerStatus>,
}

/// How far a training has come, by its own reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingStatus {
    /// The last reported step.
    pub step: u64,
    /// The steps of the whole training.
    pub total_steps: Option<u64>,
    /// The time until its end, as the program estimates it.
    pub remaining_seconds: Option<u64>,
    /// The last loss that the program has logged, if it is finite.
    pub loss: Option<f64>,
}

impl From<TrainerStatus> for TrainingStatus {
    fn from(TrainerStatus { step, total_steps, remaining, loss, .. }: TrainerStatus) -> Self {
        Self { step, total_steps, remaining_seconds: remaining.map(|time| time.as_secs()), loss }
    }
}

/// The state of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankState {
    /// Its process was not started so far.
    NotStarted,
    /// One of its processes is on a CPU, or waits for one.
    Running,
    /// All its processes sleep.
    Sleeping,
    /// A process is in uninterruptible sleep (state `D`).
    Uninterruptible,
    /// A process is stopped by a signal or a debugger.
    Stopped,
    /// The worker has ended.
    Ended,
    /// `/proc` does not show the state.
    Unknown,
}

impl RankState {
    /// The word for the table.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotStarted => "not started",
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Uninterruptible => "uninterruptible",
            Self::Stopped => "stopped",
            Self::Ended => "ended",
            Self::Unknown => "unknown",
        }
    }
}

/// One worker of this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The rank in the job.
    pub rank: u32,
    /// The rank on this node.
    pub local_rank: u32,
    /// The device of the worker.
    pub device: String,
    /// The pid of the worker, if it was started.
    pub pid: Option<i32>,
    /// The state of the process.
    pub state: RankState,
    /// CPU time of the worker and its descendants.
    pub cpu_seconds: Option<f64>,
    /// Resident memory of the worker and its descendants. Shared pages count in each process.
    pub memory_bytes: Option<u64>,
    /// Age of the worker's last output, if the launcher sees its output.
    pub last_output_age_seconds: Option<f64>,
}

/// One event of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEventLine {
    /// The name of the event, as in `worker_failed`.
    pub name: String,
    /// Milliseconds since the start of 1970 (UTC).
    pub time_ms: u64,
    /// The generation that the event is about.
    pub generation: u64,
    /// The line that people read; empty if there is none.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_line_is_parsed_back() {
        for request in [
            ClientRequest::Status,
            ClientRequest::Events,
            ClientRequest::Stop,
            ClientRequest::Restart,
            ClientRequest::Stacks,
        ] {
            let line = request.to_line();
            assert_eq!(parse_request(line.trim_end().as_bytes()), Ok(request));
        }
        // A later version of a client may add fields.
        assert_eq!(parse_request(br#"{"request":"stop","version":1,"grace":3}"#), Ok(ClientRequest::Stop));
    }

    #[test]
    fn malformed_request_is_refused_with_reason() {
        let refusal = |line: &[u8]| parse_request(line).unwrap_err().to_string();
        for garbage in [&b""[..], b"status", b"{}", b"\xff\xfe", b"{\"version\":-1,\"request\":\"stop\"}"] {
            assert!(refusal(garbage).starts_with("a request is one line of JSON, as in {\"version\":1,"));
        }
        let other = refusal(br#"{"version":7,"request":"stop"}"#);
        assert_eq!(other, "this job speaks version 1 of the control protocol, not 7");
        let unknown = refusal(format!(r#"{{"version":1,"request":"{}"}}"#, "é".repeat(99)).as_bytes());
        assert!(unknown.starts_with(&format!("no request has the name `{}`", "é".repeat(40))), "{unknown}");
        let nested = refusal("[".repeat(MAX_REQUEST_BYTES).as_bytes());
        assert!(nested.contains("recursion limit") || nested.contains("invalid type"), "{nested}");
        assert_eq!(parse_request(&[b' '; MAX_REQUEST_BYTES + 1]), Err(RequestError::TooLong));
    }

    #[test]
    fn reply_is_one_line_with_version() {
        let line = Reply::Error("a\nb".to_owned()).to_line();
        assert_eq!(line, "{\"version\":1,\"error\":\"a\\nb\"}\n");
        let read: ReplyLine = serde_json::from_str(&line).unwrap();
        assert_eq!(read.reply, Reply::Error("a\nb".to_owned()));
        let accepted = Reply::Accepted(Accepted { launcher_pid: 7 }).to_line();
        assert_eq!(accepted, "{\"version\":1,\"accepted\":{\"launcher_pid\":7}}\n");
    }

    /// What a client of the first version reads.
    #[derive(Deserialize)]
    struct FirstReplyLine {
        version: u32,
        #[serde(flatten)]
        reply: Reply,
    }

    #[test]
    fn error_with_a_kind_is_read_by_older_and_later_clients() {
        let line = ReplyLine::too_many_clients();
        let text = "too many clients are connected; try again";
        let wire = format!("{{\"version\":1,\"kind\":\"too_many_clients\",\"error\":\"{text}\"}}\n");
        assert_eq!(line, wire);
        let older: FirstReplyLine = serde_json::from_str(&line).unwrap();
        assert_eq!((older.version, older.reply), (VERSION, Reply::Error(text.to_owned())));
        let kind = |line: &str| serde_json::from_str::<ReplyLine>(line).unwrap().kind;
        assert_eq!(kind(&line), Some(ErrorKind::TooManyClients));
        assert_eq!(kind(r#"{"version":1,"error":"e"}"#), None);
        assert_eq!(kind(r#"{"version":1,"kind":"of_a_later_job","error":"e"}"#), Some(ErrorKind::Other));
    }

    #[test]
    fn status_of_a_later_job_is_read_without_its_new_fields() {
        let status = Reply::Status(Box::default());
        let line = status.clone().to_line().replace("\"job\":", "\"new\":1,\"job\":");
        assert_eq!(serde_json::from_str::<ReplyLine>(&line).unwrap().reply, status);
        let rank = r#"{"rank":0,"local_rank":0,"device":"cpu:0","state":"unknown"}"#;
        let rank: WorkerStatus = serde_json::from_str(rank).unwrap();
        assert_eq!((rank.pid, rank.cpu_seconds), (None, None));
    }
}
