//! Reads and writes torch's shared state in the form of torch's agents: a Python pickle as base64 text (contract 5.4,
//! appendix B). Pure.
//!
//! A pickle is a program, and any client of the store may write one. [`decode`] runs only the few instructions that
//! torch's state needs, on its own value types. It accepts five class names, and looks none of them up. All else is
//! [`StateParseError`], which names the instruction and its offset. Memory and time are bounded by the length of the text,
//! not by its content.
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

use super::state::RendezvousState;

/// Longest text, in bytes: torch's limit for a value in its store.
const MAX_TEXT: usize = 8 * 1024 * 1024;

/// Maximum number of nodes in one list of a state.
const MAX_NODES: usize = 4096;

/// Longest address of a node, in bytes. No host name is longer than 255.
const MAX_ADDR: usize = 512;

/// Python module of torch's two classes.
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

/// Why a text is not the state of a rendezvous. Offsets count bytes of the pickle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateParseError {
    /// The text is longer than a value of torch's store may be.
    #[error("{length} bytes are more than a state has")]
    TooLarge {
        /// Length of the text in bytes.
        length: usize,
    },
    /// The text is not base64 with the standard alphabet and padding.
    #[error("it is not base64")]
    NotBase64,
    /// The bytes do not begin like a pickle of a known protocol.
    #[error("it does not begin as a pickle does")]
    NotAPickle,
    /// The pickle ends inside an instruction or a frame.
    #[error("it ends in the middle, after {offset} bytes")]
    Truncated {
        /// Length of the pickle in bytes.
        offset: usize,
    },
    /// The pickle contains an instruction that a state does not need.
    #[error("it has the instruction `{opcode:#04x}` at byte {offset}, which no state has")]
    Opcode {
        /// Code of the instruction.
        opcode: u8,
        /// Offset of the instruction in bytes.
        offset: usize,
    },
    /// The pickle names a class or function that no state has. A real unpickler may run it.
    #[error("it names `{name}` at byte {offset}, which no state does")]
    Global {
        /// Module and name, shortened for messages.
        name: String,
        /// Offset of the instruction in bytes.
        offset: usize,
    },
    /// An instruction does not fit the values that it is applied to.
    #[error("the instruction at byte {offset} does not fit what stands before it")]
    Misplaced {
        /// Offset of the instruction in bytes.
        offset: usize,
    },
    /// The bytes of a time are not a valid calendar time.
    #[error("the time at byte {offset} is not one of the calendar")]
    Time {
        /// Offset of the instruction that builds the time.
        offset: usize,
    },
    /// A state or node has an unknown field.
    #[error("it has a field `{name}`, which no state has")]
    UnknownField {
        /// Name of the field, shortened for messages.
        name: String,
    },
    /// A field of a state or node is missing.
    #[error("its field `{name}` is missing")]
    MissingField {
        /// Name of the missing field.
        name: &'static str,
    },
    /// A field has a value of another type, or out of range.
    #[error("its field `{name}` is not what it should be")]
    WrongField {
        /// Name of the field with the wrong value.
        name: &'static str,
    },
    /// The pickle has more of something than any state needs.
    #[error("it has more {what} than a state has")]
    TooMany {
        /// The kind of elements that are too many.
        what: &'static str,
    },
    /// Bytes follow after the end of the pickle.
    #[error("it goes on after its end at byte {offset}")]
    Trailing {
        /// Offset of the first such byte.
        offset: usize,
    },
}

/// Parses torch's text of a state.
///
/// # Errors
/// The text is not the state of a rendezvous.
pub fn decode(text: &[u8]) -> Result<RendezvousState, StateParseError> {
    if text.len() > MAX_TEXT {
        return Err(StateParseError::TooLarge { length: text.len() });
    }
    let pickle = STANDARD.decode(text).map_err(|_| StateParseError::NotBase64)?;
    machine::load(&pickle)
}

/// Writes a state as torch's text. Python has only the years 1 to 9999: an earlier or later time becomes the nearest
/// valid one.
#[must_use]
pub fn encode(state: &RendezvousState) -> Vec<u8> {
    STANDARD.encode(writer::dump(state)).into_bytes()
}

/// The first characters of a foreign text, without control characters.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        short.push('…');
    }
    short
}
