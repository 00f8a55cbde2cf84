//! What follows when the agent of a host answers, ends or is silent. The shell around it starts the ssh clients, and
//! performs the actions. Pure.
//!
//! 1. No agent is told to launch before all have said hello with this launcher's version.
//! 2. A host that fails before that ends the job, with an error that names it.
//! 3. When one node has failed, the others get [`SETTLE_TIME`] to end by themselves, then SIGTERM.
//! 4. A signal that stops goes to all nodes; the second one too. The third ends the ssh clients. One for the workers goes to
//!    all nodes, and nothing else happens.

use std::time::{Duration, Instant};

use super::protocol::{Hello, PROTOCOL};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED, code_of_signal};
use crate::posix::{Exit, Signal};

/// How long the other nodes have to end by themselves: they know of the failure by their own rendezvous.
pub const SETTLE_TIME: Duration = Duration::from_secs(5);
/// The exit code of a shell that does not find the program.
const NO_PROGRAM: i32 = 127;
/// The exit code of an ssh client that has lost its connection, or never had one.
const NO_CONNECTION: i32 = 255;
/// The names in one message.
const MAX_NAMES: usize = 8;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetInput {
    /// An agent has said hello.
    Hello(usize, Hello),
    /// The ssh client of a node has ended; with the last line that it or the agent wrote to standard error.
    Ended(usize, Exit, String),
    /// This launcher got a signal that stops the job.
    Stop(i32),
    /// This launcher got a signal for the workers.
    Forward(i32),
    /// A deadline may be over.
    Time,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetAction {
    /// Tell an agent to launch; the store of the job is on this port of the first host.
    Launch(usize, u16),
    /// Tell an agent to stop by the signal of this number.
    Stop(usize, i32),
    /// Send an agent the signal of this number for its workers.
    Forward(usize, i32),
    /// Kill the ssh client of a node; its agent sees the end of its input and stops.
    Kill(usize),
    /// Say this.
    Report(FleetError),
}

/// Why a job of several hosts has not started, or lost a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// The ssh client reached no agent.
    #[error("no agent on the host `{host}`: ssh ended ({exit}){}", because(cause))]
    NoConnection {
        /// The host.
        host: String,
        /// The end of the client.
        exit: Exit,
        /// The last line of its standard error.
        cause: String,
    },
    /// The host has no rankrun.
    #[error("the host `{host}` has no rankrun: neither `{launcher}` nor `rankrun` in its PATH")]
    NoProgram {
        /// The host.
        host: String,
        /// Where this one is.
        launcher: String,
    },
    /// The host has another version.
    #[error("the host `{host}` has rankrun {theirs}, and this one is {ours}")]
    Version {
        /// The host.
        host: String,
        /// Its version.
        theirs: String,
        /// This launcher's version.
        ours: String,
    },
    /// Two names lead to one host.
    #[error("`{first}` and `{second}` are names of one host")]
    SameHost {
        /// The name of the lower node rank.
        first: String,
        /// The other one.
        second: String,
    },
    /// Hosts have not answered in time.
    #[error("no answer within {} from {hosts}", humantime::format_duration(*.limit))]
    Silent {
        /// The hosts, each in backticks.
        hosts: String,
        /// The time limit.
        limit: Duration,
    },
    /// A node is lost after its start.
    #[error("the connection to the host `{host}` is lost: ssh ended ({exit}){}", because(cause))]
    Lost {
        /// The host.
        host: String,
        /// The end of the client.
        exit: Exit,
        /// The last line of its standard error.
        cause: String,
    },
}

fn because(cause: &str) -> String {
    if cause.is_empty() { String::new() } else { format!(": {cause}") }
}

impl FleetError {
    /// The one thing to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoConnection { host, .. } => {
                format!("`ssh -o BatchMode=yes {host} true` must work without a question")
            }
            Self::NoProgram { host, launcher } => {
                let folder = launcher.rsplit_once('/').map_or(".", |(folder, _)| folder);
                format!("it is one file: `ssh {host} mkdir -p {folder} && scp {launcher} {host}:{launcher}`")
            }
            Self::Version { .. } => "install the same version on each host".to_owned(),
            Self::SameHost { first, .. } => format!("name it once, with all its workers, as in `{first}:2`"),
            Self::Silent { .. } => {
                "see whether the machines are up; `--join-timeout` is the time for an answer".to_owned()
            }
            Self::Lost { exit: Exit::Signal { .. }, .. } => "the agent there stops its workers".to_owned(),
            Self::Lost { .. } => "a worker that exits with 255 looks the same".to_owned(),
        }
    }
}

