//! JSON notes that agents store for each other: failures, reasons for leaving, and the job's end. Pure.
//!
//! The notes come from other machines and are printed on terminals. Every text that is read is bounded and free of
//! control characters.

use rankrun_contract::rank::{LocalRank, NodeRank, Rank};
use serde::{Deserialize, Serialize};

use super::text::{escape_bytes_for_terminal, escape_for_terminal};
use super::{FailureNote, PeerLoss};
use crate::exit_code::{DO_NOT_REQUEUE, ExitStatus, REQUEUE};
use crate::spec::restart::{RestartRule, RuleAction};

/// Longest note that is parsed, in bytes.
const MAX_JSON: usize = 64 * 1024;

/// Longest host name, in characters.
const MAX_HOST: usize = 255;

/// Longest description of an exit, in characters.
const MAX_ENDED: usize = 200;

/// Longest error message of a worker, in characters.
const MAX_MESSAGE: usize = 2000;

/// Longest rule, in characters; a rule with 256 exit codes fits.
const MAX_RULE: usize = 1200;

/// How the job ended, for agents that read it from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosingNote {
    /// Whether the job has succeeded.
    pub succeeded: bool,
    /// The first failure, if it is known. After a success it is set only if a rule treats that failure as a success.
    pub failure: Option<FailureNote>,
    /// The rule that decides what the failure means for the whole job.
    pub rule: Option<RuleNote>,
}

/// The restart rule by which one node ended the job. All nodes then exit with the same status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleNote {
    /// Text of the rule as the user wrote it.
    pub text: String,
    /// The outcome of the job by this rule.
    pub then: RuleEnd,
}

/// The outcome of a job that a rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleEnd {
    /// The job is complete and must not be repeated.
    Succeed,
    /// The scheduler should start the job again.
    Requeue,
    /// A repeated job would fail again.
    NoRequeue,
}

impl RuleNote {
    /// The note of a rule that ends the job; `None` if each node exits with its own status.
    #[must_use]
    pub fn of(rule: &RestartRule) -> Option<Self> {
        let then = match rule.then {
            RuleAction::Succeed => RuleEnd::Succeed,
            RuleAction::Requeue => RuleEnd::Requeue,
            RuleAction::NoRequeue => RuleEnd::NoRequeue,
            RuleAction::Restart | RuleAction::Fail => return None,
        };
        Some(Self { text: rule.to_string(), then })
    }

    /// Whether the rule makes the job a success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.then == RuleEnd::Succeed
    }
}

