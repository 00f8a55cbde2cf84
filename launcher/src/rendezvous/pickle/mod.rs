//! torch's shared state as torch's agents write it: a Python pickle as base64 text (contract 5.4, appendix B). Pure.
//!
//! A pickle is a program, and whoever reaches the store may write one. [`decode`] runs only the few instructions that
//! torch's own state needs, on values of its own; the only names that it takes are those of five classes, and none of
//! them is looked up anywhere. Anything else is [`NotAState`], which says what and where. Memory and time grow with the
//! text, and not with what the text says.
//!
//! [`encode`] writes what CPython's pickler writes for the same objects: protocol 4, with its memo.

mod machine;
mod shape;
#[cfg(test)]
mod tests;
mod time;
mod writer;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::state::State;

/// Longest text, in bytes: torch's own limit of a value of its store.
const MAX_TEXT: usize = 8 * 1024 * 1024;

/// Most nodes in one of the lists of a state.
const MAX_NODES: usize = 4096;

/// Longest address of a node, in bytes: no name of a host is longer than 255.
const MAX_ADDR: usize = 512;

/// The module of torch's two classes.
const MODULE: &str = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";

/// The fields of the state, in torch's order.
const STATE_FIELDS: [&str; 8] = [
    "round",
    "complete",
    "deadline",
    "closed",
    "participants",
    "wait_list",
    "redundancy_list",
    "last_heartbeats",
];

/// The fields of a node, in torch's order.
const NODE_FIELDS: [&str; 3] = ["addr", "pid", "local_id"];

/// Why a text is not the state of a rendezvous. Offsets are bytes of the pickle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAState {
    /// Longer than a value of torch's store may be.
    #[error("{length} bytes are more than a state has")]
    TooLarge {
        /// Its length.
        length: usize,
    },
    /// Not the standard alphabet with padding.
    #[error("it is not base64")]
    NotBase64,
    /// It does not begin as a pickle of a protocol that we know.
    #[error("it does not begin as a pickle does")]
    NotAPickle,
    /// It ends in the middle.
    #[error("it ends in the middle, after {offset} bytes")]
    Truncated {
        /// Its length.
        offset: usize,
    },
    /// An instruction that a state does not need.
    #[error("it has the instruction `{opcode:#04x}` at byte {offset}, which no state has")]
    Opcode {
        /// Its code.
        opcode: u8,
        /// Where it stands.
        offset: usize,
    },
    /// A name that no state has. Whoever unpickles it may run whatever that name is.
    #[error("it names `{name}` at byte {offset}, which no state does")]
    Global {
        /// Module and name, shortened.
        name: String,
        /// Where it stands.
        offset: usize,
    },
    /// An instruction that does not fit what it is applied to.
    #[error("the instruction at byte {offset} does not fit what stands before it")]
    Misplaced {
        /// Where it stands.
        offset: usize,
    },
    /// The bytes of a time are no time of the calendar.
    #[error("the time at byte {offset} is not one of the calendar")]
    Time {
        /// Where it is made.
        offset: usize,
    },
    /// A field that a state or node does not have.
    #[error("it has a field `{name}`, which no state has")]
    UnknownField {
        /// Its name, shortened.
        name: String,
    },
    /// A field that every state or node has.
    #[error("its field `{name}` is missing")]
    MissingField {
        /// Its name.
        name: &'static str,
    },
    /// A field with a value of another type, or out of its range.
    #[error("its field `{name}` is not what it should be")]
    WrongField {
        /// Its name.
        name: &'static str,
    },
    /// More of something than any state has.
    #[error("it has more {what} than a state has")]
    TooMany {
        /// Of what.
        what: &'static str,
    },
    /// Bytes after the end.
    #[error("it goes on after its end at byte {offset}")]
    Trailing {
        /// The first of them.
        offset: usize,
    },
}

/// Reads a state.
///
/// # Errors
/// The text is anything else.
pub fn decode(text: &[u8]) -> Result<State, NotAState> {
    if text.len() > MAX_TEXT {
        return Err(NotAState::TooLarge { length: text.len() });
    }
    let pickle = STANDARD.decode(text).map_err(|_| NotAState::NotBase64)?;
    machine::load(&pickle)
}

/// Writes a state. A time before the year 1 or after 9999, which Python does not have, becomes the nearest that it has.
#[must_use]
pub fn encode(state: &State) -> Vec<u8> {
    STANDARD.encode(writer::dump(state)).into_bytes()
}

/// The beginning of a foreign text, without control characters.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        short.push('…');
    }
    short
}