/// How far a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NodeState {
    Connecting,
    Greeted { port: u16, machine: String },
    Ended,
}

impl NodeState {
    /// What tells the host of the node from others, where it has said that.
    fn machine(&self) -> Option<&str> {
        match self {
            Self::Greeted { machine, .. } if !machine.is_empty() => Some(machine),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until all agents have said hello.
    Connecting { until: Instant },
    /// All were told to launch.
    Running,
    /// A node has failed; the others end by themselves until then.
    Settling { until: Instant },
    /// All are told to stop, or killed.
    Stopping,
}

/// A job of several hosts, as the local launcher sees it.
#[derive(Debug)]
pub struct FleetState {
    names: Vec<String>,
    launcher: String,
    version: &'static str,
    limit: Duration,
    nodes: Vec<NodeState>,
    phase: Phase,
    /// The statuses of nodes that failed by themselves, in the order of their ends.
    failures: Vec<u8>,
    /// The first signal that this launcher got.
    interrupted: Option<i32>,
    signals: usize,
    is_refused: bool,
}

impl FleetState {
    /// All ssh clients are started at `now`; `launcher` is this program's own path, and `version` its version.
    #[must_use]
    pub fn new(
        names: Vec<String>,
        (launcher, version): (String, &'static str),
        (now, limit): (Instant, Duration),
    ) -> Self {
        Self {
            nodes: vec![NodeState::Connecting; names.len()],
            names,
            launcher,
            version,
            limit,
            phase: Phase::Connecting { until: now + limit },
            failures: Vec::new(),
            interrupted: None,
            signals: 0,
            is_refused: false,
        }
    }

    /// When [`FleetInput::Time`] is due.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Connecting { until } | Phase::Settling { until } => Some(until),
            Phase::Running | Phase::Stopping => None,
        }
    }

    /// The exit status, once all ssh clients have ended.
    ///
    /// A node that did not fail itself ends with 1, so the first other status is that of the node that did.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        if self.nodes.iter().any(|node| *node != NodeState::Ended) {
            return None;
        }
        if self.is_refused {
            return Some(ExitStatus::Code(LAUNCHER_FAILED));
        }
        let own = self.failures.iter().find(|status| **status != LAUNCHER_FAILED);
        Some(ExitStatus::Code(own.or(self.failures.first()).copied().unwrap_or(0)))
    }

    /// What follows from an event.
    pub fn handle(&mut self, now: Instant, input: FleetInput) -> Vec<FleetAction> {
        match input {
            FleetInput::Hello(node, hello) => self.on_hello(node, hello),
            FleetInput::Ended(node, exit, cause) => self.on_end(now, node, exit, cause),
            FleetInput::Stop(signal) => self.on_stop(signal),
            FleetInput::Forward(signal) => self.on_forward(signal),
            FleetInput::Time => self.on_time(now),
        }
    }

    fn on_hello(&mut self, node: usize, hello: Hello) -> Vec<FleetAction> {
        let is_awaited = matches!(self.phase, Phase::Connecting { .. });
        if !is_awaited || self.nodes[node] != NodeState::Connecting {
            return Vec::new();
        }
        if hello.version != self.version || hello.protocol != PROTOCOL {
            let host = self.names[node].clone();
            let ours = self.version.to_owned();
            return self.refuse(FleetError::Version { host, theirs: hello.version, ours });
        }
        let Hello { port, machine, .. } = hello;
        let is_same = |node: &NodeState| node.machine().is_some_and(|known| known == machine);
        if let Some(other) = self.nodes.iter().position(is_same) {
            let [first, second] = [node.min(other), node.max(other)].map(|node| self.names[node].clone());
            return self.refuse(FleetError::SameHost { first, second });
        }
        self.nodes[node] = NodeState::Greeted { port, machine };
        let NodeState::Greeted { port, .. } = self.nodes[0] else { return Vec::new() };
        if self.nodes.contains(&NodeState::Connecting) {
            return Vec::new();
        }
        self.phase = Phase::Running;
        (0..self.nodes.len()).map(|node| FleetAction::Launch(node, port)).collect()
    }

    fn on_end(&mut self, now: Instant, node: usize, exit: Exit, cause: String) -> Vec<FleetAction> {
        if self.nodes[node] == NodeState::Ended {
            return Vec::new();
        }
        self.nodes[node] = NodeState::Ended;
        let host = self.names[node].clone();
        match self.phase {
            Phase::Connecting { .. } if exit == Exit::Code(NO_PROGRAM) => {
                let launcher = self.launcher.clone();
                self.refuse(FleetError::NoProgram { host, launcher })
            }
            Phase::Connecting { .. } => self.refuse(FleetError::NoConnection { host, exit, cause }),
            Phase::Running | Phase::Settling { .. } => self.on_end_of_launched(now, host, exit, cause),
            // After a signal of the user the nodes end with its status.
            Phase::Stopping if self.interrupted.is_some() && !self.is_refused => {
                self.failures.extend(status_of(exit).filter(|status| *status != 0));
                Vec::new()
            }
            Phase::Stopping => Vec::new(),
        }
    }

    fn on_end_of_launched(
        &mut self,
        now: Instant,
        host: String,
        exit: Exit,
        cause: String,
    ) -> Vec<FleetAction> {
        let status = status_of(exit).unwrap_or(LAUNCHER_FAILED);
        if status == 0 {
            return Vec::new();
        }
        self.failures.push(status);
        if self.phase == Phase::Running {
            self.phase = Phase::Settling { until: now + SETTLE_TIME };
        }
        match exit {
            Exit::Code(code) if code != NO_CONNECTION => Vec::new(),
            _ => vec![FleetAction::Report(FleetError::Lost { host, exit, cause })],
        }
    }

    fn on_stop(&mut self, signal: i32) -> Vec<FleetAction> {
        self.interrupted.get_or_insert(signal);
        self.signals += 1;
        let was_connecting = matches!(self.phase, Phase::Connecting { .. });
        self.phase = Phase::Stopping;
        match self.signals {
            1 | 2 if !was_connecting => self.for_each_left(|node| FleetAction::Stop(node, signal)),
            // No node tells it.
            _ => {
                self.failures.push(code_of_signal(signal));
                self.for_each_left(FleetAction::Kill)
            }
        }
    }

    fn on_forward(&self, signal: i32) -> Vec<FleetAction> {
        match self.phase {
            // No worker is there yet.
            Phase::Connecting { .. } => Vec::new(),
            _ => self.for_each_left(|node| FleetAction::Forward(node, signal)),
        }
    }

    fn on_time(&mut self, now: Instant) -> Vec<FleetAction> {
        match self.phase {
            Phase::Connecting { until } if until <= now => {
                let silent = (0..self.nodes.len()).filter(|node| self.nodes[*node] == NodeState::Connecting);
                let hosts = listed(&silent.map(|node| self.names[node].as_str()).collect::<Vec<_>>());
                self.refuse(FleetError::Silent { hosts, limit: self.limit })
            }
            Phase::Settling { until } if until <= now => {
                self.phase = Phase::Stopping;
                self.for_each_left(|node| FleetAction::Stop(node, Signal::SIGTERM as i32))
            }
            _ => Vec::new(),
        }
    }

    /// Ends a job that has not begun.
    fn refuse(&mut self, error: FleetError) -> Vec<FleetAction> {
        self.is_refused = true;
        self.phase = Phase::Stopping;
        let mut actions = vec![FleetAction::Report(error)];
        actions.extend(self.for_each_left(FleetAction::Kill));
        actions
    }

    fn for_each_left(&self, action: impl Fn(usize) -> FleetAction) -> Vec<FleetAction> {
        let left = (0..self.nodes.len()).filter(|node| self.nodes[*node] != NodeState::Ended);
        left.map(action).collect()
    }
}

/// The status of a node; nothing for a client that was killed.
fn status_of(exit: Exit) -> Option<u8> {
    match exit {
        Exit::Code(code) => Some(u8::try_from(code).unwrap_or(LAUNCHER_FAILED)),
        Exit::Signal { .. } => None,
    }
}

fn listed(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_NAMES).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests;