impl RuleEnd {
    /// The exit status of every launcher of the job, independent of the launcher's name.
    #[must_use]
    pub const fn status(self) -> ExitStatus {
        match self {
            Self::Succeed => ExitStatus::SUCCESS,
            Self::Requeue => ExitStatus::Code(REQUEUE),
            Self::NoRequeue => ExitStatus::Code(DO_NOT_REQUEUE),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct FailureNoteWire {
    node_rank: u32,
    host: String,
    #[serde(default)]
    addr: Option<String>,
    rank: u32,
    local_rank: u32,
    pid: i32,
    ended: String,
    message: Option<String>,
    /// Whether the worker lost a peer.
    #[serde(default)]
    lost_peer: bool,
    /// Rank of the lost peer, if known.
    #[serde(default)]
    lost_rank: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct ClosingWire {
    succeeded: bool,
    failure: Option<FailureNoteWire>,
    #[serde(default)]
    rule: Option<RuleWire>,
}

#[derive(Serialize, Deserialize)]
struct RuleWire {
    text: String,
    then: RuleEnd,
}

impl From<&FailureNote> for FailureNoteWire {
    /// Texts are bounded here too: the reader would cut the rest.
    fn from(note: &FailureNote) -> Self {
        Self {
            node_rank: note.node_rank.0,
            host: escape_for_terminal(&note.host, MAX_HOST),
            addr: note.addr.as_deref().map(|addr| escape_for_terminal(addr, MAX_HOST)),
            rank: note.rank.0,
            local_rank: note.local_rank.0,
            pid: note.pid,
            ended: escape_for_terminal(&note.ended, MAX_ENDED),
            message: note.message.as_deref().map(|message| escape_for_terminal(message, MAX_MESSAGE)),
            lost_peer: note.lost.is_some(),
            lost_rank: note.lost.and_then(|lost| match lost {
                PeerLoss::Rank(rank) => Some(rank.0),
                PeerLoss::Unnamed => None,
            }),
        }
    }
}

impl From<FailureNoteWire> for FailureNote {
    fn from(wire: FailureNoteWire) -> Self {
        Self {
            node_rank: NodeRank(wire.node_rank),
            host: escape_for_terminal(&wire.host, MAX_HOST),
            addr: wire.addr.map(|addr| escape_for_terminal(&addr, MAX_HOST)),
            rank: Rank(wire.rank),
            local_rank: LocalRank(wire.local_rank),
            pid: wire.pid,
            ended: escape_for_terminal(&wire.ended, MAX_ENDED),
            message: wire.message.map(|message| escape_for_terminal(&message, MAX_MESSAGE)),
            lost: wire
                .lost_peer
                .then(|| wire.lost_rank.map_or(PeerLoss::Unnamed, |rank| PeerLoss::Rank(Rank(rank)))),
        }
    }
}

impl FailureNote {
    /// The note as JSON for the store. Every text is bounded, without control characters.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&FailureNoteWire::from(self)).expect("texts and numbers are JSON")
    }

    /// Parses another agent's note; `None` if it does not have the expected form.
    #[must_use]
    pub fn from_json(text: &[u8]) -> Option<Self> {
        parse_json_bounded::<FailureNoteWire>(text).map(Self::from)
    }
}

impl ClosingNote {
    /// The note as JSON for the store, with every text bounded.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let rule =
            |rule: &RuleNote| RuleWire { text: escape_for_terminal(&rule.text, MAX_RULE), then: rule.then };
        let wire = ClosingWire {
            succeeded: self.succeeded,
            failure: self.failure.as_ref().map(FailureNoteWire::from),
            rule: self.rule.as_ref().map(rule),
        };
        serde_json::to_vec(&wire).expect("texts and numbers are JSON")
    }

    /// Parses another agent's note; `None` if it does not have the expected form.
    #[must_use]
    pub fn from_json(text: &[u8]) -> Option<Self> {
        let wire: ClosingWire = parse_json_bounded(text)?;
        let rule = wire
            .rule
            .map(|rule| RuleNote { text: escape_for_terminal(&rule.text, MAX_RULE), then: rule.then });
        if rule.as_ref().is_some_and(|rule| rule.is_success() != wire.succeeded) {
            return None;
        }
        Some(Self { succeeded: wire.succeeded, failure: wire.failure.map(FailureNote::from), rule })
    }
}

/// The reason that another node gave when it left, bounded for a terminal.
#[must_use]
pub fn parse_leave_reason(text: &[u8]) -> String {
    escape_bytes_for_terminal(text, MAX_ENDED)
}

fn parse_json_bounded<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<T> {
    (text.len() <= MAX_JSON).then(|| serde_json::from_slice(text).ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rendezvous::NodeName;

    fn note() -> FailureNote {
        FailureNote {
            node_rank: NodeRank(1),
            host: "th1".to_owned(),
            addr: Some("10.0.0.2".to_owned()),
            rank: Rank(9),
            local_rank: LocalRank(1),
            pid: 4711,
            ended: "exit code 7".to_owned(),
            message: Some("ValueError: `x` is 3".to_owned()),
            lost: None,
        }
    }

    #[test]
    fn failure_note_json_round_trips() {
        assert_eq!(FailureNote::from_json(&note().to_json()), Some(note()));
        for failure in [None, Some(note()), Some(FailureNote { message: None, ..note() })] {
            for succeeded in [false, true] {
                let closing = ClosingNote { succeeded, failure: failure.clone(), rule: None };
                assert_eq!(ClosingNote::from_json(&closing.to_json()), Some(closing));
            }
        }
    }

    /// An agent of an earlier version writes no address.
    #[test]
    fn note_without_address_is_parsed() {
        let text = String::from_utf8(note().to_json()).unwrap();
        let earlier = text.replace(r#""addr":"10.0.0.2","#, "");
        assert_ne!(earlier, text);
        let read = FailureNote::from_json(earlier.as_bytes());
        assert_eq!(read, Some(FailureNote { addr: None, ..note() }));
    }

    #[test]
    fn rule_note_round_trips_and_matches_end() {
        for then in [RuleEnd::Succeed, RuleEnd::Requeue, RuleEnd::NoRequeue] {
            let rule = RuleNote { text: "exit=5:x".to_owned(), then };
            let closing =
                ClosingNote { succeeded: rule.is_success(), failure: Some(note()), rule: Some(rule) };
            assert_eq!(ClosingNote::from_json(&closing.to_json()), Some(closing.clone()));
            let torn = ClosingNote { succeeded: !closing.succeeded, ..closing };
            assert_eq!(ClosingNote::from_json(&torn.to_json()), None);
        }
        let earlier = br#"{"succeeded":true,"failure":null}"#;
        let success = ClosingNote { succeeded: true, failure: None, rule: None };
        assert_eq!(ClosingNote::from_json(earlier), Some(success));
    }

    #[test]
    fn lost_left_and_failed_nodes_are_distinguished() {
        let of = |note: &FailureNote| FailureNote::from_json(&note.to_json()).unwrap();
        let lost = of(&FailureNote::of_lost_node(NodeRank(1), NodeName::of_host("th1")));
        let left =
            of(&FailureNote::of_leaving_host(NodeRank(1), NodeName::of_host("th1"), "SIGTERM\n".to_owned()));
        let failed =
            of(&FailureNote::of_failed_launcher(NodeRank(1), NodeName::of_host("th1"), "x".to_owned()));
        let all = [&lost, &left, &failed, &note()];
        assert_eq!(all.map(FailureNote::is_of_lost_node), [true, false, false, false]);
        assert_eq!(all.map(FailureNote::is_of_failed_launcher), [false, false, true, false]);
        let whys = all.map(|note| note.why_node_ended_job().map(str::to_owned));
        assert_eq!(whys, [None, Some("SIGTERM ".to_owned()), Some("x".to_owned()), None]);
    }

    #[test]
    fn remote_texts_are_bounded_and_escaped() {
        let long = format!("\x1b]0;{}\n", "x".repeat(10_000));
        let loud =
            FailureNote { host: long.clone(), ended: long.clone(), message: Some(long.clone()), ..note() };
        assert!(loud.to_json().len() < 4096);
        // A note from a writer that does not bound its texts.
        let text = String::from_utf8(note().to_json()).unwrap();
        let text = text.replace("th1", &serde_json::to_string(&long).unwrap().replace('"', ""));
        let read = FailureNote::from_json(text.as_bytes()).unwrap();
        assert_eq!(read.host.chars().count(), MAX_HOST);
        assert!(read.host.starts_with(" ]0;xxx") && read.host.ends_with('…'), "{}", read.host);
        assert_eq!(parse_leave_reason(b"SIGTERM\r\n\xff"), "SIGTERM  \u{fffd}");
    }

    #[test]
    fn malformed_note_is_none() {
        let good = String::from_utf8(note().to_json()).unwrap();
        let bad = [
            String::new(),
            "null".to_owned(),
            "{\"failure\":".repeat(5000),
            "[".repeat(1 << 20),
            good.replace("\"rank\":9", "\"rank\":-9"),
            good.replace("\"pid\":4711", "\"pid\":\"4711\""),
            good.replace("th1", &"x".repeat(MAX_JSON)),
        ];
        for text in bad {
            assert_ne!(text, good);
            assert_eq!(FailureNote::from_json(text.as_bytes()), None, "{}", &text[..text.len().min(80)]);
            assert_eq!(ClosingNote::from_json(text.as_bytes()), None);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (FailureNote::from_json(&bytes), ClosingNote::from_json(&bytes), parse_leave_reason(&bytes));
        }
    }
}
