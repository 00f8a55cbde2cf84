//! The bytes of the store: torch 2.15's `TCPStore` protocol, both directions, as pure functions.
//!
//! A connection begins with [`HANDSHAKE`], which has no answer. Then the client sends requests, each a code
//! byte and a body; there is no length of the whole and no request id. Answers come in the order of their
//! requests, except that a `WAIT` or `BARRIER` is answered when it is fulfilled. All integers are
//! little-endian; keys and values are a `u64` length and their bytes.
//!
//! Both decoders are incremental: they consume whole elements and leave at most one incomplete element to the
//! caller, so bytes may arrive in any pieces and no byte is looked at more than a few times. Limits are
//! enforced as soon as a length is read, before anything is allocated for it.
//!
//! This module owns layout and limits. It does not know what a request does: that is
//! the `keyspace` beside it.

mod decoder;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use decoder::RequestDecoder;
pub use reply::{Reply, ReplyDecoder, ReplyKind, ReplyWriter};
pub use request::Request;

/// What a client sends first: code 0 (`VALIDATE`) and the magic `0x3C85F7CE`.
pub const HANDSHAKE: [u8; 5] = [0x00, 0xCE, 0xF7, 0x85, 0x3C];

/// Longest key, in bytes. torch's own limit.
pub const MAX_KEY: u64 = 8192;

/// Longest value in a request, in bytes. torch's own limit; `APPEND` may make a stored value longer.
pub const MAX_VALUE: u64 = 8 * 1024 * 1024;

/// Most keys (or pairs) that one request may name. torch's own limit.
pub const MAX_KEYS: u64 = 131_072;

/// Most bytes of keys and values in one request.
///
/// torch has no such limit: its three limits together admit a `MULTI_SET` of a tebibyte from one connection.
/// This one bounds what a connection can hold, sixteen times above the largest single value.
pub const MAX_REQUEST: u64 = 128 * 1024 * 1024;

/// Most bytes of keys and values in one answer that a client takes.
///
/// No single request limit applies to answers, since `APPEND` makes values longer than [`MAX_VALUE`].
pub const MAX_REPLY: u64 = 1024 * 1024 * 1024;

/// A key as the store keeps it: shared, so that listing keys copies none.
pub type Key = Arc<[u8]>;

/// A value as the store keeps it: shared, so that answering copies none; a `Vec`, so that it can grow.
pub type Value = Arc<Vec<u8>>;

/// Why bytes are not part of the protocol. The connection that sent them is of no further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The connection does not begin with [`HANDSHAKE`].
    #[error("byte {position} of the connection is `{byte:#04x}`, not the store's handshake")]
    Handshake {
        /// Where the first wrong byte stands.
        position: usize,
        /// The wrong byte.
        byte: u8,
    },
    /// No request has this code.
    #[error("`{code}` is not the code of a request")]
    UnknownCode {
        /// The code.
        code: u8,
    },
    /// A key is longer than [`MAX_KEY`].
    #[error("a key of {length} bytes is above the limit of {MAX_KEY}")]
    KeyTooLong {
        /// Its length.
        length: u64,
    },
    /// A value is longer than [`MAX_VALUE`] in a request, or than [`MAX_REPLY`] in an answer.
    #[error("a value of {length} bytes is above the limit of {limit}")]
    ValueTooLong {
        /// Its length.
        length: u64,
        /// What was allowed here.
        limit: u64,
    },
    /// A request names more keys than [`MAX_KEYS`].
    #[error("{count} keys in one request are above the limit of {MAX_KEYS}")]
    TooManyKeys {
        /// How many.
        count: u64,
    },
    /// A request has more bytes than [`MAX_REQUEST`], or an answer more than [`MAX_REPLY`].
    #[error("keys and values of {length} bytes in one message are above the limit of {limit}")]
    MessageTooLarge {
        /// The bytes up to and with the element that went over.
        length: u64,
        /// What was allowed here.
        limit: u64,
    },
    /// An answer has a byte or a number that its request cannot have.
    #[error("`{number}` is not an answer to this request")]
    ImpossibleReply {
        /// The number.
        number: i64,
    },
}

/// What a length-prefixed element is: it decides the limit of the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Key,
    Value,
}

/// The byte and element limits of a message that is being read, and how much of it is used up.
#[derive(Debug, Clone)]
struct Budget {
    used: u64,
    value_limit: u64,
    message_limit: u64,
}

impl Budget {
    const REQUEST: Self = Self { used: 0, value_limit: MAX_VALUE, message_limit: MAX_REQUEST };
    const REPLY: Self = Self { used: 0, value_limit: MAX_REPLY, message_limit: MAX_REPLY };

    /// Whether an element of `length` bytes may follow; changes nothing.
    fn admit(&self, field: Field, length: u64) -> Result<(), ProtocolError> {
        match field {
            Field::Key if length > MAX_KEY => Err(ProtocolError::KeyTooLong { length }),
            Field::Value if length > self.value_limit => {
                Err(ProtocolError::ValueTooLong { length, limit: self.value_limit })
            }
            _ if self.used + length > self.message_limit => {
                Err(ProtocolError::MessageTooLarge { length: self.used + length, limit: self.message_limit })
            }
            _ => Ok(()),
        }
    }
}

/// Bytes that have arrived, read element by element; an element that is not complete yet is not touched.
struct Input<'a> {
    bytes: &'a [u8],
    consumed: usize,
}

impl<'a> Input<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, consumed: 0 }
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.bytes[self.consumed..].first_chunk::<N>()?;
        self.consumed += N;
        Some(array)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A length and its bytes; the length is judged although its bytes may not be there yet.
    fn element(&mut self, field: Field, budget: &mut Budget) -> Result<Option<&'a [u8]>, ProtocolError> {
        let rest = &self.bytes[self.consumed..];
        let Some((length, rest)) = rest.split_first_chunk::<8>() else { return Ok(None) };
        let length = u64::from_le_bytes(*length);
        budget.admit(field, length)?;
        let Some(element) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
            return Ok(None);
        };
        budget.used += length;
        self.consumed += 8 + element.len();
        Ok(Some(element))
    }
}

fn admit_count(count: u64) -> Result<usize, ProtocolError> {
    match usize::try_from(count) {
        Ok(admitted) if count <= MAX_KEYS => Ok(admitted),
        _ => Err(ProtocolError::TooManyKeys { count }),
    }
}

fn put_element(out: &mut Vec<u8>, element: &[u8]) {
    out.extend_from_slice(&(element.len() as u64).to_le_bytes());
    out.extend_from_slice(element);
}
