//! The notes as JSON in the store. Agents of one [`PROTOCOL`](crate::rendezvous::descriptor::PROTOCOL) write the same
//! form, and agents of another one are refused before they read a note.

use rankrun_contract::rank::{LocalRank, NodeRank, Rank};
use serde::{Deserialize, Serialize};

use super::{ClosingNote, FailureNote, PeerLoss, RuleEnd, RuleNote, WorkerFailure};
use crate::rendezvous::NodeName;
use crate::rendezvous::text::{escape_bytes_for_terminal, escape_for_terminal};

/// Longest note that is parsed, in bytes.
pub(super) const MAX_JSON: usize = 64 * 1024;

/// Longest host name and address, in characters.
pub(super) const MAX_HOST: usize = 255;

/// Longest description of an exit, in characters.
const MAX_ENDED: usize = 800;

/// Longest error message of a worker and reason of a node, in characters.
const MAX_MESSAGE: usize = 2000;

/// Most lines of a worker's output.
const MAX_LINES: usize = 10;

/// Longest line of a worker's output, in characters.
const MAX_LINE: usize = 200;

/// Longest rule, in characters; a rule with 256 exit codes fits.
const MAX_RULE: usize = 1200;

#[derive(Serialize, Deserialize)]
#[serde(tag = "failure", rename_all = "kebab-case")]
enum FailureJson {
    Worker(WorkerJson),
    NodeLost { node: NodeJson },
    NodeLeft { node: NodeJson, why: String },
    LauncherFailed { node: NodeJson, why: String },
}

#[derive(Serialize, Deserialize)]
struct WorkerJson {
    node: NodeJson,
    rank: u32,
    local_rank: u32,
    pid: i32,
    ended: String,
    message: Option<String>,
    #[serde(default)]
    last_lines: Vec<String>,
    lost_peer: Option<PeerJson>,
}

#[derive(Serialize, Deserialize)]
struct NodeJson {
    rank: Option<u32>,
    host: Option<String>,
    addr: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PeerJson {
    Rank(u32),
    Unnamed,
}

#[derive(Serialize, Deserialize)]
struct ClosingJson {
    succeeded: bool,
    failure: Option<FailureJson>,
    rule: Option<RuleJson>,
}

#[derive(Serialize, Deserialize)]
struct RuleJson {
    text: String,
    then: RuleEnd,
}

impl FailureNote {
    /// The note as JSON for the store. Every text is bounded, without control characters.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&FailureJson::from(self)).expect("texts and numbers are JSON")
    }

    /// Parses another agent's note; `None` if it does not have the expected form.
    #[must_use]
    pub fn from_json(text: &[u8]) -> Option<Self> {
        parse_json_bounded::<FailureJson>(text)?.into_note()
    }
}

impl ClosingNote {
    /// The note as JSON for the store, with every text bounded.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let rule =
            |rule: &RuleNote| RuleJson { text: escape_for_terminal(&rule.text, MAX_RULE), then: rule.then };
        let json = ClosingJson {
            succeeded: self.succeeded,
            failure: self.failure.as_ref().map(FailureJson::from),
            rule: self.rule.as_ref().map(rule),
        };
        serde_json::to_vec(&json).expect("texts and numbers are JSON")
    }

    /// Parses another agent's note; `None` if it does not have the expected form.
    #[must_use]
    pub fn from_json(text: &[u8]) -> Option<Self> {
        let json: ClosingJson = parse_json_bounded(text)?;
        let failure = match json.failure {
            Some(failure) => Some(failure.into_note()?),
            None => None,
        };
        let rule = json
            .rule
            .map(|rule| RuleNote { text: escape_for_terminal(&rule.text, MAX_RULE), then: rule.then });
        let is_consistent = rule.as_ref().is_none_or(|rule| rule.is_success() == json.succeeded);
        is_consistent.then_some(Self { succeeded: json.succeeded, failure, rule })
    }
}

/// The reason that another node gave when it left, bounded for a terminal.
#[must_use]
pub fn parse_leave_reason(text: &[u8]) -> String {
    escape_bytes_for_terminal(text, MAX_ENDED)
}

impl From<&FailureNote> for FailureJson {
    /// Texts are bounded here too: the reader would cut the rest.
    fn from(note: &FailureNote) -> Self {
        let message = |text: &str| escape_for_terminal(text, MAX_MESSAGE);
        match note {
            FailureNote::Worker(worker) => Self::Worker(WorkerJson {
                node: NodeJson::from(&worker.node),
                rank: worker.rank.0,
                local_rank: worker.local_rank.0,
                pid: worker.pid,
                ended: escape_for_terminal(&worker.ended, MAX_ENDED),
                message: worker.message.as_deref().map(message),
                last_lines: bounded_lines(&worker.last_lines),
                lost_peer: worker.lost_peer.map(PeerJson::from),
            }),
            FailureNote::NodeLost { node } => Self::NodeLost { node: node.into() },
            FailureNote::NodeLeft { node, why } => Self::NodeLeft { node: node.into(), why: message(why) },
            FailureNote::LauncherFailed { node, why } => {
                Self::LauncherFailed { node: node.into(), why: message(why) }
            }
        }
    }
}

impl FailureJson {
    fn into_note(self) -> Option<FailureNote> {
        let message = |text: &str| escape_for_terminal(text, MAX_MESSAGE);
        Some(match self {
            Self::Worker(worker) => FailureNote::Worker(worker.into_failure()?),
            Self::NodeLost { node } => FailureNote::NodeLost { node: node.into_name() },
            Self::NodeLeft { node, why } => {
                FailureNote::NodeLeft { node: node.into_name(), why: message(&why) }
            }
            Self::LauncherFailed { node, why } => {
                FailureNote::LauncherFailed { node: node.into_name(), why: message(&why) }
            }
        })
    }
}

impl WorkerJson {
    /// `None` if the pid is not that of a process.
    fn into_failure(self) -> Option<WorkerFailure> {
        (self.pid > 0).then(|| WorkerFailure {
            node: self.node.into_name(),
            rank: Rank(self.rank),
            local_rank: LocalRank(self.local_rank),
            pid: self.pid,
            ended: escape_for_terminal(&self.ended, MAX_ENDED),
            message: self.message.map(|message| escape_for_terminal(&message, MAX_MESSAGE)),
            last_lines: bounded_lines(&self.last_lines),
            lost_peer: self.lost_peer.map(PeerLoss::from),
        })
    }
}

fn bounded_lines(lines: &[String]) -> Vec<String> {
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    last.iter().map(|line| escape_for_terminal(line, MAX_LINE)).collect()
}

impl From<&NodeName> for NodeJson {
    fn from(name: &NodeName) -> Self {
        let text = |text: &String| escape_for_terminal(text, MAX_HOST);
        Self {
            rank: name.rank.map(|rank| rank.0),
            host: name.host.as_ref().map(text),
            addr: name.addr.as_ref().map(text),
        }
    }
}

impl NodeJson {
    fn into_name(self) -> NodeName {
        let text = |text: String| Some(escape_for_terminal(&text, MAX_HOST)).filter(|text| !text.is_empty());
        NodeName {
            rank: self.rank.map(NodeRank),
            host: self.host.and_then(text),
            addr: self.addr.and_then(text),
        }
    }
}

impl From<PeerLoss> for PeerJson {
    fn from(peer: PeerLoss) -> Self {
        match peer {
            PeerLoss::Rank(rank) => Self::Rank(rank.0),
            PeerLoss::Unnamed => Self::Unnamed,
        }
    }
}

impl From<PeerJson> for PeerLoss {
    fn from(peer: PeerJson) -> Self {
        match peer {
            PeerJson::Rank(rank) => Self::Rank(Rank(rank)),
            PeerJson::Unnamed => Self::Unnamed,
        }
    }
}

fn parse_json_bounded<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<T> {
    (text.len() <= MAX_JSON).then(|| serde_json::from_slice(text).ok())?
}
